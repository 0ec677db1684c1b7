"""The cost of one plan, kept up to date while options change one after the other.

A change is followed from the steps it shapes to those where something becomes different, and no further. So trying one
change takes about as long in a network of a thousand steps as in one of ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from natpp.core.blueprint import Blueprint, Price
from natpp.core.decision import Plan


class Tally:
    """A plan under change: what it costs, and how many of its steps are missing that must be there.

    Examples:
        >>> from natpp.core.blueprint import Blueprint, Step
        >>> conv = Step("conv", (0,), {(0,): (9, 900), (1,): (0, 0), (2,): None}, by=(0,))
        >>> tally = Tally(Blueprint((Step("image"), conv)), (0,))
        >>> tally.set({0: 1}), tally.cost, tally.missing
        (set(), (0, 0), 0)
        >>> tally.set({0: 2}), tally.missing
        ({0, 1}, 1)
    """

    def __init__(self, blueprint: Blueprint, plan: Plan):
        flow, spent = blueprint.flow(plan), blueprint.spent(plan)
        self.blueprint, self._plan, self._cost = blueprint, list(plan), list(spent.living)
        self._steps, self._readers = blueprint.steps, blueprint.readers
        self._reached, self._alive = flow.reached, flow.alive
        self._prices = [step.prices[tuple([plan[one] for one in step.by])] for step in self._steps]
        self._inputs = [sum([flow.reached[read] for read in step.reads]) for step in self._steps]  # that are reached
        self._used = [0] * len(self._steps)  # readers that are alive
        self._used[-1] = 1
        for step, alive in zip(self._steps, flow.alive, strict=True):
            for read in step.reads if alive and not step.idle else ():
                self._used[read] += 1
        self._keep = {number: step.keep for number, step in enumerate(self._steps) if step.keep}
        self._keep.setdefault(len(self._steps) - 1, "reached")
        self.missing = sum(
            not (flow.alive if keep == "alive" else flow.reached)[number] for number, keep in self._keep.items()
        )

    @property
    def plan(self) -> Plan:
        """The plan as it is now."""
        return tuple(self._plan)

    @property
    def cost(self) -> Price:
        """What is alive costs this much, in the order of the blueprint's figures."""
        return tuple(self._cost)

    def alive(self, step: int) -> bool:
        """Whether the output depends on a step."""
        return bool(self._alive[step])

    def set(self, options: Mapping[int, int]) -> set[int]:
        """Change some decisions; returns the steps that came to life or died."""
        shaped: set[int] = set()
        for decision, option in options.items():
            if self._plan[decision] != option:
                self._plan[decision] = option
                shaped.update(self.blueprint.shaped.get(decision, ()))
        opened = []
        for number in shaped:
            step, before = self._steps[number], self._prices[number]
            after = self._prices[number] = step.prices[tuple([self._plan[one] for one in step.by])]
            if self._alive[number] or step.fixed:
                self._add(before, -1)
                self._add(after, 1)
            if (before is None) != (after is None):
                opened.append(number)
        return self._followed(opened) if opened else set()

    def _add(self, price: Price | None, times: int) -> None:
        for place, figure in enumerate(price or ()):
            self._cost[place] += times * figure

    def _followed(self, opened: Iterable[int]) -> set[int]:
        """Follow the steps that let something through now, or do not any more, in both directions."""
        changed = [-number for number in self._forward(list(opened))]
        found: set[int] = set()
        heapify(changed)
        while changed:
            number = -heappop(changed)
            now = int(self._reached[number] and self._used[number] > 0)
            if now != self._alive[number] and not self._steps[number].idle:
                found.add(number)
                self._live(number, now)
                for read in self._steps[number].reads:
                    self._used[read] += 1 if now else -1
                    heappush(changed, -read)
        for number in self.blueprint.idle:
            now = int(self._reached[number] and all(self._alive[read] for read in self._steps[number].reads))
            if now != self._alive[number]:
                self._live(number, now)
        return found

    def _forward(self, waiting: list[int]) -> list[int]:
        """The steps that something of the input reaches now, or does not any more."""
        found = []
        heapify(waiting)
        while waiting:
            number = heappop(waiting)
            step, count = self._steps[number], self._inputs[number]
            joined = count == len(step.reads) if step.join == "all" else count > 0
            now = int(joined and self._prices[number] is not None)
            if now != self._reached[number]:
                self._reached[number] = now
                found.append(number)
                if self._keep.get(number) == "reached":
                    self.missing += -1 if now else 1
                for reader in self._readers[number]:
                    self._inputs[reader] += 1 if now else -1
                    heappush(waiting, reader)
        return found

    def _live(self, number: int, now: int) -> None:
        self._alive[number] = now
        if not self._steps[number].fixed:
            self._add(self._prices[number], 1 if now else -1)
        if self._keep.get(number) == "alive":
            self.missing += -1 if now else 1
