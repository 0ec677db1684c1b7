"""Brings a module within a budget in figures, with as few changes as possible.

Parameters and multiply-adds are counted; for memory and latency, results are built and measured. Changes are made one
at a time, the one that loses the least preference per saving first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from natpp.core.budget import excess, unreachable
from natpp.core.decision import Plan
from natpp.core.measures import COUNTED, Cost, figures_of
from natpp.core.solve import REMEASURE, Moves, descend_in_parts, settle
from natpp.core.subject import Preferences
from natpp.subjects.module_stops import stopped_by

if TYPE_CHECKING:
    from natpp.subjects.module import Module


def within(
    module: Module, starts: Sequence[Plan], preferences: Preferences, before: Cost, limits: Mapping[str, float]
) -> Plan:
    """The plan within the limits, by the most preferred changes, from the first start that can meet them.

    Peak memory depends on a single place, so some changes may turn out not to be needed: these are undone.
    """
    nearest: tuple[Cost, Plan] | None = None
    for start in starts:
        descent = Descent(module, start, before, limits, preferences)
        while True:
            found = descent.cost()
            over = [name for name in limits if figures_of(found)[name] > limits[name]]
            if not over:
                if "memory" in limits and "latency" not in limits:  # latency varies between runs
                    while descent.give_back(descent.changed()):
                        pass
                return descent.plan
            if nearest is None or excess(found, limits) < excess(nearest[0], limits):
                nearest = found, descent.plan
            counted = [name for name in over if name in COUNTED]
            if not (descent.count_down() if counted else descent.measured_down(over, found)):
                break
    assert nearest is not None
    found, plan = nearest
    raise unreachable(module, plan, (before, found), limits, stopped_by(module, plan, limits))


class Descent:
    """A plan being changed until it meets its limits."""

    def __init__(self, module: Module, plan: Plan, before: Cost, limits: Mapping[str, float], preferences: Preferences):
        self.module, self.before, self.limits, self.preferences = module, before, limits, preferences
        self._options, self.tally = list(plan), module.tally.at(plan)

    @property
    def plan(self) -> Plan:
        """The plan as it is now."""
        return tuple(self._options)

    @property
    def total(self) -> NDArray[np.float64]:
        """Parameters, multiply-adds and bytes of values."""
        return np.array(self.tally.cost, dtype=np.float64)

    def cost(self) -> Cost:
        """The cost of the plan; it is built and measured if a limit cannot be counted."""
        if set(self.limits) <= set(COUNTED):
            params, madds, _ = self.tally.cost
            return replace(self.before, params=params, madds=madds, live_params=params, live_madds=madds)
        return self.module.built(self.plan, self.module.copied, latency="latency" in self.limits)[1]

    def over(self) -> list[str]:
        """The counted limits that are not met."""
        figures = dict(zip(COUNTED, self.total[:2], strict=True))
        return [name for name in figures if figures[name] > self.limits.get(name, float("inf"))]

    def count_down(self) -> bool:
        """Save until parameters and multiply-adds meet their limits; False if nothing is left to save."""
        saved = False
        own = np.maximum([self.before.params, self.before.madds, 1], 1)
        while over := self.over():
            weights = np.array([name in over for name in COUNTED] + [False]) / own
            limits = np.array([self.limits[name] if name in over else 0.0 for name in COUNTED] + [0.0])
            if not self._down(weights, float(weights @ limits), over):
                return saved
            saved = True
        allowed, start = self.module.allowed, (0,) * len(self._options)
        self._go(settle(self.plan, start, self.preferences, allowed, self._fits))
        return saved

    def measured_down(self, over: Sequence[str], found: Cost) -> bool:
        """Save some of what drives memory and latency; False if nothing is left to save.

        Half of what is missing at a time, since memory and latency do not fall in proportion to the counts.
        """
        total, figures = np.maximum(self.total, 1), figures_of(found)
        weights = np.array([0.0, ("latency" in over) / total[1], 1.0 / total[2]])
        missing = max(1 - self.limits[name] / figures[name] for name in over)
        goal = float(weights @ self.total) - max(REMEASURE, missing / 2) * float(weights @ total)
        return self._down(weights, goal, None)

    def _down(self, weights: NDArray[np.float64], goal: float, over: Sequence[str] | None) -> bool:
        """Make the best changes one at a time, until other limits are exceeded or the goal is reached."""

        def missing() -> float | None:
            left = float(weights @ self.total) - goal
            done = left <= 0 if over is None else self.over() != over
            return None if done else left

        def take(options: Mapping[int, int]) -> set[int]:
            ruled_out = self.tally.tried(options) is None  # another group has changed since this was found
            return {self.module.part_of[one] for one in options} if ruled_out else self._take(options)

        moves = functools.partial(self._moves, weights)
        return descend_in_parts(len(self.module.parts), moves, take, missing)

    def _moves(self, weights: NDArray[np.float64], number: int) -> Moves:
        """The changes of a group that save something."""
        part, spent = self.module.parts[number], self.total
        found: list[tuple[float, float, dict[int, int]]] = []
        for changed in self.module.one_further(number, tuple(self._options[part.start : part.stop])):
            after = self.tally.tried(changed) if self.module.apart.allows(self._options, changed) else None
            saved = 0.0 if after is None else float(weights @ (spent - np.array(after)))
            if saved > 0:
                lost = [self.preferences[one][[self._options[one], option]] for one, option in changed.items()]
                found.append((saved, float(sum(now - then for now, then in lost)), changed))
        return Moves(
            np.array([saved for saved, _, _ in found]), np.array([lost for _, lost, _ in found]), [c for *_, c in found]
        )

    def _take(self, options: Mapping[int, int]) -> set[int]:
        """Change some decisions; returns the groups of these and of all that came to life or died."""
        for one, option in options.items():
            self._options[one] = option
        steps, changed = self.module.blueprint.steps, self.tally.change(options)
        shaped = {one for step in changed for one in steps[step].by}
        apart = {other for one in options for other in self.module.apart.partners.get(one, ())}
        return {self.module.part_of[one] for one in shaped | options.keys() | apart}

    def _go(self, plan: Plan) -> None:
        self._take({one: option for one, option in enumerate(plan) if option != self._options[one]})

    def _fits(self, plan: Plan) -> bool:
        """Whether a plan is connected and meets the counted limits."""
        self._go(plan)
        return not self.tally.missing and not self.over()

    def give_back(self, places: Sequence[int]) -> bool:
        """Undo changes that the limits do not need; returns whether there were any.

        Tries all at once, then each half, since building and measuring is slow. A plan that already exceeds a counted
        limit is not built.
        """
        if not places:
            return False
        before = {one: self._options[one] for one in places}
        self._take(dict.fromkeys(places, 0))
        if not self.tally.missing and not self.over() and excess(self.cost(), self.limits) <= 0:
            return True
        self._take(before)
        half = len(places) // 2
        return half > 0 and self.give_back(places[:half]) | self.give_back(places[half:])

    def changed(self) -> list[int]:
        """The decisions that are changed, the least preferred change first."""
        found = [one for one, option in enumerate(self._options) if option]
        return sorted(
            found, key=lambda one: float(self.preferences[one][self._options[one]] - self.preferences[one][0])
        )
