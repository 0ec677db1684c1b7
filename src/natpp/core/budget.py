"""Budgets in figures: what may be asked for of a module or an architecture, and an architecture within one.

A budget of params, madds, memory or latency is a fraction up to 1 of what is there before, or a figure. An architecture
that is over it is changed further, one edge after the other: first where the least log-probability is lost for what is
saved. Unless latency is limited, what turns out not to be needed is taken back, and what could be milder becomes what
is preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from natpp.arch.cost import cost_of
from natpp.arch.graph import NULL, Architecture
from natpp.core.measures import Cost, figures_of
from natpp.errors import NatppError, SettingError, did_you_mean
from natpp.registry import MEASURES
from natpp.subjects.many import Inputs, Row

Budget = str | Mapping[str, float]
Limits = Mapping[str, float]  # figures that a result has at most
NAMED = ("strict", "rule")
REMEASURE = 0.02  # share of what it hangs on that must be saved at least before something is measured again

SAVES_NOTHING = (
    "this saves neither parameters nor multiply-adds: the policy is sure of no change that does. A budget such as "
    "madds=0.7 makes it choose"
)


class BudgetError(NatppError):
    """A budget that no allowed result meets."""


def check_budget(budget: Budget) -> dict[str, float]:
    """The limits asked for, none where it is strict or the rule's: a fraction of the own figure, or a figure."""
    if isinstance(budget, str):
        if budget not in NAMED:
            raise SettingError(f"unknown budget {budget!r}. {did_you_mean(budget, NAMED)} Or limits, such as madds=0.6")
        return {}
    if not isinstance(budget, Mapping):
        raise SettingError(f"budget is {budget!r}, expected 'strict', 'rule' or limits such as {{'madds': 0.6}}")
    for name, wanted in budget.items():
        if name not in MEASURES:
            raise SettingError(f"unknown cost {name!r} in the budget. {did_you_mean(name, MEASURES)}")
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 < wanted < float("inf"):
            raise SettingError(
                f"the budget of {name} is {wanted!r}, expected a fraction up to 1 of what is there now, or a figure"
            )
    return dict(budget)


def limits_of(wanted: Mapping[str, float], before: Cost) -> dict[str, float]:
    """Figures instead of fractions."""
    figures = figures_of(before)
    return {name: figures[name] * given if given <= 1 else given for name, given in wanted.items()}


def excess(cost: Cost, limits: Limits) -> float:
    """How far a cost is above its limits, at most: 0.1 is a tenth."""
    return max(figures_of(cost)[name] / limits[name] - 1 for name in limits)


def unreachable(before: Cost, limits: Limits, nearest: Cost, whose: str, way: str) -> BudgetError:
    """What was asked for, and how near one gets; `way` is what else to try."""
    own, near = figures_of(before), figures_of(nearest)
    said = [
        f"{_figure(name, limits[name])} {MEASURES[name].unit} were asked for, the nearest allowed result has "
        f"{_figure(name, near[name])} ({near[name] / max(own[name], 1e-12):.3f} of the {whose}'s)"
        for name in limits
        if near[name] > limits[name]
    ]
    return BudgetError(f"the budget cannot be met: {'; '.join(said)}. {way}")


def _figure(name: str, figure: float) -> str:
    return f"{figure:,.4g}" if name == "latency" else f"{figure:,.0f}"


def within(
    inputs: Inputs,
    row: Row,
    preferences: NDArray[np.float64],
    limits: Limits,
    before: Cost,
    cost: Callable[[Architecture], Cost],
) -> Row:
    """The row of the first input, with as many further changes as the limits take.

    `preferences` are (edges, ops), log-probabilities say; `cost` has all that the limits are of.
    """
    descent, start = _Descent(inputs, preferences, limits), row
    while (above := excess(found := cost(inputs.transformed(0, row)), limits)) > 0:
        goal = descent.madds(row)
        if descent.over(row) == 0:  # latency alone is: to measure takes long, so not after every change
            goal *= 1 - max(above / (1 + above) / 2, REMEASURE)
        measured = row
        while (following := descent.next(row)) is not None:
            row = following
            if descent.over(row) == 0 and descent.madds(row) <= goal:
                break
        if row is measured:
            raise unreachable(before, limits, found, "architecture", "Raise it, or allow more with another rule")
    return row if "latency" in limits else descent.softened(row, start)


def preferred(preferences: NDArray[np.float64], allowed: NDArray[np.bool_], present: int) -> list[int]:
    """Allowed operations of one decision that are preferred to the present one, the most preferred first."""
    found = np.flatnonzero(allowed & (preferences > preferences[present]))
    return [int(op) for op in found[np.argsort(-preferences[found], kind="stable")]]


class _Descent:
    """One change after the other, by what each saves and the preference that it loses."""

    def __init__(self, inputs: Inputs, preferences: NDArray[np.float64], limits: Limits):
        self.inputs, self.preferences, self.limits = inputs, preferences, limits
        self.null = inputs.ops.index(NULL) if NULL in inputs.ops else None
        self._figures: dict[bytes, dict[str, float]] = {}

    def next(self, row: Row) -> Row | None:
        """The change at the lowest price: first of those that save something of what is over its limit.

        Where none does, of those that save multiply-adds, since latency follows what is computed, and peak memory is
        that of one place; then of those to nothing, since what reads the last of something keeps it alive. What is
        saved beyond a limit counts for nothing. None where nothing is left to save.
        """
        over, madds = self.over(row), self.madds(row)
        best: tuple[int, float, Row] | None = None
        for edge, changed in self._changes(row):
            saved, spared = over - self.over(changed), madds - self.madds(changed)
            if saved < 0 or (saved == 0 and spared < 0):
                continue
            lost = float(self.preferences[edge, row[edge]] - self.preferences[edge, changed[edge]])
            if saved > 0:
                kind, price = 0, lost / saved
            elif spared > 0:
                kind, price = 1, lost / spared
            elif changed[edge] == self.null:
                kind, price = 2, lost
            else:
                continue
            if best is None or (kind, price) < best[:2]:
                best = kind, price, changed
        return None if best is None else best[2]

    def softened(self, row: Row, start: Row) -> Row:
        """What is within the limits with as few changes as it takes, none of which could be one that is preferred."""
        while (milder := self._milder(row, start)) is not None:
            row = milder
        return row

    def _milder(self, row: Row, start: Row) -> Row | None:
        """The row with one change taken back, or else one in favour of what is preferred; the least preferred first."""
        changed = np.flatnonzero(row != start)
        gains = self.preferences[changed, row[changed]] - self.preferences[changed, start[changed]]
        edges = changed[np.argsort(gains, kind="stable")].tolist()
        taken_back = [(edge, start[edge]) for edge in edges]
        softer = [
            (edge, op)
            for edge in edges
            for op in preferred(self.preferences[edge], self.inputs.masks[0][edge], row[edge])
        ]
        for edge, op in taken_back + softer:
            other = row.copy()
            other[edge] = op
            if self.inputs.fits(0, other) and self.over(other) == 0:
                return other
        return None

    def _changes(self, row: Row) -> Iterator[tuple[int, Row]]:
        """Every other allowed operation of an edge, within the strict budget if there is one."""
        for edge, op in np.argwhere(self.inputs.masks[0]).tolist():
            if op != row[edge]:
                changed = row.copy()
                changed[edge] = op
                if self.inputs.fits(0, changed):
                    yield edge, changed

    def over(self, row: Row) -> float:
        """How far what can be counted is above its limits, in all."""
        found = self._counted(row)
        return sum(max(found[name] / limit - 1, 0.0) for name, limit in self.limits.items() if name in found)

    def madds(self, row: Row) -> float:
        """Living multiply-adds."""
        return self._counted(row)["madds"]

    def _counted(self, row: Row) -> dict[str, float]:
        key = row.tobytes()
        if key not in self._figures:
            found: dict[str, float] = dict(zip(("params", "madds"), self.inputs.living(0, row), strict=False))
            if "memory" in self.limits:
                found["memory"] = cost_of(self.inputs.transformed(0, row), self.inputs.task.where).peak_memory_bytes
            self._figures[key] = found
        return self._figures[key]
