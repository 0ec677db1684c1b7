"""An architecture of cells in a network as a subject: each free edge is a decision."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natpp.arch.blueprints import drawing
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.arch.groups import cell_groups
from natpp.arch.networks import Setting
from natpp.arch.rules import Mask, edge_names, masks
from natpp.core.blueprint import Blueprint, Spent
from natpp.core.budget import no_dearer
from natpp.core.decision import Change, Decision, Option, Plan
from natpp.core.memory import peak_memory
from natpp.core.solve import Preferences
from natpp.nets.policy import Encoded, edge_masks, encode
from natpp.registry import OPS

Row = NDArray[np.int64]  # one operation for every free edge of an architecture, by its number in a policy
MANY = 4  # from this many plans on, costing them at once is faster


class Cells:
    """An architecture in a network: what each of its free edges may become under a rule.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> from natpp.subjects.cells import Cells
        >>> cells = Cells(natpp.load("darts"), list(natpp.registry.OPS), "nat++", setting("cifar"))
        >>> cells.decisions[0].name, [option.value for option in cells.decisions[0].options if option.allowed][:2]
        ('normal 0 → 2', ['sep_conv_3x3', 'dil_conv_3x3'])
        >>> cells.living((0,) * 16) == {"params": 3349342, "madds": 528359040}
        True
    """

    name = "architecture"

    def __init__(self, arch: Architecture, ops: Sequence[str], rule: str, where: Setting, *, strict: bool = True):
        self.arch, self.ops, self.rule, self.where, self.strict = arch, tuple(ops), rule, where, strict
        self.encoded: Encoded = encode(arch, self.ops)
        self.mask = self._mask(strict=strict)
        self.loose = any(graph.concat is None for _, graph in arch.cells())  # its widths depend on the plan
        self._spent: dict[Plan, tuple[tuple[int, ...], bool]] = {}

    def _mask(self, *, strict: bool) -> Mask:
        """Which operations each free edge may get, (edges, ops)."""
        columns = {name: column for column, name in enumerate(OPS)}
        found = edge_masks(masks(self.arch, self.rule, self.where, strict=strict), self.encoded)
        return found[:, [columns[OPS[op].name] for op in self.ops]]  # raises for an operation that is not registered

    @functools.cached_property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """Per decision, the operation of each option as its number in `ops`; the original comes first."""
        count = len(self.ops)
        return tuple((own, *range(own), *range(own + 1, count)) for own in self.encoded.ops.tolist())

    @functools.cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each free edge, cell by cell."""
        by_rule = self._mask(strict=False) if self.strict else self.mask
        names = edge_names(self.arch)
        found = []
        for (kind, index), numbers, rule, both in zip(
            self.encoded.places, self.numbers, by_rule, self.mask, strict=True
        ):
            why = ["" if both[one] else "cost" if rule[one] else "rule" for one in numbers]
            options = tuple(Option(self.ops[one], said) for one, said in zip(numbers, why, strict=True))
            found.append(Decision(names[kind][index], "operation", options))
        return tuple(found)

    @property
    def given(self) -> Architecture:
        """The architecture."""
        return self.arch

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every free edge by its name."""
        return [(decision.name, number) for number, decision in enumerate(self.decisions)]

    @functools.cached_property
    def blueprint(self) -> Blueprint:
        """The network by these decisions; with loose ends, at the widths of the unchanged architecture."""
        options = [[self.ops[one] for one in numbers] for numbers in self.numbers]
        return drawing(self.arch, self.where, options).blueprint

    def count(self, plans: Sequence[Plan]) -> None:
        """Compute the cost of many plans at once, so that `living` and `fits` can look them up."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._spent]
        if len(new) >= MANY and not self.loose:
            figures, connected = self.blueprint.costs(np.array(new, dtype=np.int64))
            found = zip(map(tuple, figures.tolist()), connected.tolist(), strict=True)
            self._spent.update(zip(new, found, strict=True))

    def living(self, plan: Plan) -> dict[str, float]:
        """Living parameters and multiply-adds."""
        return dict(zip(self.blueprint.figures, self._found(plan)[0], strict=True))

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory."""
        return peak_memory(*self._drawn(plan))

    def fits(self, plan: Plan) -> bool:
        """Whether a plan meets the budget; always true unless it is strict."""
        return not self.strict or no_dearer(self._found((0,) * len(plan)), self._found(plan))

    def graph(self) -> Encoded:
        """What a policy sees."""
        return self.encoded

    def key(self, plan: Plan) -> Hashable:
        """What the architecture computes."""
        return self.apply(plan).essence()

    def apply(self, plan: Plan) -> Architecture:
        """The architecture with other operations."""
        return self.with_row(self.row(plan))

    def told(self, plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
        """For JSON: its cells before and after."""
        after = self.apply(plan)
        return {
            "before": to_dict(self.arch),
            "after": to_dict(after),
            "groups": cell_groups(self.arch, after, self.where, self.ops),
        }

    def _found(self, plan: Plan) -> tuple[tuple[int, ...], bool]:
        if plan not in self._spent:
            blueprint, drawn = self._drawn(plan)
            spent: Spent = blueprint.spent(drawn)
            self._spent[plan] = spent.living, spent.connected
        return self._spent[plan]

    def _drawn(self, plan: Plan) -> tuple[Blueprint, Plan]:
        """A blueprint with the widths of a plan, and the plan in that blueprint."""
        if not self.loose:
            return self.blueprint, plan
        _, blueprint, _, plan = drawing(self.apply(plan), self.where)
        return blueprint, plan

    # Rows: plans as operation numbers of a policy.

    def row(self, plan: Plan) -> Row:
        """The operation of every edge, as its number in `ops`."""
        return np.array([numbers[one] for numbers, one in zip(self.numbers, plan, strict=True)], dtype=np.int64)

    def plan(self, row: Row) -> Plan:
        """The inverse of `row`."""
        return tuple([numbers.index(op) for numbers, op in zip(self.numbers, row.tolist(), strict=True)])

    def preferences(self, table: NDArray[np.float64]) -> Preferences:
        """Preferences of a policy, (edges, ops), reordered per option."""
        return [row[list(numbers)] for row, numbers in zip(table, self.numbers, strict=True)]

    def with_row(self, row: Row) -> Architecture:
        """The architecture with these operations on its free edges."""
        ops = {kind: list(graph.ops) for kind, graph in self.arch.cells()}
        for (kind, number), op in zip(self.encoded.places, row.tolist(), strict=True):
            ops[kind][number] = self.ops[op]
        return self.arch.with_ops(ops)
