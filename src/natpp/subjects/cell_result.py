"""Applying a policy to an architecture: one answer, with the reasons beside it.

`greedy` takes the most likely transition of every edge, `sample` draws once for every edge as the paper
does, `best-of` draws several times and keeps what a scorer likes best.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from natpp.arch.cost import cost_of
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.arch.rules import Change, changes
from natpp.core.budget import SAVES_NOTHING, check_budget, limits_of
from natpp.core.decision import Plan
from natpp.core.measures import Cost
from natpp.core.solve import solve
from natpp.errors import SettingError, did_you_mean
from natpp.methods.base import picked
from natpp.nets.network import network_cost
from natpp.nets.policy import Policy, Transitions
from natpp.scorers.base import Score, Task
from natpp.subjects.many import Inputs

SAMPLES, LARGEST_SAMPLES = 10, 1_000_000  # that best-of draws, by default and at most
MODES = ("greedy", "sample", "best-of")
FORMAT, VERSION = "natpp result", 1
SMALLEST = 1e-30  # probability that is told apart from nothing
PerEdge = dict[str, list[dict[str, Any]]]  # per cell, per edge, by operation


@dataclass(frozen=True)
class Result:
    """What became of an architecture, and why.

    Examples:
        >>> result = natpp.optimize("darts")
        >>> change = result.changes[0]
        >>> change.cell, change.before.op, change.after.op
        ('reduce', 'max_pool_3x3', 'avg_pool_3x3')
        >>> sorted(result.probabilities["reduce"][change.index])
        ['avg_pool_3x3', 'max_pool_3x3', 'null']
    """

    before: Architecture
    """β, what was given"""
    after: Architecture
    """α, what became of it"""
    cost_before: Cost
    """in the network that was asked for"""
    cost_after: Cost
    """the same of what came out"""
    log_prob: float
    """log-probability of the transformation that is returned"""
    probabilities: PerEdge
    """per cell and edge, the operations the policy could choose and how likely each was"""
    masked: PerEdge
    """per cell and edge, the operations it could not choose, and whether the rule or the budget forbids them"""
    settings: dict[str, Any] = field(default_factory=dict)
    """how it was found: rule, budget, mode, seed, network, policy"""
    measured: tuple[dict[str, Any], ...] = ()
    """what was measured before and after, with its spread and how: `natpp.report.result` says in which words"""

    @property
    def changes(self) -> list[Change]:
        """The edges that changed."""
        return changes(self.before, self.after)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what changed, what it costs, what the policy could choose, and all that led to it."""
        from natpp import __version__

        return {
            "format": FORMAT,
            "version": VERSION,
            "before": to_dict(self.before),
            "after": to_dict(self.after),
            "changes": [
                {
                    "cell": change.cell,
                    "from": change.before.source,
                    "to": change.before.target,
                    "before": change.before.op,
                    "after": change.after.op,
                }
                for change in self.changes
            ],
            "cost_before": self.cost_before.to_dict(),
            "cost_after": self.cost_after.to_dict(),
            "log_prob": self.log_prob,
            "probabilities": self.probabilities,
            "masked": self.masked,
            "measured": list(self.measured),
            **self.settings,
            "versions": {"natpp": __version__, "torch": torch.__version__},
        }

    def report(self, path: str | Path, trained: Sequence[str | Path] = ()) -> Path:
        """Write a page that shows all of it, one HTML file; `trained` are folders of trainings that tell accuracies."""
        from natpp.report.page import write_report

        return write_report(self.to_dict(), path, trained=trained)

    def __str__(self) -> str:
        lines = [
            f"{change.cell} cell, {change.before.source} → {change.before.target}: "
            f"{change.before.op} → {change.after.op}"
            for change in self.changes
        ] or ["nothing changed"]
        for name, before, after in (
            ("parameters", self.cost_before.live_params, self.cost_after.live_params),
            ("multiply-adds", self.cost_before.live_madds, self.cost_after.live_madds),
            ("peak memory, bytes", self.cost_before.peak_memory_bytes, self.cost_after.peak_memory_bytes),
        ):
            lines.append(f"{name:<20} {before:>15,} → {after:>15,}  ({after / before - 1:+.1%})")
        times = self.cost_before.latency_ms, self.cost_after.latency_ms
        if times[0] is not None and times[1] is not None:
            lines.append(f"{'latency, ms':<20} {times[0]:>15.2f} → {times[1]:>15.2f}  ({times[1] / times[0] - 1:+.1%})")
        saves = any(
            getattr(self.cost_after, name) < getattr(self.cost_before, name) for name in ("live_params", "live_madds")
        )
        if not saves and isinstance(self.settings.get("budget"), str):
            lines.append(f"note: {SAVES_NOTHING}")
        return "\n".join(lines)


def transform(
    arch: Architecture,
    policy: Policy,
    task: Task,
    *,
    mode: str = "greedy",
    samples: int = SAMPLES,
    score: Score | None = None,
    seed: int = 0,
    budget: Mapping[str, float] | None = None,
) -> Result:
    """The policy's answer for an architecture, within the rule and, where it is strict, the budget.

    Where a `budget` in figures asks for less, it is changed further, as far as that takes.
    """
    _check(mode, samples, score, seed)
    inputs = Inputs([arch], task, policy.ops)
    wanted = check_budget(budget or {})
    cost = functools.partial(network_cost, where=task.where, latency="latency" in wanted)
    before = cost(arch)

    def measure(plan: Plan) -> Cost:
        return cost(inputs.cells[0].apply(plan)) if any(plan) else before

    limits = limits_of(wanted, before)
    with torch.no_grad():
        transitions: Transitions = policy(inputs.batch([0]))
        if mode == "greedy":
            choices = transitions.greedy()[None]
        else:
            drawn = torch.Generator().manual_seed(seed)
            choices = transitions.sample(samples if mode == "best-of" else 1, drawn)
        rows = [row for *_, row in inputs.rows([0], choices.numpy(), transitions.probabilities(choices))]
        if limits:
            cells = inputs.cells[0]
            preferences = cells.preferences(transitions.log_probs.double().numpy())
            plans = [solve(cells, cells.plan(row), preferences, limits, measure=measure) for row in rows]
            rows = [cells.row(plan) for plan in plans]
        row = rows[0] if score is None else picked(inputs, [rows], score)[0]
        log_prob = transitions.log_prob(torch.from_numpy(row)).item()
    after = inputs.transformed(0, row)
    found = _explained(inputs, transitions, after, log_prob, (before, cost(after)))
    settings = found.settings | {"mode": mode, "seed": seed} | ({"budget": wanted} if wanted else {})
    return replace(found, settings=settings | ({"samples": samples} if mode == "best-of" else {}))


def explained(arch: Architecture, after: Architecture, policy: Policy, task: Task) -> Result:
    """What became of an architecture, however it was found, with what a policy says of it."""
    inputs = Inputs([arch], task, policy.ops)
    with torch.no_grad():
        transitions: Transitions = policy(inputs.batch([0]))
    found = _explained(inputs, transitions, after, 0.0, (cost_of(arch, task.where), cost_of(after, task.where)))
    chances = [
        found.probabilities[kind][index].get(op, 0.0)
        for kind, graph in after.cells()
        for index, op in enumerate(graph.ops)
    ]
    return replace(found, log_prob=sum(math.log(max(chance, SMALLEST)) for chance in chances))


def _explained(
    inputs: Inputs, transitions: Transitions, after: Architecture, log_prob: float, costs: tuple[Cost, Cost]
) -> Result:
    arch, task = inputs.archs[0], inputs.task
    return Result(
        before=arch,
        after=after,
        cost_before=costs[0],
        cost_after=costs[1],
        log_prob=log_prob,
        probabilities=_probabilities(inputs, transitions),
        masked=_masked(inputs),
        settings={
            "rule": task.rule,
            "budget": "strict" if task.strict else "rule",
            "network": asdict(task.where),
        },
    )


def _check(mode: str, samples: int, score: Score | None, seed: int) -> None:
    if mode not in MODES:
        raise SettingError(f"unknown mode {mode!r}. {did_you_mean(mode, MODES)}")
    if not 1 <= samples <= LARGEST_SAMPLES:
        raise SettingError(f"samples is {samples}, expected a whole number from 1 to {LARGEST_SAMPLES:,}")
    if not 0 <= seed < 2**63:
        raise SettingError(f"seed is {seed}, expected a whole number from 0 to 2^63 - 1")
    if mode != "best-of" and samples != SAMPLES:
        raise SettingError(f"samples goes with the mode best-of, not with {mode}")
    if mode == "best-of" and score is None:
        raise SettingError("the mode best-of chooses by a scorer: give one, or use greedy or sample")
    if mode != "best-of" and score is not None:
        raise SettingError(f"the mode {mode} asks no scorer: leave it out, or use best-of")


def _probabilities(inputs: Inputs, transitions: Transitions) -> PerEdge:
    """The distribution of every free edge; a fixed edge keeps what it has."""
    found: PerEdge = {
        kind: [{edge.op: 1.0} if edge.fixed else {} for edge in graph.edges] for kind, graph in inputs.archs[0].cells()
    }
    probs = transitions.probs.numpy()
    for (kind, number), edge, mask in zip(inputs.encoded[0].places, probs, inputs.masks[0], strict=True):
        found[kind][number] = {inputs.ops[op]: float(edge[op]) for op in np.flatnonzero(mask)}
    return found


def _masked(inputs: Inputs) -> PerEdge:
    """Per cell and edge the operations that may not stand there; a fixed edge keeps what it has by rule."""
    words = {"rule": "rule", "cost": "budget"}
    found: PerEdge = {
        kind: [{op: "rule" for op in inputs.ops if op != edge.op} if edge.fixed else {} for edge in graph.edges]
        for kind, graph in inputs.archs[0].cells()
    }
    for (kind, number), decision in zip(inputs.encoded[0].places, inputs.cells[0].decisions, strict=True):
        found[kind][number] = {
            str(option.value): words[option.why_not] for option in decision.options if not option.allowed
        }
    return found
