"""The changes of one part of a subject that are worth scoring: which of them saves most for what it is thought to lose.

A part is a set of decisions, such as those of a block. Where the loss of its options can be estimated, they are
combined; everything else is tried alone. What no option of another loss and cost beats, the front, is scored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from natpp.core.subject import Subject

Changes = Mapping[int, int]  # decisions and their options
Estimate = Callable[[Changes], float | None]
Cost = Callable[[Changes], NDArray[np.float64] | None]  # what changes add to the cost; None if they do not fit
MOST = 16  # combinations of a part that are scored because their estimate is good
FURTHER = 4  # combinations with each other change that turns out well
LEAVES = 4  # most decisions of a part that are combined freely


class Item(NamedTuple):
    """Some changes of a part, what they add to the cost, and what they are thought to lose."""

    changes: Changes
    cost: NDArray[np.float64]
    loss: float


class Front:
    """The items of a part."""

    def __init__(self, subject: Subject, part: Sequence[int], cost: Cost, estimate: Estimate):
        self.subject, self.cost, self.estimate = subject, cost, estimate
        self.options = {number: subject.decisions[number].allowed[1:] for number in part}
        self.leaves = self._leaves([number for number in part if self.options[number]])
        self.others = [number for number in part if number not in self.leaves]

    def alone(self) -> list[Item]:
        """Single changes without an estimate, which only a score can judge; only those that save something."""
        found = (self._item({number: option}) for number in self.others for option in self.options[number])
        return [one for one in found if one is not None and not np.isfinite(one.loss) and one.cost.min() < 0]

    @functools.cached_property
    def fronts(self) -> list[list[Item]]:
        """Two fronts of changes with estimates: those of the leaves alone, and all."""
        first, *others = [self._with_leaves(base) for base in self._bases()]
        return [_front(one) for one in (first, itertools.chain(first, *others))]

    def combined(self) -> list[Item]:
        """Changes from both fronts, thinned."""
        return list({_key(item): item for one in self.fronts for item in thinned(one, MOST // 2)}.values())

    def near(self, item: Item, known: Iterable[Item], count: int) -> list[Item]:
        """Of both fronts, the changes that cost most nearly the same as an item and are not known."""
        seen, size = {_key(one) for one in known}, np.maximum(abs(item.cost), 1.0)
        left = {_key(one): one for one in itertools.chain(*self.fronts) if _key(one) not in seen}
        return sorted(left.values(), key=lambda one: float((abs(one.cost - item.cost) / size).sum()))[:count]

    def further(self, base: Item) -> list[Item]:
        """Some combinations of a change without an estimate with the ones that have one."""
        plain = Item(base.changes, base.cost, 0.0)
        return thinned([one for one in _front(self._with_leaves(plain)) if one.changes != base.changes], FURTHER)

    def _bases(self) -> Iterator[Item]:
        yield nothing(self.cost)
        for number in self.others:
            for option in self.options[number]:
                one = self._item({number: option})
                if one is not None and np.isfinite(one.loss):
                    yield one

    def _with_leaves(self, base: Item) -> list[Item]:
        """The front of a change together with any options of the leaves."""
        found = [base]
        for leaf in self.leaves:
            added = [self._item({**base.changes, leaf: option}, base) for option in self.options[leaf]]
            options = _front([one for one in added if one is not None and np.isfinite(one.loss)])
            found = _front([*found, *(_joined(one, other, base) for one in found for other in options)])
        return found

    def _leaves(self, part: Sequence[int]) -> list[int]:
        """Decisions with estimates that no price depends on together; those with the most options first."""
        found, taken = list[int](), set[int]()
        for number in sorted(part, key=lambda one: -len(self.options[one])):
            if number not in taken and self.estimate({number: self.options[number][0]}) is not None:
                found.append(number)
                shaped = self.subject.blueprint.shaped.get(number, ())
                taken.update(other for step in shaped for other in self.subject.blueprint.steps[step].by)
        return found[:LEAVES]

    def _item(self, changes: Changes, base: Item | None = None) -> Item | None:
        cost = self.cost(changes)
        if cost is None:
            return None
        loss = self.estimate(changes)
        if loss is None and base is not None:  # as if the base were not there
            loss = self.estimate({one: option for one, option in changes.items() if one not in base.changes})
        return Item(changes, cost, np.inf if loss is None else loss)


def _key(item: Item) -> frozenset[tuple[int, int]]:
    return frozenset(item.changes.items())


def nothing(cost: Cost) -> Item:
    """The item without a change."""
    own = cost({})
    assert own is not None
    return Item({}, own, 0.0)


def _joined(one: Item, other: Item, base: Item) -> Item:
    """Two items with the same base: what each adds to it is added up."""
    return Item({**one.changes, **other.changes}, one.cost + other.cost - base.cost, one.loss + other.loss - base.loss)


def _front(items: Iterable[Item]) -> list[Item]:
    """The items that no other beats in loss and in every cost, by rising loss."""
    found = list[Item]()
    lowest = np.zeros((0, 0))
    for one in sorted(items, key=lambda item: (item.loss, item.cost.sum())):
        if found and (lowest <= one.cost).all(axis=1).any():
            continue
        found.append(one)
        lowest = np.array([item.cost for item in found])
    return found


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most this many items, evenly spread over a front."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]
