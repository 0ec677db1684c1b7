"""A module within a budget in figures, by as few changes as it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from natpp.core.budget import excess, unreachable
from natpp.core.measures import COUNTED, Cost, figures_of
from natpp.core.solve import REMEASURE, preferred
from natpp.fx.rewrite import rewrite
from natpp.nets.measure import module_cost
from natpp.subjects.module_problem import Problem, Row, Table


def within(problem: Problem, preferences: Sequence[Table], before: Cost, limits: Mapping[str, float]) -> list[Row]:
    """The rows within the limits, by the most preferred changes that it takes.

    Parameters and multiply-adds are counted; for memory and latency, results are built and measured. Where no way leads
    down from the module as it is, one from the policy's own answer may. Peak memory is that of one place, so some
    changes may turn out not to be needed: these are given back.
    """
    nearest: Cost | None = None
    for start in (problem.before, problem.answer()):
        descent = Descent(problem, start, before, limits, preferences)
        while True:
            found = descent.cost()
            over = [name for name in limits if figures_of(found)[name] > limits[name]]
            if not over:
                if "memory" in limits and "latency" not in limits:  # which differs from time to time
                    descent.give_back()
                return descent.rows
            nearest = found if nearest is None else min(nearest, found, key=lambda cost: excess(cost, limits))
            counted = [name for name in over if name in COUNTED]
            if not (descent.count_down() if counted else descent.measured_down(over, found)):
                break
    assert nearest is not None
    less = "keep less, or decide block by block (share_blocks=False)" if problem.shared else "or keep less"
    raise unreachable(before, limits, nearest, "module", f"Raise it, {less}")


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
        self.tally = problem.tally.at(problem.plan(self.rows))

    @property
    def total(self) -> NDArray[np.float64]:
        """Parameters, multiply-adds and bytes made."""
        return np.array(self.tally.cost, dtype=np.float64)

    def cost(self) -> Cost:
        """What the rows cost: built and measured where a limit is of what cannot be counted."""
        problem, limits = self.problem, self.limits
        if set(limits) <= set(COUNTED):
            params, madds, _ = self.tally.cost
            return replace(self.before, params=params, madds=madds, live_params=params, live_madds=madds)
        made = rewrite(problem.traced, problem.blocks, problem.block_ops(self.rows))
        return module_cost(made, problem.traced.example, latency="latency" in limits)

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
            changed = self._take(number, steps[number].rows[place])
            taken = True
            if done():
                return True
            for index in {number} | changed:
                steps[index] = self._steps(index, weights)

    def _take(self, number: int, row: Row) -> set[int]:
        """Take another row for a group; returns the groups of which something came to life or died."""
        self.rows[number] = row
        steps = self.problem.blueprint.steps
        changed = self.tally.change(self.problem.options(number, row))
        return {self.problem.owner[decision] for step in changed for decision in steps[step].by}

    def _steps(self, number: int, weights: NDArray[np.float64]) -> _Steps:
        """The changes of a group that save something."""
        row, table, spent = self.rows[number], self.preferences[number], self.total
        terms = np.arange(len(row))
        own = table[terms, row]
        found: list[tuple[float, float, Row]] = []
        for changed in self.problem.one_further(number, row):
            saved = float(weights @ (spent - np.array(self.tally.tried(self.problem.options(number, changed)))))
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
            row = self.rows[number]
            other = row.copy()
            other[index] = op
            self._take(number, other)
            if not self.over() and not self.tally.missing:
                return True
            self._take(number, row)
        return False

    def give_back(self) -> None:
        """Take back all changes without which what is built is still within the limits.

        The least preferred first, many at once, and where that is too much their halves: what is built takes long to
        measure. What is too much by what is counted already is not built.
        """
        while self._give_back(self._changed()):
            pass

    def _give_back(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether some changes at these places were taken back."""
        if not places:
            return False
        rows = list(self.rows)
        for number in {number for number, _ in places}:
            row = self.rows[number].copy()
            for index in [index for other, index in places if other == number]:
                row[index] = self.problem.before[number][index]
            self._take(number, row)
        if not self.tally.missing and not self.over() and excess(self.cost(), self.limits) <= 0:
            return True
        for number in {number for number, _ in places}:
            self._take(number, rows[number])
        half = len(places) // 2
        return half > 0 and self._give_back(places[:half]) | self._give_back(places[half:])

    def _changed(self) -> list[tuple[int, int]]:
        """Groups and places of changes, the least preferred first."""
        found = []
        for number, row in enumerate(self.rows):
            for index in np.flatnonzero(row != self.problem.before[number]).tolist():
                table = self.preferences[number][index]
                found.append((float(table[row[index]] - table[self.problem.before[number][index]]), number, index))
        return [(number, index) for _, number, index in sorted(found)]
