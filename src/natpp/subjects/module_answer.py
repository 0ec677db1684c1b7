"""Applies a policy to any module, within the rule and the budget, and reports what changed and why.

A budget in figures is met with as few changes to the module as possible, starting with those that lose the least
log-probability per saving. Changes that turn out not to be needed are undone, and each remaining one becomes the most
preferred option that still fits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

from natpp.arch.graph import NULL
from natpp.core.budget import SAVES_NOTHING, Budget, check_budget, limits_of
from natpp.core.decision import Change, Plan
from natpp.core.learned import Learned
from natpp.core.measures import Cost
from natpp.core.result import Result
from natpp.core.solve import repair
from natpp.decisions.base import Decisions
from natpp.errors import SettingError, did_you_mean
from natpp.fx.sites import Keep, called_twice, kept_parts, own_modes
from natpp.fx.trace import trace
from natpp.nets.measure import module_cost
from natpp.nets.policy import Policy, Transitions
from natpp.subjects.module import Module
from natpp.subjects.module_budget import within
from natpp.training.recalibrate import recalibrate

MODES = ("greedy", "sample")
Table = NDArray[np.float64]  # (decisions, ops): preferences of a policy


def optimize_module(
    module: nn.Module,
    example_input: Any,
    policy: Policy,
    *,
    rule: str = "nat++",
    mode: str = "greedy",
    seed: int = 0,
    budget: Budget = "strict",
    keep: Keep = (),
    share_blocks: bool | None = None,
    measure_latency: bool = False,
    batches: Iterable[Any] | None = None,
) -> Result:
    """The policy's answer for a module, within the rule and the budget, with inherited weights.

    Blocks that are alike share a decision; under a budget in figures each has its own, to come closer to it.
    `batches` are a few inputs like the example, used to recompute batch norm statistics.
    """
    if mode not in MODES:
        raise SettingError(f"unknown mode {mode!r} for a module. {did_you_mean(mode, MODES)}")
    asked = Asked(module, example_input, policy, rule, budget, keep, share_blocks, measure_latency)
    plan = asked.within(asked.table(mode, seed)) if asked.limits else asked.answer(mode, seed)
    return asked.result(plan, batches, settings={"mode": mode, "seed": seed})


class Asked:
    """A module with its settings, and a policy's probabilities for its decisions."""

    def __init__(
        self,
        module: nn.Module,
        example_input: Any,
        policy: Policy,
        rule: str = "nat++",
        budget: Budget = "strict",
        keep: Keep = (),
        share_blocks: bool | None = None,
        measure_latency: bool = False,
    ):
        wanted, keep = check_budget(budget), kept_parts(keep)
        share = not wanted if share_blocks is None else share_blocks
        ask = Decisions(rule=rule, ops=policy.ops, keep=keep, share_blocks=share, strict=budget != "rule")
        self.module = Module(trace(module, example_input), ask)
        self.timed = measure_latency or "latency" in wanted
        self.before = _as_written(module_cost(module, example_input, latency=self.timed), self.module)
        self.limits = limits_of(wanted, self.before)
        self.settings = {
            "rule": rule,
            "budget": budget if isinstance(budget, str) else dict(budget),
            "share_blocks": share,
            "keep": [part if isinstance(part, str) else part.__name__ for part in keep],
        }
        if self.module.blocks:
            self.transitions, self.log_probs = said(policy, self.module)
        else:
            self.log_probs = self.module.extended(np.zeros((0, len(policy.ops))))

    # The policy's answer.

    def table(self, mode: str = "greedy", seed: int = 0) -> Table:
        """Preferences for a descent: the log-probabilities, with Gumbel noise added to sample from them."""
        return self.log_probs if mode == "greedy" else perturbed(self.log_probs, np.random.default_rng(seed))

    def within(self, table: Table) -> Plan:
        """The plan within the limits, from the unchanged module or, failing that, from the policy's answer."""
        starts = (0,) * len(self.module.decisions), self.answer()
        return within(self.module, starts, self.module.preferences(table), self.before, self.limits)

    def answer(self, mode: str = "greedy", seed: int = 0) -> Plan:
        """The most likely or sampled transitions; connected, and greedy changes at least one if it can."""
        if not self.module.blocks:
            return (0,) * len(self.module.decisions)
        if mode == "greedy":
            drawn = self.transitions.greedy()
        else:
            drawn = self.transitions.sample(1, torch.Generator().manual_seed(seed))[0]
        plan = self.repaired(self.module.plan(drawn.numpy()))
        return self._one_change(plan) if mode == "greedy" and not self.changes(plan) else plan

    def repaired(self, plan: Plan) -> Plan:
        """The plan with its least likely changes undone until it is connected; those that still fit are restored."""
        worth = self.log_probs[np.arange(len(plan)), self.module.row(plan)].tolist()
        found: list[int] = []
        for number, part in enumerate(self.module.parts):
            own = plan[part.start : part.stop]
            whole = functools.partial(self.module.whole, number)
            found += repair(own, (0,) * len(own), worth[part.start : part.stop], whole)
        return tuple(found)

    def _one_change(self, plan: Plan) -> Plan:
        """The most likely single change; operations come before shortcuts."""
        best: tuple[bool, float, int, int] | None = None
        for number, one in enumerate(self.module.decisions[: self.module.seen]):
            for option in one.allowed:
                if option:
                    likely = float(self.log_probs[number, self.module.numbers[number][option]])
                    key = (
                        self.module.term(number).site is not None,
                        likely,
                        -number,
                        -self.module.numbers[number][option],
                    )
                    best = key if best is None or key > best else best
        if best is None:
            return plan
        row = self.module.row(plan)
        row[-best[2]] = -best[3]
        return self.module.plan(row)

    def log_prob(self, plan: Plan) -> float:
        """Log-probability of the decisions."""
        likely = self.log_probs[np.arange(len(plan)), self.module.row(plan)]
        return float(sum(likely[part.start : part.stop].sum() for part in self.module.parts))

    # The result.

    def result(
        self,
        plan: Plan,
        batches: Iterable[Any] | None,
        settings: Mapping[str, Any],
        learned: Learned | None = None,
    ) -> Result:
        """The module under a plan, with its costs, changes, settings and notes."""
        module, before = self.module, self.before
        made, after = module.built(plan, module.copied, latency=self.timed)
        changes = self.changes(plan)
        if batches is not None and changes:
            recalibrate(made, batches)
        assert not module.ask.strict or (after.params <= before.params and after.madds <= before.madds)
        saves = after.params < before.params or after.madds < before.madds
        return Result(
            subject=module,
            plan=plan,
            after=made,
            cost_before=before,
            cost_after=after,
            changes=(*changes, *vanished(module, plan, made)),
            log_prob=self.log_prob(plan),
            chances=[
                [float(np.exp(self.log_probs[number, op])) for op in numbers]
                for number, numbers in enumerate(module.numbers)
            ],
            settings=self.settings | dict(settings),
            notes=(
                *module.traced.notes,
                *called_twice(module.traced),
                *own_modes(module.traced),
                *([] if module.decisions else ["there is nothing here that natpp can replace"]),
                *([SAVES_NOTHING] if module.blocks and not saves and not self.limits else []),
            ),
            learned=learned,
        )

    def changes(self, plan: Plan) -> list[Change]:
        """The changes, block by block, and what was removed with them."""
        found, module, row = [], self.module, self.module.row(plan)
        for block, choices, ops in zip(module.blocks, module.choices, module.block_ops(plan), strict=True):
            if ops == block.ops:
                continue
            live, _ = block.alive(ops)
            for index, ((_, term), (number, _)) in enumerate(zip(block.terms, choices, strict=True)):
                before, after = term.op, ops[index]
                if before == after and not (term.site is not None and not live[index]):
                    continue
                gone = before == after or (not live[index] and after != NULL)
                if gone and before == NULL:
                    continue
                likely = 1.0 if gone else float(np.exp(self.log_probs[number, row[number]]))
                kind = module.decisions[number].kind
                found.append(Change(block.edge_name(index), kind, before, NULL if gone else after, likely))
        return [*found, *module.other_changes(plan)]


def vanished(module: Module, plan: Plan, made: fx.GraphModule) -> list[Change]:
    """Sites that are alive in their own block but were removed, since no other block reads it any more."""
    present = {node.name for node in made.graph.nodes}
    found = []
    for block, choices, ops in zip(module.blocks, module.choices, module.block_ops(plan), strict=True):
        live, _ = block.alive(ops)
        for (_, term), op, alive, choice in zip(block.terms, ops, live, choices, strict=True):
            if term.site is not None and alive and op == term.op and term.site.main[0].name not in present:
                kind = module.decisions[choice.decision].kind
                found.append(Change(term.site.name, kind, term.op, NULL, 1.0))
    return found


def said(policy: Policy, module: Module) -> tuple[Transitions, Table]:
    """A policy's transitions for a module's decisions, and their log-probabilities."""
    with torch.no_grad():
        transitions: Transitions = policy(module.graph())
    return transitions, module.extended(transitions.log_probs.double().numpy())


def perturbed(table: Table, generator: np.random.Generator, temperature: float = 1.0) -> Table:
    """Preferences with Gumbel noise: the argmax of each row is a sample from its softmax."""
    return table / temperature + generator.gumbel(size=table.shape)


def _as_written(cost: Cost, module: Module) -> Cost:
    """The cost of a module, with its peak memory as rewritten by natpp without changes.

    The rewritten code frees every value after its last reader, even those that the module's own Python keeps. Otherwise
    a result would seem to save memory just by being rewritten.
    """
    _, written = module.built((0,) * len(module.decisions), module.copied)
    return replace(cost, peak_memory_bytes=min(cost.peak_memory_bytes, written.peak_memory_bytes))
