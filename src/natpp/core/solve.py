"""The only code that brings a plan within a budget, by undoing changes or by making more.

Nothing here knows what a plan means; what is specific to a subject is an argument. `fits(plan)` says whether a plan is
allowed as a whole. `worth` or `preferences` say how much a change is wanted, per decision or per option. `moves(plan)`
are the plans one change away, the first of which wins a tie. `price(plan, other)` is what a move costs, None if it does
not help.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from natpp.core.budget import Limits, excess, unreachable
from natpp.core.decision import Plan
from natpp.core.measures import Cost
from natpp.core.subject import Preferences, Subject
from natpp.registry import MEASURES

REMEASURE = 0.02  # minimum share of the multiply-adds to save before latency is measured again
Fits = Callable[[Plan], bool]


def solve(
    subject: Subject, plan: Plan, preferences: Preferences, limits: Limits, *, measure: Callable[[Plan], Cost]
) -> Plan:
    """The plan after further changes until it meets the limits, losing the least preference for what is saved.

    `measure` gives every limited figure; as latency is slow to measure, it is not measured after every change.
    """
    slope, start = _Slope(subject, preferences, limits), plan
    while (above := excess(found := measure(plan), limits)) > 0:
        goal = slope.madds(plan)
        if slope.over(plan) == 0:  # only the latency is over
            goal *= 1 - max(above / (1 + above) / 2, REMEASURE)
        further = descend(plan, slope.moves, slope.price, functools.partial(slope.reached, goal))
        if further == plan:
            before = measure((0,) * len(plan))
            why = "No change that the rule and the operations allow costs less"
            raise unreachable(subject, plan, (before, found), limits, why)
        plan = further
    if "latency" in limits:
        return plan
    allowed = [decision.allowed for decision in subject.decisions]
    return settle(plan, start, preferences, allowed, lambda one: subject.fits(one) and slope.over(one) == 0)


class _Slope:
    """The cost of a subject's plans relative to limits, and the price of moves between them."""

    def __init__(self, subject: Subject, preferences: Preferences, limits: Limits):
        self.subject, self.preferences, self.limits = subject, preferences, limits
        self.closing = subject.blueprint.closing
        self._figures: dict[Plan, dict[str, float]] = {}

    def moves(self, plan: Plan) -> Iterator[Plan]:
        """Every other allowed option of one decision that fits."""
        found = [
            with_option(plan, number, option)
            for number, decision in enumerate(self.subject.decisions)
            for option in decision.allowed
            if option != plan[number]
        ]
        self.subject.count([self.subject.row(plan) for plan in found])
        return filter(self.subject.fits, found)

    def price(self, plan: Plan, other: Plan) -> tuple[int, float] | None:
        """Moves that reduce a figure over its limit come first, ordered by preference lost per saving.

        If there are none: moves that save multiply-adds, since latency follows computation and peak memory depends on
        a single place. Then moves that drop an operation, since a last reader keeps its input alive. Savings beyond a
        limit do not count.
        """
        saved, spared = self.over(plan) - self.over(other), self.madds(plan) - self.madds(other)
        if saved < 0 or (saved == 0 and spared < 0):
            return None
        number = next(number for number, (old, new) in enumerate(zip(plan, other, strict=True)) if old != new)
        lost = float(self.preferences[number][plan[number]] - self.preferences[number][other[number]])
        if saved > 0:
            return 0, lost / saved
        if spared > 0:
            return 1, lost / spared
        return (2, lost) if (number, other[number]) in self.closing else None

    def reached(self, goal: float, plan: Plan) -> bool:
        """Whether a plan is within the limits that can be counted and has no more multiply-adds than the goal."""
        return self.over(plan) == 0 and self.madds(plan) <= goal

    def over(self, plan: Plan) -> float:
        """By how much the counted figures exceed their limits, summed."""
        found = self._counted(plan)
        return sum(max(found[name] / limit - 1, 0.0) for name, limit in self.limits.items() if name in found)

    def madds(self, plan: Plan) -> float:
        """Living multiply-adds."""
        return self._counted(plan)["madds"]

    def _counted(self, plan: Plan) -> dict[str, float]:
        if plan not in self._figures:
            self._figures[plan] = {
                name: measure.of_plan(self.subject, plan)
                for name, measure in MEASURES.items()
                if measure.of_plan is not None and (measure.adds_up or name in self.limits)
            }
        return self._figures[plan]


def repair(plan: Plan, base: Plan, worth: Sequence[float], fits: Fits) -> Plan:
    """The plan with its least worthy changes of `base` taken back until it fits.

    Among changes of equal worth, the last is undone first. Then changes that still fit are restored, the worthiest
    first. A plan that fits is returned unchanged; `base` has to fit.

    Examples:
        >>> from natpp.core.solve import repair
        >>> repair((1, 1, 1), (0, 0, 0), worth=[0.1, 0.5, 0.9], fits=lambda plan: plan[1] == 0)
        (1, 0, 1)
    """
    if fits(plan):
        return plan
    changed = [one for one in reversed(range(len(plan))) if plan[one] != base[one]]
    undone, now = list[int](), list(plan)
    for one in sorted(changed, key=worth.__getitem__):
        undone.append(one)
        now[one] = base[one]
        if fits(tuple(now)):
            break
    for one in reversed(undone[:-1]):  # the last one was needed
        now[one] = plan[one]
        if not fits(tuple(now)):
            now[one] = base[one]
    return tuple(now)


def descend(
    plan: Plan, moves: Callable[[Plan], Iterable[Plan]], price: Callable[[Plan, Plan], Any], done: Fits
) -> Plan:
    """The plan after the cheapest moves, one at a time, until it is done or no move helps."""
    while not done(plan):
        priced = [(price(plan, other), other) for other in moves(plan)]
        helpful = [one for one in priced if one[0] is not None]
        if not helpful:
            break
        plan = min(helpful, key=operator.itemgetter(0))[1]
    return plan


class Moves(NamedTuple):
    """The possible next moves of a part of a plan: what each saves, the preference it loses, the options it sets."""

    saved: NDArray[np.float64]
    lost: NDArray[np.float64]
    options: Sequence[Mapping[int, int]]


def descend_in_parts(
    parts: int,
    moves: Callable[[int], Moves],
    take: Callable[[Mapping[int, int]], Iterable[int]],
    missing: Callable[[], float | None],
) -> bool:
    """Take the moves that lose the least preference per saving, one at a time; False if there were none.

    `missing` is what is still to be saved, or None if nothing is; savings beyond it do not count. `take` returns the
    parts whose moves have changed, so that only these are recomputed.
    """
    taken, known = False, [moves(part) for part in range(parts)]
    while (left := missing()) is not None:
        best: tuple[float, Mapping[int, int]] | None = None
        for one in known:
            if len(one.options):
                prices = one.lost / np.minimum(one.saved, max(left, 1e-12))
                least = int(prices.argmin())
                if best is None or prices[least] < best[0]:
                    best = float(prices[least]), one.options[least]
        if best is None:
            return taken
        taken = True
        others = take(best[1])
        if missing() is None:
            return True
        for part in others:
            known[part] = moves(part)
    return True


def settle(plan: Plan, start: Plan, preferences: Preferences, allowed: Sequence[Sequence[int]], fits: Fits) -> Plan:
    """A plan that fits, without unneeded changes to `start`, and with none that could be a preferred one.

    One step at a time: undo the least preferred change that can be undone. Otherwise replace the least preferred change
    that can be replaced by the most preferred option that fits. `allowed` has the options of every decision.
    """
    while (milder := next(filter(fits, _milder(plan, start, preferences, allowed)), None)) is not None:
        plan = milder
    return plan


def _milder(plan: Plan, start: Plan, preferences: Preferences, allowed: Sequence[Sequence[int]]) -> Iterable[Plan]:
    """The plans with one change undone, then those with one change replaced by a preferred option."""
    changed = [one for one in range(len(plan)) if plan[one] != start[one]]
    changed.sort(key=lambda one: float(preferences[one][plan[one]] - preferences[one][start[one]]))
    for one in changed:
        yield with_option(plan, one, start[one])
    for one in changed:
        for option in preferred(preferences[one], allowed[one], plan[one]):
            yield with_option(plan, one, option)


def preferred(preferences: NDArray[np.float64], allowed: Sequence[int], present: int) -> list[int]:
    """The options of one decision that are preferred to the present one, the most preferred first."""
    better = [option for option in allowed if preferences[option] > preferences[present]]
    return sorted(better, key=lambda option: -float(preferences[option]))


def with_option(plan: Plan, decision: int, option: int) -> Plan:
    """The plan with another option for one decision."""
    return *plan[:decision], option, *plan[decision + 1 :]
