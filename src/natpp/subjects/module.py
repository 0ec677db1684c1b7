"""A policy applied to any module: what changes, within the rule and the budget, with the reasons.

Blocks that are alike get one decision, as in the paper, or each its own. A transition is allowed where the rule allows
it at the site's place, where the shapes agree, where it costs no more than what really stands there, and where the
network stays connected: every output of a block gets something, and nothing that was learned outside of blocks
(attention, squeeze-excite) loses its last reader. A budget in figures is met from the module as it is, by as few
changes as it takes: those first that lose the least log-probability for what they save. What turns out not to be needed
is given back, and what could be milder becomes what is preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from natpp.arch.graph import Architecture, Graph
from natpp.core.budget import (
    SAVES_NOTHING,
    Budget,
    check_budget,
    limits_of,
)
from natpp.core.learned import Learned
from natpp.core.measures import Cost
from natpp.errors import SettingError, did_you_mean
from natpp.fx.blocks import Block, find_blocks
from natpp.fx.rewrite import Shared, rewrite
from natpp.fx.sites import Keep, called_twice, kept_parts, own_modes
from natpp.fx.trace import trace
from natpp.fx.traced import Traced
from natpp.nets.measure import module_cost
from natpp.nets.policy import Policy
from natpp.registry import RULES
from natpp.subjects.module_budget import within
from natpp.subjects.module_problem import Problem, Row
from natpp.subjects.module_result import ModuleResult, vanished
from natpp.training.recalibrate import recalibrate

MODES = ("greedy", "sample")


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
) -> ModuleResult:
    """The policy's answer for a module, within rule and budget, with inherited weights.

    Blocks that are alike get one decision, but under a budget in figures each its own, so as to come near it.
    `batches` are a few inputs like the example: with them the statistics of batch norms are recomputed.
    """
    if mode not in MODES:
        raise SettingError(f"unknown mode {mode!r} for a module. {did_you_mean(mode, MODES)}")
    task = Task(module, example_input, policy, rule, budget, keep, share_blocks, measure_latency)
    problem = task.problem
    if task.limits:
        rows = within(problem, problem.preferences(mode, seed), task.before, task.limits)
    else:
        rows = problem.answer(mode, seed)
    made = rewrite(problem.traced, problem.blocks, problem.block_ops(rows), task.shared)
    return task.result(made, rows, batches, settings={"mode": mode, "seed": seed})


class Task:
    """What is asked for a module: its problem, what it costs, and the limits."""

    def __init__(
        self,
        module: nn.Module,
        example_input: Any,
        policy: Policy,
        rule: str,
        budget: Budget,
        keep: Keep,
        share_blocks: bool | None,
        measure_latency: bool,
    ):
        RULES[rule]  # answers an unknown name
        wanted, keep = check_budget(budget), kept_parts(keep)
        share = not wanted if share_blocks is None else share_blocks
        traced = trace(module, example_input)
        self.problem = Problem(traced, find_blocks(traced, keep), policy, rule, strict=budget != "rule", share=share)
        self.timed = measure_latency or "latency" in wanted
        self.shared = Shared(traced)  # copied once: what is only measured goes, and one result stays
        self.before = _as_written(module_cost(module, example_input, latency=self.timed), traced, self.shared)
        self.limits = limits_of(wanted, self.before)
        self.strict = budget != "rule"
        self.settings = {
            "rule": rule,
            "budget": budget if isinstance(budget, str) else dict(budget),
            "share_blocks": share,
            "keep": [part if isinstance(part, str) else part.__name__ for part in keep],
        }

    def result(
        self,
        made: fx.GraphModule,
        rows: Sequence[Row],
        batches: Iterable[Any] | None,
        settings: Mapping[str, Any],
        learned: Learned | None = None,
    ) -> ModuleResult:
        """The module that rows make, with all that led to it."""
        problem, before = self.problem, self.before
        if batches is not None and problem.changes(rows):
            recalibrate(made, batches)
        after = module_cost(made, problem.traced.example, latency=self.timed)
        counted = problem.blueprint.cost(problem.plan(rows))
        assert counted is not None
        assert counted.living[:2] == (after.params, after.madds), f"counted {counted.living}, built {after}"
        assert not self.strict or (after.params <= before.params and after.madds <= before.madds)
        ops = problem.block_ops(rows)
        saves = after.params < before.params or after.madds < before.madds
        return ModuleResult(
            module=made,
            changes=[*problem.changes(rows), *vanished(problem.blocks, ops, made)],
            cost_before=before,
            cost_after=after,
            log_prob=problem.log_prob(rows),
            probabilities=problem.probabilities(),
            masked=problem.masked(),
            traced=problem.traced,
            blocks=problem.blocks,
            ops=ops,
            settings=self.settings | dict(settings),
            notes=(
                *problem.traced.notes,
                *called_twice(problem.traced),
                *own_modes(problem.traced),
                *([] if problem.blocks else ["there is nothing here that natpp can replace"]),
                *([SAVES_NOTHING] if problem.blocks and not saves and not self.limits else []),
            ),
            learned=learned,
        )


def _as_written(cost: Cost, traced: Traced, shared: Shared) -> Cost:
    """The cost of a module with the peak memory that it has as natpp writes it, with nothing changed.

    There every value is freed after its last reader, whatever the module's own Python holds on to: else a result would
    save memory by being written anew.
    """
    written = module_cost(rewrite(traced, (), (), shared), traced.example)
    return replace(cost, peak_memory_bytes=min(cost.peak_memory_bytes, written.peak_memory_bytes))


def adopt(blocks: Sequence[Block], before: Architecture, after: Architecture) -> list[tuple[str, ...]]:
    """The operations of blocks when what a published architecture changed is done to those of the same form.

    Blocks of another form keep what they have. Shortcuts between different shapes get weights of their own, so the
    result may cost more than the original.
    """
    found = []
    for block in blocks:
        old, new = before.graph(block.kind), after.graph(block.kind)
        if _topology(old) != _topology(block.graph) or (block.inputs[0] is None and _reads_older(new)):
            found.append(block.ops)
            continue
        edges = zip(block.graph.edges, old.edges, new.edges, strict=True)
        ops = [own.op if first.op == second.op else second.op for own, first, second in edges if not own.fixed]
        found.append(tuple(ops))
    return found


def _topology(graph: Graph) -> object:
    return graph.concat, [(edge.source, edge.target, edge.fixed) for edge in graph.edges]


def _reads_older(graph: Graph) -> bool:
    return any(edge.source == 0 and not edge.is_null for edge in graph.edges)


# Budgets.
