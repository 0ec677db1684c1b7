"""The exact program: one item for every part of a network, the least harm within the limits.

It knows numbers only. An item may be any change of a part, or none. What items cost together, beyond what each costs
alone, is in joint tables. HiGHS solves the integer program. Every plan is then checked against the given numbers, so a
plan is always within the limits; that none is better rests on HiGHS.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natpp.errors import NatppError

Table = NDArray[Any]
Items = tuple[int, ...]
RANGE = 1e3  # largest coefficient of a row once scaled
TOLERANCE = 1e-6  # what HiGHS allows a scaled row to be off
ROUNDING = 1e-14  # share that sums of a few numbers may be off
REJECTED = 8  # plans that HiGHS finds and that break a limit, until the limits are tightened


@dataclass(frozen=True)
class Problem:
    """What the items of every part lose and cost, alone and together, and how much they may cost."""

    harms: Sequence[Table]
    """per part, what each item loses: (items,)"""
    costs: Sequence[Table]
    """per part, what each item adds to the cost of the unchanged network: (items, measures)"""
    limits: Table
    """the most that may be added, negative where cost must be saved: (measures,)"""
    joint: Mapping[tuple[int, ...], Table] = field(default_factory=dict)
    """for two or three ascending parts, what their items cost further together: (items, items, ..., measures)"""
    banned: Collection[tuple[tuple[int, int], tuple[int, int]]] = ()
    """pairs of (part, item) that exclude each other"""

    def __post_init__(self) -> None:
        sizes, measures = [len(harm) for harm in self.harms], len(self.limits)
        tables = {(part,): cost for part, cost in enumerate(self.costs)} | dict(self.joint)
        assert len(self.costs) == len(sizes)
        assert all(np.isfinite(table).all() for table in (*self.harms, *tables.values()))
        for parts, table in tables.items():
            assert np.shape(table) == (*(sizes[part] for part in parts), measures), f"parts {parts}: {np.shape(table)}"
            assert list(parts) == sorted(set(parts))
        assert not np.isnan(self.limits).any()

    def harm(self, items: Items) -> float:
        """What a plan loses."""
        return fsum(harm[item] for harm, item in zip(self.harms, items, strict=True))

    def cost(self, items: Items) -> Table:
        """What a plan adds to the cost, exact to the last digit: (measures,)."""
        rows = [cost[item] for cost, item in zip(self.costs, items, strict=True)]
        rows += [table[tuple(items[part] for part in parts)] for parts, table in self.joint.items()]
        return np.array([fsum(row[measure] for row in rows) for measure in range(len(self.limits))])

    def allows(self, items: Items) -> bool:
        """Whether a plan is within the limits and nothing in it is banned."""
        clash = any(items[part] == item and items[other] == its for (part, item), (other, its) in self.banned)
        return not clash and bool((self.cost(items) <= self.limits).all())


@dataclass(frozen=True)
class Solution:
    """A plan within the limits."""

    items: Items
    """the item of every part"""
    harm: float
    """what the plan loses"""
    proved: bool
    """HiGHS found twice, in two ways, that no plan left is better by more than the gap; False if a limit was hit"""


def solved(
    problem: Problem,
    count: int = 1,
    *,
    apart: int = 1,
    nodes: int = 3000,
    gap: float = 0.01,
    seconds: float | None = None,
) -> list[Solution]:
    """Up to `count` plans of least harm, the best first, which differ in `apart` parts or more; none if none fits.

    Each is within a share `gap` of the best that the plans before it leave. `nodes` limits the search for each plan,
    `seconds` that for all of them. Without `seconds` the answer is always the same.

    Examples:
        >>> costs = [np.array([[0], [-4]])] * 2
        >>> problem = Problem([np.array([0.0, 1.0]), np.array([0.0, 3.0])], costs, np.array([-4]))
        >>> [(one.items, one.harm) for one in solved(problem, 2)]
        [((1, 0), 1.0), ((0, 1), 3.0)]
    """
    start, found, rejected = time.monotonic(), list[Solution](), 0
    program = _Program(problem, _kept(problem, count))
    while len(found) < count:
        options: dict[str, float] = {"node_limit": nodes, "mip_rel_gap": gap}
        if seconds is not None:
            options["time_limit"] = max(0.0, start + seconds - time.monotonic())
        slack = 0.0 if rejected < REJECTED else TOLERANCE * 4.0 ** (rejected - REJECTED)
        items, complete = program.best(options, slack)
        proved = complete and not slack
        if items is None:
            if not found and not proved:
                limit = f"{nodes} nodes" + ("" if seconds is None else f" and {seconds} s")
                raise NatppError(f"no plan within the limits was found in {limit}: allow more, or raise the limits")
            break
        if problem.allows(items):
            found.append(Solution(items, problem.harm(items), proved))
            program.forbid(items, apart)
        else:  # beyond the limits by less than HiGHS can tell
            rejected += 1
            program.forbid(items, 1)
    return sorted(found, key=lambda one: (one.harm, one.items))


def _kept(problem: Problem, count: int) -> list[NDArray[np.intp]]:
    """Per part, the items that fewer than `count` other items replace without loss, whatever the other parts pick.

    For a plan with any other item there are `count` plans of kept items that are as good.
    """
    bans: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
    for one, other in problem.banned:
        bans[one].add(other)
        bans[other].add(one)
    kept = []
    costs = {(part,): cost for part, cost in enumerate(problem.costs)} | dict(problem.joint)
    for part, harm in enumerate(problem.harms):
        tables = [
            np.moveaxis(np.asarray(table, float), parts.index(part), 0).reshape(len(harm), -1, len(problem.limits))
            for parts, table in costs.items()
            if part in parts
        ]
        better = np.zeros((len(harm), len(harm)), bool)  # [item, other]: other is at least as good
        for item in range(len(harm)):
            more = np.stack([(table - table[item]).max(1) for table in tables])  # at most, (tables, items, measures)
            cheaper = (more <= 0).all(0) | (more.sum(0) < -ROUNDING * abs(more).sum(0))
            fewer = [bans[part, other] <= bans[part, item] for other in range(len(harm))]
            better[item] = (np.asarray(harm) <= harm[item]) & cheaper.all(1) & fewer
        first = np.arange(len(harm))[None] < np.arange(len(harm))[:, None]
        kept.append(np.flatnonzero((better & (first | ~better.T)).sum(1) < count))
    return kept


class _Program:
    """The integer program: a binary for every item kept, and products of binaries for the joint tables."""

    def __init__(self, problem: Problem, kept: Sequence[NDArray[np.intp]]):
        self.kept = kept
        ends = np.cumsum([len(items) for items in kept])
        self.columns = np.split(np.arange(ends[-1]), ends[:-1])  # per part
        self.column = {
            (part, int(item)): int(column)
            for part, (items, columns) in enumerate(zip(kept, self.columns, strict=True))
            for item, column in zip(items, columns, strict=True)
        }
        self.harms = np.array([problem.harms[part][item] for part, item in self.column], float)
        self.rows: list[tuple[Table, Table | float, float, float]] = []  # columns, coefficients, least, most
        self.rows += [(columns, 1.0, 1.0, 1.0) for columns in self.columns]
        costs = [np.asarray(cost, float)[own] for cost, own in zip(problem.costs, kept, strict=True)]
        width, products = int(ends[-1]), []
        for parts, table in problem.joint.items():
            products.append(self._product(parts, table, costs, width))
            width += len(products[-1])
        least = [cost.min(0) for cost in costs]  # what every plan costs says nothing, and hides small differences
        self.limits = np.asarray(problem.limits, float) - sum(least)
        self.costs = np.concatenate([*(cost - low for cost, low in zip(costs, least, strict=True)), *products])
        together: dict[tuple[int, int], set[int]] = defaultdict(set)
        for one, other in problem.banned:
            if one in self.column and other in self.column:
                together[self.column[one], other[0]].add(self.column[other])
        self.rows += [(np.array([one, *sorted(two)]), 1.0, -inf, 1.0) for (one, _), two in together.items()]

    def _product(self, parts: Sequence[int], table: Table, costs: list[Table], start: int) -> NDArray[np.float64]:
        """Add products for what a joint table says beyond its items alone; returns their costs: (columns, measures)."""
        table = np.asarray(table, float)[np.ix_(*(self.kept[part] for part in parts))]
        axes = range(len(parts))
        rest, corner = table - table[(0,) * len(parts)], table[(0,) * len(parts)]
        costs[parts[0]] += corner
        for axis, part in enumerate(parts):
            alone = table[tuple(slice(None) if other == axis else 0 for other in axes)] - corner
            costs[part] += alone
            rest -= np.expand_dims(alone, [other for other in axes if other != axis])
        if not (abs(rest) > ROUNDING * abs(table).max(initial=0.0)).any():
            return np.zeros((0, table.shape[-1]))
        groups = []
        for axis in axes:  # items that cost the same with all others share their products
            flat = np.moveaxis(rest, axis, 0).reshape(rest.shape[axis], -1)
            _, first, group = np.unique(flat, axis=0, return_index=True, return_inverse=True)
            rest = rest.take(first, axis)
            groups.append(group.reshape(-1))  # one version of NumPy returns a column
        products = start + np.arange(rest[..., 0].size).reshape(rest.shape[:-1])
        for axis, part in enumerate(parts):
            for number in range(rest.shape[axis]):
                items, own = self.columns[part][groups[axis] == number], products.take(number, axis).ravel()
                signs = np.repeat([1.0, -1.0], [len(own), len(items)])
                self.rows.append((np.concatenate([own, items]), signs, 0.0, 0.0))
        found: NDArray[np.float64] = rest.reshape(-1, table.shape[-1])
        return found

    def forbid(self, items: Items, apart: int) -> None:
        """Ask for plans that differ from this one in `apart` parts or more."""
        chosen = np.array([self.column[place] for place in enumerate(items)])
        self.rows.append((chosen, 1.0, -inf, float(len(items) - apart)))

    def best(self, options: Mapping[str, float], slack: float) -> tuple[Items | None, bool]:
        """The best plan, None if none was found, and whether the search ended before a limit stopped it."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        every, rows = np.arange(len(self.costs)), [*self.rows]
        for cost, limit in zip(self.costs.T, self.limits, strict=True):
            scale = RANGE / (abs(cost).max() or 1.0)
            rows.append((every, cost * scale, -inf, limit * scale - slack))
        values = np.concatenate([np.broadcast_to(row[1], len(row[0])) for row in rows])
        columns = np.concatenate([row[0] for row in rows]).astype(np.int32)  # which old versions of scipy insist on
        ends = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int32)
        matrix = csr_array((values, columns, ends), shape=(len(rows), len(every)))
        harms = np.zeros(len(every))
        harms[: len(self.harms)] = self.harms * (RANGE / (abs(self.harms).max() or 1.0))
        found: list[tuple[float, Items]] = []
        complete, infeasible = True, 0
        for presolve in (
            False,
            True,
        ):  # either alone was wrong for a few of some 8,000 random small problems
            result = milp(
                harms,
                integrality=np.ones(len(every)),  # with fractional products it was wrong more often
                bounds=Bounds(0, 1),
                constraints=LinearConstraint(matrix, [row[2] for row in rows], [row[3] for row in rows]),
                options={**options, "presolve": presolve},
            )
            infeasible += result.x is None and result.message.startswith("The problem is")  # nothing is unbounded
            complete &= result.status == 0
            picked = [] if result.x is None else [result.x[own].round() for own in self.columns]
            if picked and all(one.sum() == 1 for one in picked):
                items = tuple(int(own[one.argmax()]) for own, one in zip(self.kept, picked, strict=True))
                found.append((float(result.fun), items))
        if not found:
            return None, infeasible == 2
        best, worst = min(found), max(found)
        agree = worst[0] - best[0] <= options["mip_rel_gap"] * abs(worst[0]) + TOLERANCE * RANGE
        return best[1], complete and agree
