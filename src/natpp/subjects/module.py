"""A traced module as a subject: its decisions are the terms of its blocks, then those about nodes anywhere in it.

Blocks that are alike share their decisions, as in the paper, or each has its own. An option is allowed if the rule
allows it at the site's place, shapes match, it costs no more than the operation it replaces, and the network stays
connected: every output of a block that is read has an input, and the output of every learned layer outside of blocks
(attention, squeeze-excite) reaches the network's output on some path.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from natpp.arch.decisions import Decisions
from natpp.arch.graph import NULL
from natpp.arch.rules import Mask
from natpp.core.blueprint import Blueprint
from natpp.core.decision import Change, Decision, Plan
from natpp.core.measures import Cost
from natpp.core.solve import repair
from natpp.core.subject import Candidate, Preferences, Row, Table
from natpp.core.tally import Tally
from natpp.decisions.base import NodeKind, Spot, elsewhere, kind_of, options
from natpp.decisions.edits import block_edits, node_swaps
from natpp.decisions.term import room_for_shortcut
from natpp.fx.blocks import Term, find_blocks, grouped
from natpp.fx.rewrite import Shared, rewrite
from natpp.fx.sites import called_twice, own_modes
from natpp.fx.traced import Traced
from natpp.nets.measure import module_cost
from natpp.nets.policy import Encoded, encode_cells
from natpp.nets.seen import Seen
from natpp.registry import KINDS
from natpp.subjects.module_apart import Apart, Choice
from natpp.subjects.module_blueprint import module_blueprint, removed, shaped_nodes
from natpp.subjects.module_budget import within
from natpp.subjects.module_changes import changes_of, in_blocks
from natpp.subjects.module_told import told_of
from natpp.subjects.rows import Rows, known, options_of, perturbed

Key = tuple[tuple[str, ...], ...]  # per block, the operations that are alive; then other changes, if there may be any
UNSEEN = -100.0  # log-probability of a change that a policy does not see: it comes last
MOST_KNOWN = 1 << 18  # cached plans of groups: whether they are connected
MOST_NEXT = 1 << 14  # cached plans of groups: their next changes


class Module(Rows):
    """A traced module: what each of its terms may become.

    Examples:
        >>> from natpp.fx.trace import trace
        >>> from natpp.subjects.module import Module
        >>> module = Module(trace(natpp.zoo.network("resnet20"), torch.randn(1, 3, 32, 32)))
        >>> one = module.decisions[3]
        >>> one.name, one.kind, [option.value for option in one.options if option.allowed][:3]
        ('conv1', 'operation', ['conv_3x3', 'conv_1x1', 'sep_conv_3x3'])
        >>> module.apply((0,) * len(module.decisions))(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    name = "module"

    def __init__(self, traced: Traced, ask: Decisions | None = None):
        self.traced, self.ask = traced, (ask or Decisions()).full()
        self.ops = self.ask.columns
        self.blocks = find_blocks(traced, self.ask.keep)
        self.groups = grouped(self.blocks, share=bool(self.ask.share_blocks))
        self.first = [self.blocks[group[0]] for group in self.groups]
        ends = np.cumsum([0, *(len(block.terms) for block in self.first)]).tolist()
        self.seen: int = ends[-1]
        """how many decisions a policy sees: those about terms, which come first"""
        self.elsewhere = elsewhere(traced, self.ask, [name for name, _ in self._terms()])
        ends += range(ends[-1] + 1, ends[-1] + 1 + len(self.elsewhere))
        self.parts = [range(start, end) for start, end in pairwise(ends)]
        """per group of blocks, the numbers of its decisions; every other decision is a part of its own"""
        self.part_of = [number for number, part in enumerate(self.parts) for _ in part]
        present = [name for block in self.first for name in known(block.ops, self.ops)]
        own_ops, count = [self.ops.index(name) for name in present], len(self.ops)
        others = [place.decision for place in self.elsewhere]
        self.before: Row = np.array([*own_ops, *(0 for _ in others)], dtype=np.int64)
        self.numbers = (*options_of(own_ops, count), *(tuple(range(len(one.options))) for one in others))
        found = [*self._found(present), *others]
        self.choices = self._choices(found)
        self.shaped = shaped_nodes(traced, self.elsewhere, self.seen)
        self.apart = Apart(self.blocks, self.choices, self.elsewhere, self.seen)
        self.blueprint: Blueprint = module_blueprint(
            traced, self.blocks, self.choices, self.shaped, self.apart.tables(found)
        )
        self.tally = Tally(self.blueprint)
        """of the module as it is"""
        self.decisions: tuple[Decision, ...] = tuple(self._connected(n, one) for n, one in enumerate(found))
        self.mask: Mask = np.zeros((len(found), max([count, *(len(one.options) for one in others)])), dtype=bool)
        for row, numbers, one in zip(self.mask, self.numbers, self.decisions, strict=True):
            row[[numbers[option] for option in one.allowed]] = True
        self._whole: dict[tuple[int, Plan], bool] = {}
        self._next: dict[tuple[int, Plan], list[dict[int, int]]] = {}
        self._own_costs: dict[bool, Cost] = traced.found.setdefault("own costs", {})
        self._seen: Seen = traced.found.setdefault("seen", Seen())
        self._last: tuple[Plan | None, Any] = None, None

    # Decisions and options.

    def _found(self, present: Sequence[str]) -> list[Decision]:
        """The decisions, before options that would cut an output off are removed."""
        found = []
        for group, part, block in zip(self.groups, self.parts, self.first, strict=False):
            for index, number in enumerate(part):
                spots = [Spot(self.traced, self.blocks[member], index) for member in group]
                may_be = options(spots, present[number], self.ask)
                found.append(Decision(block.edge_name(index), kind_of(block.terms[index][1]), may_be))
        return found

    def _choices(self, found: Sequence[Decision]) -> list[list[Choice]]:
        """Per block and term, its decision and the operation of each allowed option there.

        An unchanged term keeps its own operation; a shortcut is added only if there is room for it.
        """
        made: list[list[Choice]] = [[] for _ in self.blocks]
        for group, part in zip(self.groups, self.parts, strict=False):
            for member in group:
                block = self.blocks[member]
                for index, (number, own) in enumerate(zip(part, block.ops, strict=True)):
                    kept = own == NULL and not room_for_shortcut(block, index)
                    values = [option.value for option in found[number].options]
                    ops = {one: own if not one or kept else str(values[one]) for one in found[number].allowed}
                    made[member].append(Choice(number, ops))
        return made

    def _connected(self, number: int, decision: Decision) -> Decision:
        """The decision without the options that by themselves would cut an output off."""
        cut = {one for one in decision.allowed if self.tally.tried({number: one}) is None}
        if not cut:
            return decision
        made = (
            replace(option, why_not="connection") if one in cut else option
            for one, option in enumerate(decision.options)
        )
        return replace(decision, options=tuple(made))

    def term(self, number: int) -> Term:
        """The term of a decision, in the first block of its group."""
        part = self.part_of[number]
        return self.first[part].terms[number - self.parts[part].start][1]

    @property
    def given(self) -> nn.Module:
        """The module."""
        return self.traced.module

    @functools.cached_property
    def together(self) -> list[list[int]]:
        """The decisions of each group of blocks with those about nodes inside it only; then every other one alone."""
        found = [list(part) for part in self.parts[: len(self.groups)]]
        inside = [{node for one in group for node in self.blocks[one].inside} for group in self.groups]
        for number, place in enumerate(self.elsewhere, start=self.seen):
            home = next((index for index, nodes in enumerate(inside) if nodes.issuperset(place.nodes)), None)
            if home is None:
                found.append([number])
            else:
                found[home].append(number)
        return found

    @functools.cached_property
    def places(self) -> list[tuple[str, int]]:
        """Every term of every block by its name, group by group, then the other decisions."""
        others = range(self.seen, len(self.decisions))
        return [*self._terms(), *((self.decisions[number].name, number) for number in others)]

    def _terms(self) -> Iterator[tuple[str, int]]:
        start = 0
        for group, block in zip(self.groups, self.first, strict=True):
            yield from ((self.blocks[one].edge_name(at), start + at) for one in group for at in range(len(block.terms)))
            start += len(block.terms)

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        tensors = (*self.given.parameters(), *self.given.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def positions(self) -> tuple[tuple[str, int], ...]:
        """Per decision, the kind of its block and its number there."""
        terms = ((block.kind, index) for block in self.first for index in range(len(block.terms)))
        return *terms, *((one.kind, number) for number, one in enumerate(self.decisions[self.seen :]))

    @property
    def alike(self) -> Hashable:
        """Unique: a row has a meaning in this module only."""
        return id(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was kept whole, and what else a user should know."""
        nothing = [] if self.decisions else ["there is nothing here that natpp can replace"]
        kinds = [KINDS[name] for name in self.ask.kinds]
        kept = [note for kind in kinds if isinstance(kind, NodeKind) for note in kind.notes(self.traced, self.ask)]
        return *self.traced.notes, *called_twice(self.traced), *own_modes(self.traced), *kept, *nothing

    # What plans mean and cost.

    def block_ops(self, plan: Plan) -> list[tuple[str, ...]]:
        """The operations of every block."""
        return [tuple(choice.ops[plan[choice.decision]] for choice in choices) for choices in self.choices]

    def living(self, plan: Plan) -> dict[str, float]:
        """Parameters, multiply-adds and bytes of values, counting only what is alive."""
        return dict(zip(self.blueprint.figures, self.tally.at(plan).cost, strict=True))

    def tried(self, changes: Mapping[int, int]) -> dict[str, float] | None:
        """Parameters, multiply-adds and bytes of values with some decisions changed; None if that does not fit."""
        found = self.tally.tried(changes) if self.apart.allows((0,) * len(self.decisions), changes) else None
        return None if found is None else dict(zip(self.blueprint.figures, found, strict=True))

    def own_cost(self, *, latency: bool = False) -> Cost:
        """The cost of the module, with its peak memory as rewritten by natpp without changes.

        The rewritten code frees every value after its last reader, even those that the module's own Python keeps.
        Otherwise a result would seem to save memory just by being rewritten.
        """
        if latency not in self._own_costs:
            cost = module_cost(self.traced.module, self.traced.example, latency=latency, seen=self._seen)
            _, written = self.built((0,) * len(self.decisions), self.copied)
            least = min(cost.peak_memory_bytes, written.peak_memory_bytes)
            self._own_costs[latency] = replace(cost, peak_memory_bytes=least)
        return self._own_costs[latency]

    def count(self, rows: Sequence[Row]) -> None:
        """Does nothing: the tally updates the cost from plan to plan."""

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory, measured on the built module, since modules may work in place."""
        return self.built(plan, self.copied)[1].peak_memory_bytes

    def fits(self, plan: Plan) -> bool:
        """Whether every value that must be read is read, and no two options exclude each other."""
        return self.tally.tried(dict(enumerate(plan))) is not None and next(self.apart.broken(plan), None) is None

    def whole(self, number: int, part: Plan) -> bool:
        """The same if only one group changes, by the options of its decisions."""
        key = number, part
        if key not in self._whole:
            if len(self._whole) >= MOST_KNOWN:
                self._whole.clear()
            self._whole[key] = self.tally.tried(dict(zip(self.parts[number], part, strict=True))) is not None
        return self._whole[key]

    def one_further(self, number: int, part: Plan) -> list[dict[int, int]]:
        """The single further changes of a group, given its current options.

        A change that would cut an output off is combined with restoring a dropped term.
        """
        key = number, part
        if key not in self._next:
            if len(self._next) >= MOST_NEXT:
                self._next.clear()
            self._next[key] = list(self._further(number, part))
        return self._next[key]

    def _further(self, number: int, part: Plan) -> list[dict[int, int]]:
        start, found = self.parts[number].start, []
        values = [self.decisions[start + one].options[option].value for one, option in enumerate(part)]
        dropped = [one for one, option in enumerate(part) if option and values[one] == NULL]
        for index, present in enumerate(part):
            for option in self.allowed[start + index]:
                if option == present:
                    continue
                changed = (*part[:index], option, *part[index + 1 :])
                if self.whole(number, changed):
                    found.append({start + index: option})
                    continue
                for other in dropped:
                    if other != index and self.whole(number, (*changed[:other], 0, *changed[other + 1 :])):
                        found.append({start + index: option, start + other: 0})
        return found

    @functools.cached_property
    def allowed(self) -> list[list[int]]:
        """Per decision, the options that a plan may pick, in the order of operations."""
        pairs = zip(self.decisions, self.numbers, strict=True)
        return [sorted(one.allowed, key=numbers.__getitem__) for one, numbers in pairs]

    # Plans that keep to the rule and the budget.

    def repaired(self, plan: Plan, worth: Sequence[float]) -> Plan:
        """The plan with its least worthy changes undone until it is connected; those that still fit are restored."""
        found: list[int] = []
        for number, part in enumerate(self.parts):
            own = plan[part.start : part.stop]
            whole = functools.partial(self.whole, number)
            found += repair(own, (0,) * len(own), worth[part.start : part.stop], whole)
        while (pair := next(self.apart.broken(tuple(found)), None)) is not None:
            found[pair[1]] = 0
        return repair(tuple(found), (0,) * len(plan), worth, self.fits)

    def within(self, plan: Plan, preferences: Preferences, limits: Mapping[str, float]) -> Plan:
        """The plan after further changes until it meets the limits."""
        return within(self, (plan,), preferences, self.own_cost(latency="latency" in limits), limits)

    def chosen(
        self, plan: Plan, table: Table, limits: Mapping[str, float], noise: np.random.Generator | None = None
    ) -> Plan:
        """The plan within limits, from the unchanged module or, failing that, from the policy's answer."""
        starts = (0,) * len(plan), plan
        preferences = self.preferences(table if noise is None else perturbed(table, noise))
        return within(self, starts, preferences, self.own_cost(latency="latency" in limits), limits)

    def at_least_one(self, plan: Plan, table: Table) -> Plan:
        """The plan, or the most likely single change if it changes nothing; operations come before shortcuts."""
        if next(in_blocks(self, plan), None) is not None:
            return plan
        found = [
            (self.term(number).site is not None, float(table[number, numbers[option]]), -number, -numbers[option])
            for number, (one, numbers) in enumerate(zip(self.decisions[: self.seen], self.numbers, strict=False))
            for option in one.allowed
            if option
        ]
        row = self.before.copy()
        if found:
            *_, number, op = max(found)
            row[-number] = -op
        return self.plan(row)

    # The rewritten module.

    def apply(self, plan: Plan) -> fx.GraphModule:
        """The module under a plan, with inherited weights."""
        return self.built(plan)[0]

    def built(self, plan: Plan, shared: Shared | None = None, *, latency: bool = False) -> tuple[fx.GraphModule, Cost]:
        """The module under a plan, and its cost, which equals the blueprint's exactly."""
        made = self.rewritten(plan, shared)
        cost = module_cost(made, self.traced.example, latency=latency, seen=self._seen)
        counted = self.blueprint.cost(plan)
        assert counted is not None, "something is cut off"
        assert counted.living[:2] == (cost.params, cost.madds), f"counted {counted.living}, built {cost}"
        self._last = plan, made
        return made, cost

    def written(self, plan: Plan) -> fx.GraphModule:
        """The module under a plan, only to be read: the last one built, if it has this plan."""
        return self._last[1] if self._last[0] == plan else self.rewritten(plan, self.copied)

    def made(self, plan: Plan, *, latency: bool = False) -> tuple[fx.GraphModule, Cost]:
        """The module under a plan, whose parts are copies made once, and its cost."""
        made, cost = self.built(plan, self.copied, latency=latency)
        own = self.own_cost(latency=latency)
        assert not self.ask.strict or (cost.params <= own.params and cost.madds <= own.madds)
        return made, cost

    @functools.cached_property
    def copied(self) -> Shared:
        """One copy of its parts, shared by modules that are only measured and by the result."""
        return Shared(self.traced)

    def rewritten(self, plan: Plan, shared: Shared | None = None) -> fx.GraphModule:
        """The module under a plan, not measured; its parts are its own, or those in `shared`."""
        edits, swaps = block_edits(self.blocks, self.block_ops(plan)), node_swaps(self.elsewhere, plan[self.seen :])
        return rewrite(self.traced, edits, swaps, shared)

    def key(self, plan: Plan) -> Key:
        """What it computes under a plan: per block, the operations that are alive; then what else differs."""
        found = []
        for block, ops in zip(self.blocks, self.block_ops(plan), strict=True):
            live, _ = block.alive(ops)
            found.append(tuple(op if alive else NULL for op, alive in zip(ops, live, strict=True)))
        others = tuple(f"{change.name}: {change.after}" for change in self.other_changes(plan))
        return *found, *([others] if self.elsewhere else [])

    def other_changes(self, plan: Plan) -> list[Change]:
        """The changes that are not about terms of blocks, where their output is used; a policy does not see them."""
        alive, found = self.alive_elsewhere(plan) if self.elsewhere else [], list[Change]()
        for number, option in enumerate(plan[self.seen :], start=self.seen):
            one = self.decisions[number]
            if option and alive[number - self.seen]:
                found.append(Change(one.name, one.kind, one.options[0].value, one.options[option].value))
        return found

    def alive_elsewhere(self, plan: Plan) -> list[bool]:
        """Per decision elsewhere, whether one of its nodes is left and the output depends on it."""
        tally, shaped = self.tally.at(plan), self.blueprint.shaped
        pairs = zip(self.blocks, self.block_ops(plan), strict=True)
        changed = ((term, op) for block, ops in pairs for (_, term), op in zip(block.terms, ops, strict=True))
        gone = {node for term, op in changed for node in removed(term, op)}
        return [
            not gone.issuperset(place.nodes) and any(map(tally.alive, shaped.get(number, ())))
            for number, place in enumerate(self.elsewhere, start=self.seen)
        ]

    def candidate(self, plan: Plan) -> Candidate:
        """The module with a plan, which is built when a scorer needs it."""
        return Candidate(self, plan)

    def changes(self, plan: Plan, chances: Sequence[Sequence[float]] | None = None) -> tuple[Change, ...]:
        """The changes, block by block, and what was removed with them."""
        return changes_of(self, plan, chances)

    def told(self, plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
        """For JSON: its blocks before and after."""
        return told_of(self, plan, changes)

    # What a policy sees.

    def graphs(self) -> list[tuple[Encoded, Mask]]:
        """The first block of every group, as a graph each; what is decided elsewhere is not in it."""
        parts, ops = self.parts[: len(self.groups)], len(self.ops)
        names = [[self.ops[self.before[number]] for number in part] for part in parts]
        pairs = zip(self.first, names, strict=True)
        encoded = [encode_cells([(block.kind, block.with_ops(row))], self.ops) for block, row in pairs]
        return [(one, self.mask[part.start : part.stop, :ops]) for one, part in zip(encoded, parts, strict=True)]

    def extended(self, table: Table) -> Table:
        """A policy's log-probabilities, with rows for what it does not see, which favour no change."""
        found = np.full(self.mask.shape, UNSEEN)
        found[:, 0] = 0.0
        found[: self.seen, : len(self.ops)] = table[: self.seen]
        for number, (decision, _, kind) in enumerate(self.elsewhere, start=self.seen):
            assert kind is not None
            found[number, : len(decision.options)] = UNSEEN * np.array(kind.harm(decision))
        return found
