"""A policy applied to any module: what changes, within the rule and the budget, with the reasons.

Blocks that are alike get one decision, as in the paper, or each its own. A transition is allowed where the rule allows
it at the site's place, where the shapes agree, where it costs no more than what really stands there, and where the
network stays connected: every output of a block gets something, and nothing that was learned outside of blocks
(attention, squeeze-excite) loses its last reader. A budget in figures is met from the module as it is, by as few
changes as it takes: those first that lose the least log-probability for what they save. What turns out not to be needed
is given back, and what could be milder becomes what is preferred.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from natpp.arch.cost import Cost
from natpp.arch.graph import NULL, SKIP, Architecture, Graph
from natpp.arch.transitions import Mask
from natpp.errors import SettingError, did_you_mean
from natpp.fx.blocks import Block, find_blocks, grouped, shape
from natpp.fx.learned import Learned
from natpp.fx.recalibrate import recalibrate
from natpp.fx.replace import cost as site_cost
from natpp.fx.replace import forms
from natpp.fx.rewrite import node_shape, rewrite
from natpp.fx.sites import Keep, called_twice, kept_parts, own_modes
from natpp.fx.trace import Traced, batch_of, trace, value
from natpp.fx.upstream import way_out
from natpp.improve.budget import (
    COUNTED,
    REMEASURE,
    SAVES_NOTHING,
    Budget,
    check_budget,
    excess,
    figures_of,
    limits_of,
    preferred,
    unreachable,
)
from natpp.nets.measure import module_cost
from natpp.nets.policy import Encoded, GraphBatch, Policy, Transitions, collate, encode_cells
from natpp.registry import OPS, RULES

Row = NDArray[np.int64]  # one operation for every term of a group's blocks
Table = NDArray[np.float64]  # (terms, ops) of a group
MODES = ("greedy", "sample")
MOST_KNOWN = 1 << 18  # rows whose cost is remembered
MOST_NEXT = 1 << 14  # rows whose changes are remembered


@dataclass(frozen=True)
class SiteChange:
    """One operation that became another, or a shortcut that was put in or taken out."""

    name: str
    """the site's name; for a shortcut, its block and the two nodes it joins"""
    before: str
    after: str
    probability: float
    """of this transition, by the policy; of something that went because nothing reads it any more: 1"""


@dataclass(frozen=True)
class ModuleResult:
    """What became of a module, and why.

    Examples:
        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.6})
        >>> [change.name for change in result.changes][:2]
        ['layer1.0.conv1', 'layer1.0.conv2']
        >>> sorted(path.name for path in result.save("better").iterdir())
        ['architecture.json', 'model.py', 'weights.safetensors']
    """

    module: nn.Module
    """a plain module that takes and gives what the original did"""
    changes: list[SiteChange]
    """site by site: its name, the operation before and after, how likely the policy found it"""
    cost_before: Cost
    """on the example input"""
    cost_after: Cost
    """the same of what came out"""
    log_prob: float
    """log-probability of the decisions that are returned"""
    probabilities: dict[str, dict[str, float]]
    """per site or shortcut, the operations the policy could choose and how likely each was"""
    masked: dict[str, dict[str, str]]
    """per site or shortcut, the operations it could not choose, and why"""
    traced: Traced = field(repr=False)
    blocks: list[Block] = field(repr=False)
    ops: list[tuple[str, ...]] = field(repr=False)
    """per block, the operation of every term"""
    settings: dict[str, Any] = field(default_factory=dict)
    """how it was found: rule, budget, mode, seed, policy"""
    notes: tuple[str, ...] = ()
    """what was kept whole because it could not be looked into"""
    learned: Learned | None = field(default=None, repr=False)
    """what was learned on the module's data, where some was given"""
    measured: tuple[dict[str, Any], ...] = ()
    """what else was measured before and after, for the report"""

    def save(self, folder: str | Path) -> Path:
        """Write the module into a folder: weights, architecture, and a Python file that makes it without natpp."""
        from natpp.fx.save import save_result

        return save_result(self, folder)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what changed, block by block, what it costs, and what the policy could choose."""
        from natpp.fx.save import result_data

        return result_data(self)

    def report(self, path: str | Path) -> Path:
        """Write a page that shows all of it, one HTML file."""
        from natpp.report.page import write_report

        return write_report(self.to_dict(), path)

    def __str__(self) -> str:
        lines = [
            f"{change.name}: {change.before} → {change.after}"
            + (f"  (probability {change.probability:.2f})" if change.probability < 1 else "")
            for change in self.changes
        ] or ["nothing changed"]
        rows: list[tuple[str, float | None, float | None, str]] = [
            ("parameters", self.cost_before.params, self.cost_after.params, ",.0f"),
            ("multiply-adds", self.cost_before.madds, self.cost_after.madds, ",.0f"),
            ("peak memory, bytes", self.cost_before.peak_memory_bytes, self.cost_after.peak_memory_bytes, ",.0f"),
            ("latency, ms", self.cost_before.latency_ms, self.cost_after.latency_ms, ",.2f"),
        ]
        for name, before, after, form in rows:
            if before is not None and after is not None:
                share = f"({after / before - 1:+.1%})" if before else ""
                lines.append(f"{name:<20} {before:>15{form}} → {after:>15{form}}  {share}")
        lines += [] if self.learned is None else [str(self.learned)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


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
        made, rows = within(problem, problem.preferences(mode, seed), task.before, task.limits)
    else:
        rows = problem.answer(mode, seed)
        made = rewrite(problem.traced, problem.blocks, problem.block_ops(rows))
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
        self.before = _as_written(module_cost(module, example_input, latency=self.timed), traced)
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


def _as_written(cost: Cost, traced: Traced) -> Cost:
    """The cost of a module with the peak memory that it has as natpp writes it, with nothing changed.

    There every value is freed after its last reader, whatever the module's own Python holds on to: else a result would
    save memory by being written anew.
    """
    written = module_cost(rewrite(traced), traced.example)
    return replace(cost, peak_memory_bytes=min(cost.peak_memory_bytes, written.peak_memory_bytes))


def vanished(blocks: Sequence[Block], ops: Sequence[Sequence[str]], made: fx.GraphModule) -> list[SiteChange]:
    """Sites that are alive in their own block but went, since no other block reads it any more."""
    present = {node.name for node in made.graph.nodes}
    found = []
    for block, row in zip(blocks, ops, strict=True):
        live, _ = block.alive(row)
        for (_, term), op, alive in zip(block.terms, row, live, strict=True):
            if term.site is not None and alive and op == term.op and term.site.main[0].name not in present:
                found.append(SiteChange(term.site.name, term.op, NULL, 1.0))
    return found


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


class _Alike(NamedTuple):
    """Blocks of a group whose shortcuts fit at the same terms, and which must read the same nodes."""

    block: Block
    fits: tuple[bool, ...]  # per term, whether a shortcut can be put in there
    needs: tuple[bool, ...]  # per node, whether something must go on reading it
    costs: NDArray[np.float64]  # (terms, ops, 3): parameters, multiply-adds, bytes made, of all of them together


class Problem:
    """A traced module's decisions: what each may be, how likely, and what it costs."""

    def __init__(
        self, traced: Traced, blocks: list[Block], policy: Policy, rule: str, *, strict: bool = True, share: bool = True
    ):
        self.traced, self.blocks = traced, blocks
        self.ops = policy.ops
        self.rule, self.strict = rule, strict
        self.batch = batch_of(traced.example)
        self.site_nodes = {node for block in blocks for item in block.items for node in item.nodes}
        self.way_out = way_out(traced.graph, self.site_nodes, traced.parts)
        self.shared = share
        self.groups = grouped(blocks, share=share)
        self.first = [blocks[group[0]] for group in self.groups]
        self.fits = [_shortcut_fits(block) for block in blocks]
        names = [_known(block.ops, self.ops) for block in self.first]
        self.before: list[Row] = [np.array([self.ops.index(name) for name in row], dtype=np.int64) for row in names]
        self.why: list[list[dict[str, str]]] = []
        self._known: dict[tuple[int, bytes], tuple[NDArray[np.float64], bool, list[set[int]]]] = {}
        self._next: dict[tuple[int, bytes], list[tuple[Row, NDArray[np.float64]]]] = {}
        self.masks: list[Mask] = [self._mask(number) for number in range(len(self.groups))]
        self.member: dict[int, tuple[int, int]] = {}  # per block its group, and of which kind in it
        self.alike = [self._alike(number) for number in range(len(self.groups))]
        self.last, self.behind = self._order()
        for number, mask in enumerate(self.masks):
            self._keep_connected(number, mask)
        encoded: list[Encoded] = [
            encode_cells([(block.kind, block.with_ops(row))], self.ops)
            for block, row in zip(self.first, names, strict=True)
        ]
        self.log_probs: list[Table] = []
        if encoded:
            self.graph: GraphBatch = collate(encoded, self.masks)
            self.transitions, self.log_probs = self.asked(policy)

    def asked(self, policy: Policy) -> tuple[Transitions, list[Table]]:
        """What a policy says of all decisions, and its log-probabilities group by group."""
        with torch.no_grad():
            transitions: Transitions = policy(self.graph)
        return transitions, self.split(transitions.log_probs.double().numpy())

    def split(self, decisions: NDArray[Any]) -> list[NDArray[Any]]:
        """Something for every decision, group by group."""
        return np.split(decisions, np.cumsum([len(row) for row in self.before])[:-1])

    # What may be.

    def _mask(self, number: int) -> Mask:
        """(terms, ops) of a group: what is allowed for all its blocks; a shortcut, where it fits somewhere."""
        members = [self.blocks[index] for index in self.groups[number]]
        mask = np.zeros((len(self.before[number]), len(self.ops)), dtype=bool)
        reasons: list[dict[str, str]] = [{} for _ in mask]
        for row, current in enumerate(self.before[number]):
            for column, op in enumerate(self.ops):
                if column == current:
                    mask[row, column] = True
                    continue
                found = [self._forbidden(block, row, op) for block in members]
                added = members[0].ops[row] == NULL
                reason = min(found, key=bool) if added else next((why for why in found if why), "")
                mask[row, column] = not reason
                if reason:
                    reasons[row][op] = reason
        self.why.append(reasons)
        return mask

    def _forbidden(self, block: Block, index: int, op: str) -> str:
        """Why an operation may not stand there: rule, shape or budget; empty where it may."""
        target, term = block.terms[index]
        if op not in OPS or OPS[op].extra:
            return "rule"
        site = term.site
        if term.op == NULL:
            if op != SKIP:
                return "rule"
            older = block.inputs[term.source]
            return "" if older is not None and _fits(block, target, term.source) else "shape"
        if op == NULL:
            return ""
        if site is None or term.op == SKIP:
            return "rule"
        if not RULES[self.rule](OPS[term.op], OPS[op], site.place):
            return "rule"
        made = forms(site, op)
        if made == forms(site, site.op) or (op == SKIP and made and site.form.kernel == 1):
            return "shape"  # it is one already
        if self.strict:
            old, new = (site_cost(site, name, self.batch, self.traced.parts) for name in (site.op, op))
            if new[0] > old[0] or new[1] > old[1]:
                return "budget"
        return ""

    def _keep_connected(self, number: int, mask: Mask) -> None:
        """Forbid what by itself would cut an output off."""
        for row, column in zip(*np.nonzero(mask), strict=True):
            changed = self.before[number].copy()
            changed[row] = column
            if not self.connected(number, changed):
                mask[row, column] = False
                self.why[number][row][self.ops[column]] = "connection"

    # What a row means.

    def member_ops(self, number: int, row: Row, block: Block, fits: Sequence[bool]) -> tuple[str, ...]:
        """The operations of one block: what is not changed keeps its own, a shortcut stands where it fits."""
        return tuple(
            own if new == old or (own == NULL and not fit) else self.ops[new]
            for own, old, new, fit in zip(block.ops, self.before[number].tolist(), row.tolist(), fits, strict=True)
        )

    def block_ops(self, rows: Sequence[Row]) -> list[tuple[str, ...]]:
        """The operations of every block."""
        found: list[tuple[str, ...]] = [()] * len(self.blocks)
        for number, (group, row) in enumerate(zip(self.groups, rows, strict=True)):
            for index in group:
                block = self.blocks[index]
                found[index] = self.member_ops(number, row, block, self.fits[index])
        return found

    def connected(self, number: int, row: Row) -> bool:
        """Whether every output of the group's blocks still gets something, and what must be read is."""
        return self._looked_up(number, row)[1]

    def cost(self, number: int, row: Row) -> NDArray[np.float64]:
        """Parameters, multiply-adds and bytes made of what is alive in a group's blocks."""
        return self._looked_up(number, row)[0]

    def reads(self, number: int, row: Row) -> list[set[int]]:
        """Which of their two inputs the blocks of a group read, for each kind of them."""
        return self._looked_up(number, row)[2]

    def gone(self, rows: Sequence[Row]) -> set[int]:
        """Groups of which no block is left, since nothing reads what they give."""
        alive, waiting = set[int](), list(self.last)
        while waiting:
            index = waiting.pop()
            if index not in alive:
                alive.add(index)
                number, kind = self.member[index]
                for source in self.reads(number, rows[number])[kind]:
                    waiting += self.behind[index][source]
        return {number for number, group in enumerate(self.groups) if alive.isdisjoint(group)}

    def _looked_up(self, number: int, row: Row) -> tuple[NDArray[np.float64], bool, list[set[int]]]:
        """Cost and connection of a row, and the inputs that are read, which is asked for again and again."""
        key = number, row.tobytes()
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            total, connected, inputs = np.zeros(3), True, list[set[int]]()
            for one in self.alike[number]:
                live, whole = one.block.alive(self.member_ops(number, row, one.block, one.fits))
                total += one.costs[np.flatnonzero(live), row[live]].sum(axis=0)
                read = {term.source for (_, term), alive in zip(one.block.terms, live, strict=True) if alive}
                connected &= whole and all(source in read for source, needed in enumerate(one.needs) if needed)
                inputs.append(read & {0, 1})
            self._known[key] = total, connected, inputs
        return self._known[key]

    def one_further(self, number: int, row: Row) -> list[tuple[Row, NDArray[np.float64]]]:
        """The rows that one further decision leads to, with their cost.

        One that would cut an output off comes with the return of a term that was dropped.
        """
        key = number, row.tobytes()
        if key not in self._next:
            if len(self._next) >= MOST_NEXT:
                self._next.clear()
            before, null = self.before[number], self.ops.index(NULL)
            dropped = np.flatnonzero((row == null) & (before != null))
            found: list[Row] = []
            for index, column in zip(*np.nonzero(self.masks[number]), strict=True):
                if column == row[index]:
                    continue
                changed = row.copy()
                changed[index] = column
                if self.connected(number, changed):
                    found.append(changed)
                    continue
                for other in dropped:
                    again = changed.copy()
                    again[other] = before[other]
                    if other != index and self.connected(number, again):
                        found.append(again)
            self._next[key] = [(one, self.cost(number, one)) for one in found]
        return self._next[key]

    def _alike(self, number: int) -> list[_Alike]:
        found: dict[tuple[bool, ...], _Alike] = {}
        for index in self.groups[number]:
            block = self.blocks[index]
            fits = self.fits[index]
            costs = np.zeros((len(fits), len(self.ops), 3))
            for row, (_, term) in enumerate(block.terms):
                if (site := term.site) is None:
                    continue
                current = self.before[number][row]
                for column in np.flatnonzero(self.masks[number][row]):
                    op = site.op if column == current else self.ops[column]
                    if op == NULL:
                        continue
                    params, madds = site_cost(site, op, self.batch, self.traced.parts)
                    made = value(site.output)
                    size = made.numel() * made.element_size() if forms(site, op) else 0
                    costs[row, column] = params, madds, size
            needs = self._needs(block)
            key = (block.inputs[0] is None, *fits, *needs)
            total = found[key].costs + costs if key in found else costs
            found[key] = _Alike(block, fits, needs, total)
            self.member[index] = number, list(found).index(key)
        return list(found.values())

    def _order(self) -> tuple[set[int], list[tuple[set[int], set[int]]]]:
        """The blocks that lead to the output with no other between, and per block those that lead so to its inputs."""
        owner = {node: index for index, block in enumerate(self.blocks) for item in block.items for node in item.nodes}
        before: dict[fx.Node | None, set[int]] = {None: set()}
        for node in self.traced.graph.nodes:
            read = (before[one] for one in node.all_input_nodes)
            before[node] = {owner[node]} if node in owner else set().union(*read)
        last = set().union(*(before[node] for node in self.traced.graph.nodes if node.op == "output"))
        behind = [(before[block.inputs[0]], before[block.inputs[1]]) for block in self.blocks]
        return last, [(one - {index}, other - {index}) for index, (one, other) in enumerate(behind)]

    def _needs(self, block: Block) -> tuple[bool, ...]:
        """Per node of a block, whether something of it must go on reading it: what was learned goes out that way."""
        own = {node for item in block.items for node in item.nodes}
        live, _ = block.alive(block.ops)
        read = {term.source for (_, term), alive in zip(block.terms, live, strict=True) if alive}
        given = [*block.inputs, *(None if node.item is None else node.item.output for node in block.nodes)]
        ways = [None if one is None else self.way_out.get(one) for one in given]
        return tuple(number in read and way in own for number, way in enumerate(ways))

    # The policy's answer.

    def answer(self, mode: str = "greedy", seed: int = 0) -> list[Row]:
        """The most likely transitions, or drawn ones; connected, and at least one of them a change."""
        if not self.groups:
            return []
        if mode == "greedy":
            drawn = self.transitions.greedy()
        else:
            drawn = self.transitions.sample(1, torch.Generator().manual_seed(seed))[0]
        rows = [self.repaired(number, row) for number, row in enumerate(self.split(drawn.numpy()))]
        if mode == "greedy" and not self.changes(rows):
            rows = self._one_change(rows)
        return rows

    def preferences(self, mode: str = "greedy", seed: int = 0) -> list[Table]:
        """What a descent prefers: the log-probabilities, or with Gumbel noise, which draws from them."""
        return self.log_probs if mode == "greedy" else perturbed(self.log_probs, np.random.default_rng(seed))

    def repaired(self, number: int, row: Row) -> Row:
        """The row with its least likely changes taken back until every output gets something; harmless ones return."""
        if self.connected(number, row):
            return row
        before, drawn, row = self.before[number], row, row.copy()
        changed = np.flatnonzero(row != before)[::-1]
        likely = self.log_probs[number][changed, row[changed]]
        order = changed[np.argsort(likely, kind="stable")].tolist()
        undone: list[int] = []
        while not self.connected(number, row):
            undone.append(order[len(undone)])
            row[undone[-1]] = before[undone[-1]]
        for index in reversed(undone[:-1]):
            row[index] = drawn[index]
            if not self.connected(number, row):
                row[index] = before[index]
        return row

    def _one_change(self, rows: list[Row]) -> list[Row]:
        """The most likely single change; a change of an operation before a shortcut."""
        best: tuple[bool, float, int, int, int] | None = None
        for number, mask in enumerate(self.masks):
            for index, column in zip(*np.nonzero(mask), strict=True):
                if column == self.before[number][index]:
                    continue
                site = self.first[number].terms[index][1].site is not None
                key = (site, float(self.log_probs[number][index, column]), -number, -int(index), -int(column))
                best = key if best is None or key > best else best
        if best is None:
            return rows
        rows = [row.copy() for row in rows]
        rows[-best[2]][-best[3]] = -best[4]
        return rows

    def log_prob(self, rows: Sequence[Row]) -> float:
        """Log-probability of the decisions."""
        return float(
            sum(table[np.arange(len(row)), row].sum() for table, row in zip(self.log_probs, rows, strict=True))
        )

    # What a person is told.

    def changes(self, rows: Sequence[Row]) -> list[SiteChange]:
        """What differs, block by block, and what went with it."""
        found = []
        owner = {index: number for number, group in enumerate(self.groups) for index in group}
        for index, (block, ops) in enumerate(zip(self.blocks, self.block_ops(rows), strict=True)):
            if ops == block.ops:
                continue
            live, _ = block.alive(ops)
            number = owner[index]
            for place, (_, term) in enumerate(block.terms):
                before, after = term.op, ops[place]
                if before == after and not (term.site is not None and not live[place]):
                    continue
                gone = before == after or (not live[place] and after != NULL)
                if gone and before == NULL:
                    continue
                likely = 1.0 if gone else float(np.exp(self.log_probs[number][place, rows[number][place]]))
                found.append(SiteChange(block.edge_name(place), before, NULL if gone else after, likely))
        return found

    def probabilities(self) -> dict[str, dict[str, float]]:
        """Per decision of every block, the operations that could be chosen."""
        found = {}
        for number, group in enumerate(self.groups):
            for index in group:
                for place in range(len(self.before[number])):
                    allowed = np.flatnonzero(self.masks[number][place])
                    table = {self.ops[op]: float(np.exp(self.log_probs[number][place, op])) for op in allowed}
                    found[self.blocks[index].edge_name(place)] = table
        return found

    def masked(self) -> dict[str, dict[str, str]]:
        """Per decision of every block, the operations that could not be chosen, and why."""
        return {
            self.blocks[index].edge_name(place): dict(reasons)
            for number, group in enumerate(self.groups)
            for index in group
            for place, reasons in enumerate(self.why[number])
        }


def perturbed(tables: Sequence[Table], generator: np.random.Generator, temperature: float = 1.0) -> list[Table]:
    """Preferences with Gumbel noise: the most preferred of each is a draw from their softmax."""
    return [table / temperature + generator.gumbel(size=table.shape) for table in tables]


# Budgets.


def within(
    problem: Problem, preferences: Sequence[Table], before: Cost, limits: Mapping[str, float]
) -> tuple[fx.GraphModule, list[Row]]:
    """The module built within the limits by the most preferred changes that it takes.

    What is counted is the most that a result can cost: a part of a block that nobody reads any more goes too, and only
    the built module shows it. So every result is built and measured, and counting goes on from there. Where no way
    leads down from the module as it is, one from the policy's own answer may. Where something went that was not
    counted, and for peak memory, which hangs on one place, some changes may turn out not to be needed: these are given
    back.
    """
    nearest: Cost | None = None

    def build(rows: Sequence[Row]) -> Built:
        made = rewrite(problem.traced, problem.blocks, problem.block_ops(rows))
        found = module_cost(made, problem.traced.example, latency="latency" in limits)
        return Built(made, found, [name for name in limits if figures_of(found)[name] > limits[name]])

    for start in (problem.before, problem.answer()):
        descent = Descent(problem, start, before, limits, preferences)
        while True:
            made, found, over = build(descent.rows)
            went = descent.calibrate(found)
            if not over:
                timed = "latency" in limits  # which differs from time to time
                if not timed and ("memory" in limits or went) and descent.give_back(build):
                    made, _, _ = build(descent.rows)
                return made, descent.rows
            nearest = found if nearest is None else min(nearest, found, key=lambda cost: excess(cost, limits))
            counted = [name for name in over if name in COUNTED]
            if not (descent.count_down() if counted else descent.measured_down(over, found)):
                break
    assert nearest is not None
    less = "keep less, or decide block by block (share_blocks=False)" if problem.shared else "or keep less"
    raise unreachable(before, limits, nearest, "module", f"Raise it, {less}")


class Built(NamedTuple):
    """A module, what it costs, and the limits that it is over."""

    module: fx.GraphModule
    cost: Cost
    over: list[str]


class _Steps(NamedTuple):
    """Further changes of a group that save something: what each saves, the preference it loses, the row it leads to."""

    saved: NDArray[np.float64]
    lost: NDArray[np.float64]
    rows: list[Row]


class Descent:
    """Changes of some rows, one at a time: the least preference lost for what is saved."""

    def __init__(
        self,
        problem: Problem,
        rows: Sequence[Row],
        before: Cost,
        limits: Mapping[str, float],
        preferences: Sequence[Table],
    ):
        self.problem, self.rows, self.preferences = problem, list(rows), preferences
        self.before, self.limits = before, limits
        self.costs = [problem.cost(number, row) for number, row in enumerate(self.rows)]
        originals = [problem.cost(number, row) for number, row in enumerate(problem.before)]
        counted = _left(originals, problem.gone(problem.before))
        self.fixed = np.array([before.params, before.madds, 0.0]) - counted * [1, 1, 0]

    @property
    def total(self) -> NDArray[np.float64]:
        """Parameters, multiply-adds and bytes made."""
        return self.fixed + _left(self.costs, self.problem.gone(self.rows))

    def calibrate(self, found: Cost) -> bool:
        """Count on from what the built module really costs; whether that is less than was counted."""
        missing = np.array([found.params - self.total[0], found.madds - self.total[1], 0.0])
        self.fixed += missing
        return bool((missing < 0).any())

    def over(self) -> list[str]:
        figures = dict(zip(COUNTED, self.total[:2], strict=True))
        return [name for name in figures if figures[name] > self.limits.get(name, float("inf"))]

    def count_down(self) -> bool:
        """Until parameters and multiply-adds are within their limits; False where nothing is left to save."""
        saved = False
        own = np.maximum([self.before.params, self.before.madds, 1], 1)
        while over := self.over():
            weights = np.array([name in over for name in COUNTED] + [False]) / own
            limits = np.array([self.limits[name] if name in over else 0.0 for name in COUNTED] + [0.0])
            done = functools.partial(lambda over: self.over() != over, over)
            if not self._step_until(weights, float(weights @ limits), done):
                return saved
            saved = True
        while self._soften():
            pass
        return saved

    def measured_down(self, over: Sequence[str], found: Cost) -> bool:
        """Save some of what memory and latency hang on; False where nothing is left to save.

        Half of what is missing at a time: they do not fall as what is counted does.
        """
        total, figures = np.maximum(self.total, 1), figures_of(found)
        weights = np.array([0.0, ("latency" in over) / total[1], 1.0 / total[2]])
        missing = max(1 - self.limits[name] / figures[name] for name in over)
        goal = float(weights @ self.total) - max(REMEASURE, missing / 2) * float(weights @ total)
        return self._step_until(weights, goal, lambda: float(weights @ self.total) <= goal)

    def _step_until(self, weights: NDArray[np.float64], goal: float, done: Callable[[], bool]) -> bool:
        """Take the best changes one after the other; False where not one was left.

        What a change saves beyond the goal counts for nothing.
        """
        taken = False
        steps = [self._steps(number, weights) for number in range(len(self.rows))]
        while True:
            missing = max(float(weights @ self.total) - goal, 1e-12)
            best, number, place = np.inf, -1, -1
            for index, one in enumerate(steps):
                if len(one.rows):
                    prices = one.lost / np.minimum(one.saved, missing)
                    least = int(prices.argmin())
                    if prices[least] < best:
                        best, number, place = float(prices[least]), index, least
            if number < 0:
                return taken
            gone = self.problem.gone(self.rows)
            self._take(number, steps[number].rows[place])
            taken = True
            if done():
                return True
            for index in {number} | (gone ^ self.problem.gone(self.rows)):
                steps[index] = self._steps(index, weights)

    def _take(self, number: int, row: Row) -> None:
        self.rows[number], self.costs[number] = row, self.problem.cost(number, row)

    def _steps(self, number: int, weights: NDArray[np.float64]) -> _Steps:
        """The changes of a group that save something."""
        row, table, problem = self.rows[number], self.preferences[number], self.problem
        terms = np.arange(len(row))
        own = table[terms, row]
        found: list[tuple[float, float, Row]] = []
        gone = problem.gone(self.rows)
        spent = _left(self.costs, gone)
        for changed, cost in problem.one_further(number, row):
            saved = 0.0 if number in gone else float(weights @ (self.costs[number] - cost))
            if problem.reads(number, changed) != problem.reads(number, row):  # others may go, or come back
                rows, costs = list(self.rows), list(self.costs)
                rows[number], costs[number] = changed, cost
                saved = float(weights @ (spent - _left(costs, problem.gone(rows))))
            if saved > 0:
                found.append((saved, float((own - table[terms, changed]).sum()), changed))
        return _Steps(
            np.array([saved for saved, _, _ in found]), np.array([lost for _, lost, _ in found]), [r for *_, r in found]
        )

    def _soften(self) -> bool:
        """Take one change back, or else make one milder, the least preferred first; False where none is left to."""
        places = self._changed()
        taken_back = [(number, index, int(self.problem.before[number][index])) for number, index in places]
        softer = [
            (number, index, op)
            for number, index in places
            for op in preferred(
                self.preferences[number][index], self.problem.masks[number][index], self.rows[number][index]
            )
        ]
        for number, index, op in taken_back + softer:
            row, spent = self.rows[number], self.costs[number]
            other = row.copy()
            other[index] = op
            self._take(number, other)
            if not self.over() and self.problem.connected(number, other):
                return True
            self.rows[number], self.costs[number] = row, spent
        return False

    def give_back(self, build: Callable[[Sequence[Row]], Built]) -> bool:
        """Take back all changes without which what is built is still within the limits; whether there were any.

        The least preferred first, many at once, and where that is too much their halves: what is built takes long to
        measure. What is too much by what is counted already is not built.
        """
        given = False
        while self._give_back(self._changed(), build):
            given = True
        return given

    def _give_back(self, places: Sequence[tuple[int, int]], build: Callable[[Sequence[Row]], Built]) -> bool:
        """Whether some changes at these places were taken back."""
        if not places:
            return False
        rows, costs = list(self.rows), list(self.costs)
        for number in {number for number, _ in places}:
            row = self.rows[number].copy()
            for index in [index for other, index in places if other == number]:
                row[index] = self.problem.before[number][index]
            self._take(number, row)
        connected = all(self.problem.connected(number, self.rows[number]) for number, _ in places)
        if connected and not self.over() and not (built := build(self.rows)).over:
            self.calibrate(built.cost)
            return True
        self.rows, self.costs = rows, costs
        half = len(places) // 2
        return half > 0 and self._give_back(places[:half], build) | self._give_back(places[half:], build)

    def _changed(self) -> list[tuple[int, int]]:
        """Groups and places of changes, the least preferred first."""
        found = []
        for number, row in enumerate(self.rows):
            for index in np.flatnonzero(row != self.problem.before[number]).tolist():
                table = self.preferences[number][index]
                found.append((float(table[row[index]] - table[self.problem.before[number][index]]), number, index))
        return [(number, index) for _, number, index in sorted(found)]


def _left(costs: Sequence[NDArray[np.float64]], gone: Set[int]) -> NDArray[np.float64]:
    """What groups cost in all, without those that are gone."""
    return sum((cost for number, cost in enumerate(costs) if number not in gone), np.zeros(3))


def _known(ops: Sequence[str], known: Sequence[str]) -> list[str]:
    """Operations by names that a policy knows: of another kernel where it does not know one."""
    found = []
    for op in ops:
        if op in known:
            found.append(op)
            continue
        kind = op.rsplit("_", 1)[0]
        near = [name for name in known if name.rsplit("_", 1)[0] == kind]
        if not near:
            raise SettingError(
                f"the policy does not know the operation {op}, nor one like it: it was learned for another space"
            )
        found.append(min(near, key=lambda name: abs(OPS[name].kernel - OPS[op].kernel)))
    return found


def _fits(block: Block, target: int, source: int) -> bool:
    """Whether a skip can join two nodes as they are, from what is there before the block begins."""
    given = block.inputs[source] if source < 2 else None
    if given is None or not isinstance(value(given), Tensor):
        return False
    begins = min(node for item in block.items for node in item.nodes)
    return given < begins and shape(given) == node_shape(block, target)


def _shortcut_fits(block: Block) -> tuple[bool, ...]:
    """Per term, whether it is empty and a shortcut can be put in."""
    return tuple(term.op == NULL and _fits(block, target, term.source) for target, term in block.terms)
