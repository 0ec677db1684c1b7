"""Subjects prepared for methods: encoded and masked once, transformed and scored by the thousand."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from natpp.core.budget import Budget, limits_of
from natpp.core.decision import Plan
from natpp.core.scores import Gain, Score, Scores
from natpp.core.subject import Row, Subject
from natpp.nets.policy import GraphBatch, collate


class Subjects:
    """Subjects, with the limits that plans for them must keep; a row of operations turns one into another.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> from natpp.subjects.cells import Frame, cells_of
        >>> from natpp.subjects.many import Subjects
        >>> archs = [natpp.load("darts"), natpp.load("enas")]
        >>> subjects = Subjects(cells_of(archs, Frame("nat++", setting("cifar")), tuple(natpp.registry.OPS)))
        >>> subjects.masks[0].shape  # (decisions, operations)
        (16, 19)
        >>> subjects.transformed(1, subjects.before[1]) == natpp.load("enas")
        True
    """

    def __init__(self, subjects: Iterable[Subject], budget: Budget = Budget()):
        self.subjects = list(subjects)
        self.budget, self.wanted = budget, budget.limits
        self.timed = budget.timed or "latency" in budget.limits
        self.masks = [one.mask for one in self.subjects]
        self.before = [one.before for one in self.subjects]
        self._members: dict[Hashable, list[int]] = {}
        for index, one in enumerate(self.subjects):
            self._members.setdefault(one.alike, []).append(index)
        self._groups = {index: group for group, some in enumerate(self._members.values()) for index in some}
        self._counted: set[int] = set()  # groups whose own costs are known
        self._scores: dict[tuple[int, bytes, bytes], float] = {}
        self._scored_by: Score | Gain | None = None
        self.own = functools.cache(lambda index: self.transformed(index, self.before[index]))
        """the unchanged candidate of a subject"""

    def __len__(self) -> int:
        return len(self.subjects)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that the numbers in a row stand for."""
        return self.subjects[0].ops

    @property
    def given(self) -> list[Any]:
        """What was given, such as architectures."""
        return [one.given for one in self.subjects]

    def limits(self, index: int) -> dict[str, float]:
        """The limits of a subject, as figures."""
        return limits_of(self.wanted, self.subjects[index].own_cost(latency=self.timed)) if self.wanted else {}

    def pairs(self, index: int) -> list[tuple[tuple[str, int], int]]:
        """The position of every decision of a subject, with its operation."""
        return list(zip(self.subjects[index].positions, self.before[index].tolist(), strict=True))

    def batch(self, indices: Sequence[int]) -> GraphBatch:
        """Some of them as one graph for the policy."""
        parts = [(number, *part) for number, i in enumerate(indices) for part in self.subjects[i].graphs()]
        numbers, encoded, masks = zip(*parts, strict=True) if parts else ((), (), ())
        batch = collate(encoded, masks)
        return batch._replace(owners=torch.tensor(numbers)[batch.owners], size=len(indices))

    def rows(
        self, indices: Sequence[int], choices: NDArray[np.int64], worth: NDArray[np.float64]
    ) -> list[tuple[int, Row, Row]]:
        """Choices (samples, edges of a batch) as (index, row as drawn, row within the budget), one input at a time."""
        ends = np.cumsum([self.subjects[i].seen for i in indices])[:-1]
        drawn, weights = (np.split(array, ends, axis=1) for array in (choices, worth))
        found = [
            (index, row, weight)
            for index, rows, some in zip(indices, drawn, weights, strict=True)
            for row, weight in zip(rows, some, strict=True)
        ]
        now = self.all_repaired(*map(list, zip(*found, strict=True))) if found else []
        return [(index, row, kept) for (index, row, _), kept in zip(found, now, strict=True)]

    def all_repaired(
        self, indices: Sequence[int], rows: Sequence[Row], worth: Sequence[NDArray[np.float64]]
    ) -> list[Row]:
        """Repaired rows, one for each index; their costs are computed at once."""
        self.count(indices, rows)
        return [self.repaired(*one) for one in zip(indices, rows, worth, strict=True)]

    def repaired(self, index: int, row: Row, worth: NDArray[np.float64]) -> Row:
        """The row with its least worthy changes undone until it fits, then changed further until it meets the limits.

        A row that fits is returned unchanged.
        """
        subject, plan = self.subjects[index], self.subjects[index].plan(row)
        found = self.within(index, subject.repaired(plan, worth.tolist()))
        return row if found == plan else subject.row(found)

    def within(self, index: int, plan: Plan) -> Plan:
        """A plan within the limits, near this one: the options that this one picks are preferred to all others."""
        subject = self.subjects[index]
        if not self.wanted:
            return plan
        liked = np.zeros(self.masks[index].shape)
        liked[np.arange(len(plan)), subject.row(plan)] = 1.0
        return subject.within(plan, subject.preferences(liked), self.limits(index))

    def transformed(self, index: int, row: Row) -> Any:
        """A candidate: the subject with these operations."""
        subject = self.subjects[index]
        return subject.candidate(subject.plan(row))

    def random_row(self, index: int, generator: np.random.Generator) -> Row:
        """A valid transformation drawn uniformly, and repaired if the budget requires it."""
        mask = self.masks[index]
        row = (generator.random(mask.shape) * mask).argmax(axis=1)
        return self.repaired(index, row, generator.random(len(row)))

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Score | Gain) -> Scores:
        """Scores of rows, one for each index, or gains over the input; earlier scores are cached."""
        if score != self._scored_by:
            self._scores.clear()
            self._scored_by = score
        pairs = isinstance(score, Gain)
        keys = [
            (self._groups[index], self.before[index].tobytes() if pairs else b"", row.tobytes())
            for index, row in zip(indices, rows, strict=True)
        ]
        new = {key: number for number, key in enumerate(keys) if key not in self._scores}
        if new:
            after = [self.transformed(indices[number], rows[number]) for number in new.values()]
            if isinstance(score, Gain):
                found = score.of([self.own(indices[number]) for number in new.values()], after)
            else:
                found = score(after)
            self._scores.update(zip(new, found.tolist(), strict=True))
        return np.array([self._scores[key] for key in keys])

    def fits(self, index: int, row: Row) -> bool:
        """Whether a row is allowed as a whole and meets the limits that can be counted."""
        group = self._groups[index]
        if group not in self._counted:
            self._counted.add(group)
            some = list(self._members.values())[group]
            self.count(some, [self.before[one] for one in some])
        return self.subjects[index].fits(self.subjects[index].plan(row))

    def count(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        """Compute the cost of many rows at once, if `fits` needs it."""
        groups: dict[int, tuple[int, list[Row]]] = {}
        for index, row in zip(indices, rows, strict=True):
            groups.setdefault(self._groups[index], (index, []))[1].append(row)
        for index, some in groups.values():
            if self.budget.strict:
                self.subjects[index].count(some)
