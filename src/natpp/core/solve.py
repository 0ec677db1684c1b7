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

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natpp.core.decision import Plan

Preferences = Sequence[NDArray[np.float64]]  # per decision, per option
Fits = Callable[[Plan], bool]


def repair(plan: Plan, base: Plan, worth: Sequence[float], fits: Fits) -> Plan:
    """The plan with its least worthy changes of `base` taken back until it fits.

    Of changes worth the same the last goes first. Those that do no harm then come back, the worthiest first. A plan
    that fits is returned itself; `base` has to fit.
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
