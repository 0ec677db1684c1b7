"""An architecture of cells in a network as a subject: each free edge is a decision."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from natpp.arch.blueprints import drawing
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.arch.groups import cell_groups
from natpp.arch.networks import Setting
from natpp.arch.rules import Mask, changes, edge_names, masks
from natpp.core.blueprint import Blueprint, Spent
from natpp.core.budget import no_dearer
from natpp.core.decision import Change, Decision, Option, Plan
from natpp.core.measures import Cost
from natpp.core.memory import peak_memory
from natpp.core.solve import repair, solve
from natpp.core.subject import Preferences, Row, Table
from natpp.nets.network import network_cost
from natpp.nets.policy import Encoded, edge_masks, encode
from natpp.registry import OPS
from natpp.subjects.rows import Rows, options_of

MANY = 4  # from this many plans on, costing them at once is faster
Living = tuple[tuple[int, ...], bool]  # living figures, and whether the head is connected to the image


@dataclass(frozen=True)
class Frame:
    """What a change to an architecture must respect: the rule, the network, and whether the budget is strict."""

    rule: str
    where: Setting
    strict: bool = True
    only: tuple[str, ...] = ()
    """operations that may be chosen; empty: all"""


def cells_of(archs: Iterable[Architecture], frame: Frame, ops: Sequence[str]) -> list[Cells]:
    """Architectures as subjects; those with the same graph share a cache of costs."""
    shared: dict[object, dict[bytes, Living]] = {}
    return [Cells(arch, frame, ops, shared.setdefault(arch.topology, {})) for arch in archs]


class Cells(Rows):
    """An architecture in a network: what each of its free edges may become under a rule.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> from natpp.subjects.cells import Cells, Frame
        >>> cells = Cells(natpp.load("darts"), Frame("nat++", setting("cifar")), list(natpp.registry.OPS))
        >>> cells.decisions[0].name, [option.value for option in cells.decisions[0].options if option.allowed][:2]
        ('normal 0 → 2', ['sep_conv_3x3', 'dil_conv_3x3'])
        >>> cells.living((0,) * 16) == {"params": 3349342, "madds": 528359040}
        True
    """

    name = "architecture"
    notes = ()

    def __init__(self, arch: Architecture, frame: Frame, ops: Sequence[str], known: dict[bytes, Living] | None = None):
        """`known` caches the costs of rows; architectures with the same graph may share it."""
        self.arch, self.frame, self.ops = arch, frame, tuple(ops)
        self.encoded: Encoded = encode(arch, self.ops)
        self.before: Row = self.encoded.ops
        self.positions = self.encoded.places
        self.mask = self._mask(strict=frame.strict)
        self.loose = any(graph.concat is None for _, graph in arch.cells())  # its widths depend on the plan
        self._known = {} if known is None else known
        self._own_costs: dict[bool, Cost] = {}

    def _mask(self, *, strict: bool) -> Mask:
        """Which operations each free edge may get, (edges, ops)."""
        found = edge_masks(masks(self.arch, self.frame.rule, self.frame.where, strict=strict), self.encoded)
        found = found[:, self.columns]  # raises for an operation that is not registered
        if self.frame.only:
            own = np.arange(len(self.ops)) == self.before[:, None]
            found &= own | [op in self.frame.only for op in self.ops]
        return found

    @functools.cached_property
    def columns(self) -> Row:
        """The numbers of the operations in the registry."""
        names = {name: column for column, name in enumerate(OPS)}
        return np.array([names[OPS[op].name] for op in self.ops])

    @functools.cached_property
    def numbers(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        """Per decision, the operation of each option as its number in `ops`; the original comes first."""
        return options_of(self.before.tolist(), len(self.ops))

    @functools.cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each free edge, cell by cell."""
        by_rule = self._mask(strict=False) if self.frame.strict else self.mask
        names = edge_names(self.arch)
        found = []
        for (kind, index), numbers, rule, both in zip(self.positions, self.numbers, by_rule, self.mask, strict=True):
            why = ["" if both[one] else "cost" if rule[one] else self._ruled_out(self.ops[one]) for one in numbers]
            options = tuple(Option(self.ops[one], said) for one, said in zip(numbers, why, strict=True))
            found.append(Decision(names[kind][index], "operation", options))
        return tuple(found)

    def _ruled_out(self, op: str) -> str:
        return "ops" if self.frame.only and op not in self.frame.only else "rule"

    @property
    def given(self) -> Architecture:
        """The architecture."""
        return self.arch

    @property
    def alike(self) -> Hashable:
        """Its graph: what a row costs and computes depends on nothing else."""
        return self.arch.topology

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every free edge by its name."""
        return [(decision.name, number) for number, decision in enumerate(self.decisions)]

    # Costs.

    @functools.cached_property
    def blueprint(self) -> Blueprint:
        """The network by these decisions; with loose ends, at the widths of the unchanged architecture."""
        options = [[self.ops[one] for one in numbers] for numbers in self.numbers]
        return drawing(self.arch, self.frame.where, options).blueprint

    def count(self, rows: Sequence[Row]) -> None:
        """Compute the cost of many rows at once, so that `living` and `fits` can look them up."""
        new = {key: row for row in rows if (key := row.tobytes()) not in self._known}
        if len(new) >= MANY and not self.loose:
            plans = self.columns[np.stack(list(new.values()))]
            figures, connected = drawing(self.arch, self.frame.where).blueprint.costs(plans)
            found = zip(map(tuple, figures.tolist()), connected.tolist(), strict=True)
            self._known.update(zip(new, found, strict=True))

    def living(self, plan: Plan) -> dict[str, float]:
        """Living parameters and multiply-adds."""
        return dict(zip(self.blueprint.figures, self.spent(self.row(plan))[0], strict=True))

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory."""
        return peak_memory(*self._drawn(self.row(plan)))

    def fits(self, plan: Plan) -> bool:
        """Whether a plan meets the budget; always true unless it is strict.

        Under a strict budget, no living cost may rise, and a head that the image reaches must stay reached.
        """
        return not self.frame.strict or no_dearer(self._own, self.spent(self.row(plan)))

    def tried(self, changes: Mapping[int, int]) -> dict[str, float] | None:
        """Living parameters and multiply-adds with some decisions changed; None if that does not fit."""
        plan = tuple(changes.get(number, 0) for number in range(len(self.decisions)))
        return self.living(plan) if self.fits(plan) else None

    def own_cost(self, *, latency: bool = False) -> Cost:
        """What the architecture costs unchanged; it is measured once."""
        if latency not in self._own_costs:
            self._own_costs[latency] = network_cost(self.arch, self.frame.where, latency=latency)
        return self._own_costs[latency]

    def made(self, plan: Plan, *, latency: bool = False) -> tuple[Architecture, Cost]:
        """The architecture under a plan, and what it costs."""
        after = self.apply(plan)
        return after, network_cost(after, self.frame.where, latency=latency)

    @functools.cached_property
    def _own(self) -> Living:
        return self.spent(self.before)

    def spent(self, row: Row) -> Living:
        """Living parameters and multiply-adds of a row, and whether the image reaches the head."""
        key = row.tobytes()
        if key not in self._known:
            blueprint, drawn = self._drawn(row)
            spent: Spent = blueprint.spent(drawn)
            self._known[key] = spent.living, spent.connected
        return self._known[key]

    def _drawn(self, row: Row) -> tuple[Blueprint, Plan]:
        """A blueprint with the widths of a row, and the row as a plan of that blueprint."""
        if not self.loose:
            return drawing(self.arch, self.frame.where).blueprint, tuple(self.columns[row].tolist())
        _, blueprint, _, plan = drawing(self.with_row(row), self.frame.where)
        return blueprint, plan

    # Plans that keep to the rule and the budget.

    def repaired(self, plan: Plan, worth: Sequence[float]) -> Plan:
        """Under a strict budget: the plan with its least worthy changes undone until it fits.

        Then changes that still fit are restored, the worthiest first. A plan that fits is returned unchanged.
        """
        return repair(plan, (0,) * len(plan), worth, self.fits)

    def within(self, plan: Plan, preferences: Preferences, limits: Mapping[str, float]) -> Plan:
        """The plan after further changes until it meets the limits."""
        own = self.own_cost(latency="latency" in limits)

        def measure(one: Plan) -> Cost:
            return self.made(one, latency="latency" in limits)[1] if any(one) else own

        return solve(self, plan, preferences, limits, measure=measure)

    def chosen(
        self, plan: Plan, table: Table, limits: Mapping[str, float], noise: np.random.Generator | None = None
    ) -> Plan:
        """A policy's answer, greedy or sampled, after further changes until it meets the limits."""
        return self.within(plan, self.preferences(table), limits)

    def at_least_one(self, plan: Plan, table: Table) -> Plan:
        """The plan itself: a policy may prefer the unchanged architecture."""
        return plan

    # What it computes.

    @property
    def seen(self) -> int:
        """All decisions: a policy sees every free edge."""
        return len(self.before)

    def extended(self, table: Table) -> Table:
        """A policy's log-probabilities as they are."""
        return table

    def graphs(self) -> list[tuple[Encoded, Mask]]:
        """What a policy sees: all cells in one graph."""
        return [(self.encoded, self.mask)]

    def key(self, plan: Plan) -> Hashable:
        """What the architecture computes."""
        return self.apply(plan).key

    def candidate(self, plan: Plan) -> Architecture:
        """The architecture under a plan."""
        return self.apply(plan)

    def apply(self, plan: Plan) -> Architecture:
        """The architecture with other operations."""
        return self.with_row(self.row(plan))

    def with_row(self, row: Row) -> Architecture:
        """The architecture with these operations on its free edges."""
        ops = {kind: list(graph.ops) for kind, graph in self.arch.cells()}
        for (kind, number), op in zip(self.positions, row.tolist(), strict=True):
            ops[kind][number] = self.ops[op]
        return self.arch.with_ops(ops)

    def changes(self, plan: Plan, chances: Sequence[Sequence[float]] | None = None) -> tuple[Change, ...]:
        """The edges that changed, with the probability of each change if those of all options are known."""
        found = changes(self.arch, self.apply(plan))
        if chances is None:
            return tuple(found)
        likely = {one.name: own[option] for one, own, option in zip(self.decisions, chances, plan, strict=True)}
        return tuple(replace(change, probability=likely[change.name]) for change in found)

    def told(self, plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
        """For JSON: its cells before and after."""
        after = self.apply(plan)
        return {
            "before": to_dict(self.arch),
            "after": to_dict(after),
            "groups": cell_groups(self.arch, after, self.frame.where, self.ops),
        }
