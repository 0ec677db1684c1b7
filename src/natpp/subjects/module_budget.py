"""A module within a budget in figures, by as few changes as it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import fx

from natpp.core.budget import excess, unreachable
from natpp.core.measures import COUNTED, Cost, figures_of
from natpp.core.solve import REMEASURE, preferred
from natpp.fx.rewrite import rewrite
from natpp.nets.measure import module_cost
from natpp.subjects.module_problem import Problem, Row, Table


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
                self.preferences[number][index],
                np.flatnonzero(self.problem.masks[number][index]).tolist(),
                self.rows[number][index],
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
