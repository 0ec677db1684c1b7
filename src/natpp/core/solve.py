"""The only place that brings a plan within a budget: by taking changes back, and by changing more.

Nothing here knows what a plan means. A plan is one number per decision, and what differs from one subject to the next
comes as arguments:

- `fits(plan)`: whether a plan is allowed as a whole: connected, within a strict budget, within the limits.
- `worth` or `preferences`: how much a change is wanted; per decision, and per option where others are considered.
- `moves(plan)`: the plans that one further change leads to, in the order in which ties are decided.
- `price(plan, other)`: what a move costs, compared with `<`; None for a move that helps nothing.

Where a descent starts, from the subject as it is or from a policy's answer, is the caller's choice, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from natpp.core.budget import Limits, excess, unreachable
from natpp.core.decision import Plan
from natpp.core.measures import Cost
from natpp.core.subject import Subject
from natpp.registry import MEASURES

REMEASURE = 0.02  # share of the multiply-adds that must be saved at least before a latency is measured again
Preferences = Sequence[NDArray[np.float64]]  # per decision, per option
Fits = Callable[[Plan], bool]


def solve(
    subject: Subject,
    plan: Plan,
    preferences: Preferences,
    limits: Limits,
    *,
    measure: Callable[[Plan], Cost],
) -> Plan:
    """The plan with as many further changes as the limits take, the least preference lost for what is saved.

    `measure` has all that the limits are of; where it is a latency, it takes long and is not asked after every change.
    Otherwise no change is in vain in the end, and none could be milder.
    """
    slope, start = _Slope(subject, preferences, limits), plan
    while (above := excess(found := measure(plan), limits)) > 0:
        goal = slope.madds(plan)
        if slope.over(plan) == 0:  # it is the latency alone
            goal *= 1 - max(above / (1 + above) / 2, REMEASURE)
        further = descend(plan, slope.moves, slope.price, functools.partial(slope.reached, goal))
        if further == plan:
            before = measure((0,) * len(plan))
            raise unreachable(before, limits, found, subject.name, "Raise it, or allow more with another rule")
        plan = further
    if "latency" in limits:
        return plan
    allowed = [decision.allowed for decision in subject.decisions]
    return settle(plan, start, preferences, allowed, lambda one: subject.fits(one) and slope.over(one) == 0)


class _Slope:
    """What plans of a subject cost beside limits, and the price of moves between them."""

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
        self.subject.count(found)
        return filter(self.subject.fits, found)

    def price(self, plan: Plan, other: Plan) -> tuple[int, float] | None:
        """First come moves that save something of what is over its limit, by the preference lost for what is saved.

        Where there is none, those that save multiply-adds, since latency follows what is computed, and peak memory is
        that of one place; then those that drop something, since what reads the last of something keeps it alive. What
        is saved beyond a limit counts for nothing.
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
        """How far what can be counted is above its limits, in all."""
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

    Of changes worth the same the last goes first. Those that do no harm then come back, the worthiest first. A plan
    that fits is returned itself; `base` has to fit.

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
    plan: Plan,
    moves: Callable[[Plan], Iterable[Plan]],
    price: Callable[[Plan, Plan], Any],
    done: Fits,
) -> Plan:
    """The plan after the cheapest moves, one after the other, until it is done or no move helps any more."""
    while not done(plan):
        best: tuple[Any, Plan] | None = None
        for other in moves(plan):
            found = price(plan, other)
            if found is not None and (best is None or found < best[0]):
                best = found, other
        if best is None:
            break
        plan = best[1]
    return plan


class Moves(NamedTuple):
    """What a part of a plan may do next: what each change saves, the preference it loses, the options it sets."""

    saved: NDArray[np.float64]
    lost: NDArray[np.float64]
    options: Sequence[Mapping[int, int]]


def descend_in_parts(
    parts: int,
    moves: Callable[[int], Moves],
    take: Callable[[Mapping[int, int]], Iterable[int]],
    missing: Callable[[], float | None],
) -> bool:
    """Take the moves that lose least for what they save, one after the other; False where there was none at all.

    `missing` is what is still to be saved, None where nothing is: what a move saves beyond it counts for nothing.
    `take` answers the parts whose moves are others now: with many parts, few are looked at again.
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
    """A plan that fits with no change of `start` in vain, and none that could be one that is preferred.

    One step at a time: the least preferred change that can be taken back is, else the least preferred one that can be
    milder becomes what is preferred most. `allowed` has the options of every decision.
    """
    while True:
        for other in _milder(plan, start, preferences, allowed):
            if fits(other):
                plan = other
                break
        else:
            return plan


def _milder(plan: Plan, start: Plan, preferences: Preferences, allowed: Sequence[Sequence[int]]) -> Iterable[Plan]:
    """The plans with one change taken back, then those with one in favour of what is preferred."""
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
