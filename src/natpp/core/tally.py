"""The cost of one plan, kept up to date as options change one at a time.

A change is propagated from the steps it shapes only to the steps it affects. So trying one change takes about as long
in a network of a thousand steps as in one of ten.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from natpp.core.blueprint import Blueprint, Price
from natpp.core.decision import Plan


class Tally:
    """A plan that can change, starting from the unchanged subject: what it costs, and what is missing.

    `missing` counts the steps whose `keep` is violated. If it is above 0, the plan is not connected and its cost is
    meaningless, since changes are not propagated beyond these steps.

    Examples:
        >>> from natpp.core.blueprint import Blueprint, Step
        >>> conv = Step("conv", (0,), {(0,): (9, 900), (1,): (0, 0), (2,): None}, by=(0,))
        >>> tally = Tally(Blueprint((Step("image"), conv)))
        >>> tally.tried({0: 1}), tally.at((1,)).cost, tally.cost
        ((0, 0), (0, 0), (9, 900))
        >>> tally.at((2,)).missing
        1
    """

    def __init__(self, blueprint: Blueprint):
        self._plan = dict.fromkeys(blueprint.shaped, 0)  # only decisions that shape something
        plan = (0,) * (1 + max(self._plan, default=-1))
        flow, self.blueprint = blueprint.flow(plan), blueprint
        assert flow.connected, "nothing reaches the output of the subject as it is"
        self._cost, self.missing = list(blueprint.spent(plan).living), 0
        self._steps, self._reached, self._alive = blueprint.steps, flow.reached, flow.alive
        self._prices = [step.prices[tuple([0 for _ in step.by])] for step in self._steps]
        onward = [int(one or number in blueprint.given) for number, one in enumerate(flow.reached)]
        self._inputs = [sum([onward[read] for read in step.reads]) for step in self._steps]  # that are reached
        self._used = [0] * len(self._steps)  # readers that are alive
        self._used[-1] = 1
        for step, alive in zip(self._steps, flow.alive, strict=True):
            for read in step.reads if alive and not step.idle else ():
                self._used[read] += 1
        self._lacks = {number: False for number, step in enumerate(self._steps) if step.keep}
        self._lacks[len(self._steps) - 1] = False

    def at(self, plan: Plan) -> Tally:
        """A copy of the tally at this plan."""
        other = copy.copy(self)
        for name in ("plan", "cost", "reached", "alive", "prices", "inputs", "used", "lacks"):
            setattr(other, f"_{name}", getattr(self, f"_{name}").copy())
        other.change(dict(enumerate(plan)))
        return other

    @property
    def cost(self) -> Price:
        """The cost of what is alive, in the order of the blueprint's figures."""
        return tuple(self._cost)

    def alive(self, step: int) -> bool:
        """Whether the output depends on a step."""
        return bool(self._alive[step])

    def change(self, options: Mapping[int, int]) -> set[int]:
        """Change some decisions; returns the steps that became alive or dead."""
        changed, opened = self._changed(options), []
        self._plan.update(changed)
        for number in {number for decision in changed for number in self.blueprint.shaped[decision]}:
            step, before = self._steps[number], self._prices[number]
            after = self._prices[number] = step.prices[tuple([self._plan[one] for one in step.by])]
            if self._alive[number] or step.fixed:
                self._add(before, -1)
                self._add(after, 1)
            if (before is None) != (after is None):
                opened.append(number)
        return self._followed(opened) if opened else set()

    def tried(self, options: Mapping[int, int]) -> Price | None:
        """What the plan would cost with some decisions changed; None if it would not be connected."""
        changed = self._changed(options)
        if (price := self._repriced(changed)) is not None:
            return None if self.missing else price
        before = {one: self._plan[one] for one in changed}
        self.change(changed)
        found = None if self.missing else self.cost
        self.change(before)
        return found

    def _changed(self, options: Mapping[int, int]) -> dict[int, int]:
        """The options that differ from the plan's; decisions that shape nothing are left out."""
        return {one: option for one, option in options.items() if self._plan.get(one, option) != option}

    def _repriced(self, changed: Mapping[int, int]) -> Price | None:
        """The cost if only prices change; None if a step starts or stops passing its input on."""
        found = list(self._cost)
        shaped = {number for decision in changed for number in self.blueprint.shaped[decision]}
        for number in shaped:
            step, before = self._steps[number], self._prices[number]
            after = step.prices[tuple([changed.get(one, self._plan[one]) for one in step.by])]
            if (before is None) != (after is None):
                return None
            if self._alive[number] or step.fixed:
                for price, times in ((before, -1), (after, 1)):
                    for place, figure in enumerate(price or ()):
                        found[place] += times * figure
        return tuple(found)

    def _add(self, price: Price | None, times: int) -> None:
        for place, figure in enumerate(price or ()):
            self._cost[place] += times * figure

    def _followed(self, opened: Iterable[int]) -> set[int]:
        """Propagate from steps that started or stopped passing their input on, in both directions."""
        changed = [-number for number in self._forward(list(opened))]
        found: set[int] = set()
        heapify(changed)
        while changed:
            number = -heappop(changed)
            step = self._steps[number]
            now = int(self._reached[number] and self._used[number] > 0)
            if step.keep == "reached":
                now = int(self._used[number] > 0)
                self._lack(number, bool(now) and not self._reached[number])
            if step.keep == "alive":
                self._lack(number, not now)
            elif now != self._alive[number] and not step.idle:
                found.add(number)
                self._live(number, now)
                for read in step.reads:
                    self._used[read] += 1 if now else -1
                    heappush(changed, -read)
        for number in self.blueprint.idle:
            now = int(self._reached[number] and all(self._alive[read] for read in self._steps[number].reads))
            if now != self._alive[number]:
                self._live(number, now)
        return found

    def _forward(self, waiting: list[int]) -> list[int]:
        """The steps that the input now reaches or no longer reaches."""
        found = []
        heapify(waiting)
        while waiting:
            number = heappop(waiting)
            step, count = self._steps[number], self._inputs[number]
            joined = count == len(step.reads) if step.join == "all" else count > 0
            now = int(joined and self._prices[number] is not None)
            if number == len(self._steps) - 1:
                self._lack(number, not now)
            elif now != self._reached[number]:
                self._reached[number] = now
                found.append(number)
                for reader in () if step.keep == "reached" else self.blueprint.readers[number]:
                    self._inputs[reader] += 1 if now else -1
                    heappush(waiting, reader)
        return found

    def _lack(self, number: int, lacks: bool) -> None:
        self.missing += lacks - self._lacks[number]
        self._lacks[number] = lacks

    def _live(self, number: int, now: int) -> None:
        self._alive[number] = now
        if not self._steps[number].fixed:
            self._add(self._prices[number], 1 if now else -1)
