"""NAT and NAT++: a policy learned by policy gradient, one forward pass for an answer.

`greedy` takes the most likely transition of every edge, `sample` draws once for every edge as the paper does, `best-of`
draws several times and keeps what a scorer likes best.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from natpp.arch.cost import cost_of
from natpp.arch.graph import Architecture
from natpp.arch.rules import changes
from natpp.config import Among, Config, Plain
from natpp.core.budget import SAVES_NOTHING, check_budget, limits_of
from natpp.core.decision import Plan
from natpp.core.measures import Cost
from natpp.core.result import Result
from natpp.core.solve import solve
from natpp.errors import SettingError, did_you_mean
from natpp.methods.base import picked
from natpp.methods.learning import LearnConfig, learn
from natpp.nets.network import network_cost
from natpp.nets.policy import Policy, Transitions, encode
from natpp.registry import METHODS, RULES
from natpp.scorers.base import Score, Task
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs

SAMPLES, LARGEST_SAMPLES = 10, 1_000_000  # draws of best-of: default and maximum
MODES = ("greedy", "sample", "best-of")
SMALLEST = 1e-30  # probabilities are clamped to at least this


@dataclass(frozen=True)
class PolicyMethod(Config):
    """A policy: the most likely transition of every edge, or samples."""

    rule: Annotated[str, Among(RULES)] | None = None
    """rule of the policy"""
    learn: LearnConfig = LearnConfig()
    """how it learns"""
    policy: Annotated[Policy | None, Plain] = None
    """the learned policy; None before"""
    asks: ClassVar[bool] = True

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> PolicyMethod:
        """Learn the policy."""
        return replace(self, policy=learn(inputs, score, self.learn, generator))

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The most likely transformation; no scores are needed."""
        transitions = self._transitions(inputs)
        choices = transitions.greedy()[None]
        rows = inputs.rows(range(len(inputs)), choices.numpy(), transitions.probabilities(choices))
        return [row for _, _, row in rows]

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> list[list[Row]]:
        """Transformations sampled from the policy."""
        transitions = self._transitions(inputs)
        choices = transitions.sample(count, torch.Generator().manual_seed(int(generator.integers(2**31))))
        rows = [row for *_, row in inputs.rows(range(len(inputs)), choices.numpy(), transitions.probabilities(choices))]
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def _transitions(self, inputs: Inputs) -> Transitions:
        assert self.policy is not None
        with torch.no_grad():
            found: Transitions = self.policy(inputs.batch(range(len(inputs))))
        return found


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

    If a `budget` with limits is not met, further changes are made until it is.
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
    plan = inputs.cells[0].plan(row)
    found = _result(inputs, transitions, plan, log_prob, (before, cost(inputs.transformed(0, row))))
    settings = found.settings | {"mode": mode, "seed": seed} | ({"budget": wanted} if wanted else {})
    settings |= {"samples": samples} if mode == "best-of" else {}
    return replace(found, settings=settings, notes=() if wanted else found.notes)


def explained(arch: Architecture, after: Architecture, policy: Policy, task: Task) -> Result:
    """The result for an architecture, however it was found, with the probabilities of a policy."""
    inputs = Inputs([arch], task, policy.ops)
    with torch.no_grad():
        transitions: Transitions = policy(inputs.batch([0]))
    plan = inputs.cells[0].plan(encode(after, inputs.ops).ops)
    found = _result(inputs, transitions, plan, 0.0, (cost_of(arch, task.where), cost_of(after, task.where)))
    chances = [own[option] for own, option in zip(found.chances, plan, strict=True)]
    return replace(found, log_prob=sum(math.log(max(chance, SMALLEST)) for chance in chances))


def _result(inputs: Inputs, transitions: Transitions, plan: Plan, log_prob: float, costs: tuple[Cost, Cost]) -> Result:
    cells, task = inputs.cells[0], inputs.task
    after, probs = cells.apply(plan), transitions.probs.numpy()
    chances = [[float(edge[op]) for op in numbers] for edge, numbers in zip(probs, cells.numbers, strict=True)]
    likely = {one.name: own[option] for one, own, option in zip(cells.decisions, chances, plan, strict=True)}
    saves = any(getattr(costs[1], name) < getattr(costs[0], name) for name in ("live_params", "live_madds"))
    return Result(
        subject=cells,
        plan=plan,
        after=after,
        cost_before=costs[0],
        cost_after=costs[1],
        changes=tuple(replace(change, probability=likely[change.name]) for change in changes(cells.arch, after)),
        log_prob=log_prob,
        chances=chances,
        settings={
            "rule": task.rule,
            "budget": "strict" if task.strict else "rule",
            "network": asdict(task.where),
        },
        notes=() if saves else (SAVES_NOTHING,),
    )


def _check(mode: str, samples: int, score: Score | None, seed: int) -> None:
    if mode not in MODES:
        raise SettingError(f"unknown mode {mode!r}. {did_you_mean(mode, MODES)}")
    if not 1 <= samples <= LARGEST_SAMPLES:
        raise SettingError(f"samples is {samples}, expected a whole number from 1 to {LARGEST_SAMPLES:,}")
    if not 0 <= seed < 2**63:
        raise SettingError(f"seed is {seed}, expected a whole number from 0 to 2^63 - 1")
    if mode != "best-of" and samples != SAMPLES:
        raise SettingError(f"samples can only be given with the mode best-of, not with {mode}")
    if mode == "best-of" and score is None:
        raise SettingError("the mode best-of chooses by a scorer: give one, or use greedy or sample")
    if mode != "best-of" and score is not None:
        raise SettingError(f"the mode {mode} does not use a scorer: leave the scorer out, or use best-of")


METHODS.add("nat++", PolicyMethod("nat++"))
METHODS.add("nat", PolicyMethod("nat"))
