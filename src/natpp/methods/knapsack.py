"""An exact program over changes that are scored one part at a time.

Every part of a subject, such as a block of a module, may change in several ways: the best of them by estimate are each
scored alone in the unchanged subject. As if losses added up, a program then picks one change for every part; prices of
parts that meet are joint ones, so costs are exact.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from natpp.config import At
from natpp.core.budget import Budget
from natpp.core.decision import Plan
from natpp.core.measures import COUNTED
from natpp.core.program import Items, Problem, solved
from natpp.core.scores import Score
from natpp.core.subject import Row, Subject
from natpp.methods.base import Answer, Method
from natpp.methods.fronts import Changes, Front, Item, nothing
from natpp.registry import METHODS
from natpp.run import Run
from natpp.subjects.many import Subjects

UNKNOWN = -1e6  # the worth of a change that was not scored
LARGEST = 1 << 14  # entries of a table of joint prices; parts that need more are priced in pairs
APART = 4  # plans that are scored as a whole differ in one of so many parts
ROUNDS, NEAR = 2, 5  # rounds in which more changes are scored, and how many of each part
TRIES = 4  # times that limits are tightened where more than three parts meet


@dataclass(frozen=True)
class Knapsack(Method):
    """Scores changes alone and picks the best ones by an exact program."""

    nodes: Annotated[int, At(least=1)] = 3000
    """most nodes of the program's search; the answer is the best one found so far"""
    finalists: Annotated[int, At(least=1)] = 4
    """how many of the best plans are scored as a whole; the best of these is the result"""
    needs_scores: ClassVar[bool] = True
    usual_scorer: ClassVar[str] = "fidelity"

    def takes_all(self, budget: Budget, scorer: str, single: bool) -> bool:
        """Always."""
        return True

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """For every subject, the best plan."""
        plans = [self.plans(subjects, index, score, Run())[0][0] for index in range(len(subjects))]
        return [[subject.row(plan)] for subject, plan in zip(subjects.subjects, plans, strict=True)]

    def answer(self, subjects: Subjects, score: Any, run: Run) -> Answer:
        """The best of the finalists for a single subject."""
        plans, settings = self.plans(subjects, 0, score, run, self.finalists)
        if len(plans) == 1:
            return Answer(plans[0], settings=settings)
        rows = [subjects.subjects[0].row(plan) for plan in plans]
        return Answer(plans[int(subjects.scores([0] * len(plans), rows, score).argmax())], settings=settings)

    def plans(
        self, subjects: Subjects, index: int, score: Any, run: Run, count: int = 1
    ) -> tuple[list[Plan], dict[str, Any]]:
        """The best plans for a subject, and settings for the result."""
        scored, limits = Scored(subjects, index, score, run), subjects.limits(index)
        if not limits:
            return [scored.best()], {}
        scored.refine(limits, self.nodes)
        found, proved = scored.within(limits, count, self.nodes)
        return list(found), {} if proved else {"stopped": f"the program, after {self.nodes} nodes"}


METHODS.add("knapsack", Knapsack())


class Scored:
    """The changes of a subject that were scored, part by part; their losses may be corrected."""

    def __init__(self, subjects: Subjects, index: int, score: Any, run: Run):
        self.subject: Subject = subjects.subjects[index]
        self.start: Plan = (0,) * len(self.subject.decisions)
        limits = subjects.limits(index)
        self.counted = [name for name in COUNTED if name in limits] or ["madds"]
        self.figures = self._figures(self.subject.living(self.start))
        self._score_of = functools.partial(self._scores, subjects, index, score)
        (self.own,) = self._score_of([self.start])
        estimate, self.remaining = getattr(score, "estimated", lambda changes: None), getattr(score, "remaining", None)
        self.fronts = [
            Front(self.subject, part, self.cost, estimate)
            for part in self.subject.together
            if any(len(self.subject.decisions[number].allowed) > 1 for number in part)
        ]
        self.items: list[list[Item]] = []
        """per part, the unchanged one, then what was scored, with its loss"""
        for number, front in enumerate(self.fronts):
            first = self._judged([*front.combined(), *front.alone()])
            others = [one for one in _best(first) if one.changes.keys() <= set(front.others)]
            more = [item for one in others for item in front.further(one)]
            self.items.append(_unbeaten([nothing(self.cost), *first, *self._judged(more)]))
            if run.watch is not None:
                run.watch("scores", number + 1, len(self.fronts), {"changes": sum(map(len, self.items)) - number - 1})

    def refine(self, limits: Mapping[str, float], nodes: int) -> None:
        """Make losses those after the layers behind are fitted, too; score changes that cost about as much as the best.

        What remains of a loss is measured once for each part, on the change that is best at first.
        """
        (items, *_), _ = self._solved(limits, 1, nodes)
        found = [self._remaining(known[item]) for known, item in zip(self.items, items, strict=True)]
        usual = float(np.median([one for one in found if one is not None] or [1.0]))
        shares = [usual if one is None else one for one in found]
        self.items = [_scaled(known, share) for known, share in zip(self.items, shares, strict=True)]
        for _ in range(ROUNDS):
            (items, *_), _ = self._solved(limits, 1, nodes)
            new = [
                _scaled(self._judged(front.near(known[item], known, NEAR)), share)
                for front, known, item, share in zip(self.fronts, self.items, items, shares, strict=True)
            ]
            if not any(new):
                return
            self.items = [_unbeaten([*known, *more]) for known, more in zip(self.items, new, strict=True)]
            self.__dict__.pop("_joint", None)

    def _remaining(self, item: Item) -> float | None:
        """The share of a change's loss that remains once the layers behind are fitted; None if that is unknown."""
        return self.remaining(self.plan(item.changes)) if item.changes and self.remaining is not None else None

    def _judged(self, items: Sequence[Item]) -> list[Item]:
        """Some items with their scored losses, without those that a subject does not allow."""
        plans = [self.plan(item.changes) for item in items]
        fitting = [number for number, plan in enumerate(plans) if any(plan) and self.subject.fits(plan)]
        scores = self._score_of([plans[number] for number in fitting]) if fitting else []
        return [items[number]._replace(loss=self.own - found) for number, found in zip(fitting, scores, strict=True)]

    def _scores(self, subjects: Subjects, index: int, score: Any, plans: Sequence[Plan]) -> list[float]:
        found: list[float] = subjects.scores(
            [index] * len(plans), [self.subject.row(one) for one in plans], score
        ).tolist()
        return found

    def cost(self, changes: Changes) -> NDArray[np.float64] | None:
        """What some changes add to the counted figures that are limited; None if they do not fit."""
        found = self.subject.tried(changes)
        return None if found is None else self._figures(found) - self.figures

    def _figures(self, found: Mapping[str, float]) -> NDArray[np.float64]:
        return np.array([found[name] for name in self.counted], dtype=np.float64)

    def plan(self, changes: Changes) -> Plan:
        """A plan with some changes."""
        return tuple(changes.get(number, 0) for number in range(len(self.start)))

    def best(self) -> Plan:
        """Every change that raises the score, one in each part."""
        chosen = dict[int, int]()
        for items in self.items:
            chosen |= min(items, key=lambda one: one.loss).changes
        worth = [float(number in chosen) for number in range(len(self.start))]
        return self.subject.repaired(self.plan(chosen), worth)

    def within(self, limits: Mapping[str, float], count: int, nodes: int) -> tuple[dict[Plan, Items], bool]:
        """The plans of least loss within limits, with the item of every part; and whether they are proved to be."""
        found, proved = self._solved(limits, count, nodes)
        worth = self.preferences()
        return {self.subject.within(self._whole(items), worth, limits): items for items in found}, proved

    def _solved(self, limits: Mapping[str, float], count: int, nodes: int) -> tuple[list[Items], bool]:
        """The items of every part; those of the unchanged subject if nothing was found."""
        wanted = np.array([limits.get(name, np.inf) for name in self.counted])
        room = wanted - self.figures
        for _ in range(TRIES):
            harms = [np.array([max(one.loss, 0.0) for one in items]) for items in self.items]
            costs = [np.array([one.cost for one in items]) for items in self.items]
            apart = max(1, len(self.items) // APART)
            found = solved(Problem(harms, costs, room, *self._joint), count, apart=apart, nodes=nodes)
            over = [self._figures(self.subject.living(self._whole(one.items))) - wanted for one in found]
            fitting = [one.items for one, more in zip(found, over, strict=True) if (more <= 0).all()]
            if fitting:
                return fitting, all(one.proved for one in found)
            if not over:
                break
            room = room - np.maximum(np.min(over, axis=0), 0.0)
        return [(0,) * len(self.items)], True

    def preferences(self) -> list[NDArray[np.float64]]:
        """The worth of every option, as far as it was scored alone."""
        found = [np.full(len(one.options), UNKNOWN) for one in self.subject.decisions]
        for own in found:
            own[0] = 0.0
        for items in self.items:
            for one in items:
                if len(one.changes) == 1:
                    ((number, option),) = one.changes.items()
                    found[number][option] = -one.loss
        return found

    def _whole(self, picked: Items) -> Plan:
        changes = dict[int, int]()
        for items, number in zip(self.items, picked, strict=True):
            changes |= items[number].changes
        return self.subject.repaired(self.plan(changes), [1.0] * len(self.start))

    @functools.cached_property
    def _joint(self) -> tuple[dict[tuple[int, ...], NDArray[np.float64]], list[Any]]:
        """What items of several parts cost further together, and which exclude each other."""
        of = {number: part for part, items in enumerate(self.items) for one in items for number in one.changes}
        meets = {tuple(sorted({of[by] for by in step.by if by in of})) for step in self.subject.blueprint.steps}
        sets = {some for some in meets if len(some) > 1}
        small = [some for some in sets if len(some) == 3 and self._size(some) <= LARGEST]
        pairs = {pair for some in sets for pair in itertools.combinations(some, 2)}
        tables, banned = dict[tuple[int, ...], NDArray[np.float64]](), list[Any]()
        for some in [*sorted(pairs), *sorted(small)]:
            tables[some] = self._table(some, tables, banned)
        return {some: table for some, table in tables.items() if table.any()}, banned

    def _size(self, parts: Sequence[int]) -> int:
        return int(np.prod([len(self.items[part]) for part in parts]))

    def _table(
        self, parts: tuple[int, ...], known: Mapping[tuple[int, ...], NDArray[np.float64]], banned: list[Any]
    ) -> NDArray[np.float64]:
        sizes = [len(self.items[part]) for part in parts]
        found = np.zeros((*sizes, len(self.counted)))
        for place in itertools.product(*(range(1, size) for size in sizes)):
            picked = [self.items[part][number] for part, number in zip(parts, place, strict=True)]
            changes = {number: option for one in picked for number, option in one.changes.items()}
            cost = self.cost(changes)
            if cost is None:
                if len(parts) == 2:
                    banned.append(tuple(zip(parts, place, strict=True)))
                continue
            found[place] = cost - sum(one.cost for one in picked)
            if len(parts) == 3:
                for pair in itertools.combinations(range(3), 2):
                    key = parts[pair[0]], parts[pair[1]]
                    if key in known:
                        found[place] -= known[key][place[pair[0]], place[pair[1]]]
        return found


def _best(items: Sequence[Item]) -> list[Item]:
    """The items that save more than any that loses less."""
    found, least = list[Item](), np.inf
    for one in sorted(items, key=lambda item: item.loss):
        if one.cost.sum() < min(least, 0.0):
            found.append(one)
            least = one.cost.sum()
    return found


def _scaled(items: Sequence[Item], share: float) -> list[Item]:
    """The items, with a share of their losses."""
    return [one._replace(loss=one.loss * share) for one in items]


def _unbeaten(items: Sequence[Item]) -> list[Item]:
    """The items in their order, without those that add to the cost and lose something."""
    return [one for one in items if not one.changes or one.loss < 0 or one.cost.min() < 0]
