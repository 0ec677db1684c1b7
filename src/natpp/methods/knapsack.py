"""Every change is scored alone, and the best are combined within the limits: the baseline other methods have to beat.

The worth of a change is how much it alone raises the score of the unchanged subject. Changes are chosen as if their
worth added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from natpp.core.scores import Score
from natpp.core.solve import with_option
from natpp.core.subject import Row
from natpp.methods.base import Answer, Method
from natpp.registry import METHODS
from natpp.run import Run
from natpp.subjects.many import Subjects

UNKNOWN = -1e6  # the worth of a change that is not allowed alone


@dataclass(frozen=True)
class Knapsack(Method):
    """Scores every change alone and combines the best ones within the limits."""

    needs_scores: ClassVar[bool] = True
    all_kinds: ClassVar[bool] = True
    usual_scorer: ClassVar[str] = "fidelity"

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """For every subject, the changes that raise its score, as many as fit."""
        return [[self._row(subjects, index, score, Run())] for index in range(len(subjects))]

    def answer(self, subjects: Subjects, score: Any, run: Run) -> Answer:
        """The same for a single subject."""
        return Answer(subjects.subjects[0].plan(self._row(subjects, 0, score, run)))

    def _row(self, subjects: Subjects, index: int, score: Score, run: Run) -> Row:
        subject, limits = subjects.subjects[index], subjects.limits(index)
        start = (0,) * len(subject.decisions)
        single = [
            (number, option)
            for number, one in enumerate(subject.decisions)
            for option in one.allowed
            if option and subject.fits(with_option(start, number, option))
        ]
        rows = [subject.row(start), *(subject.row(with_option(start, *change)) for change in single)]
        scores: list[float] = []
        for number, row in enumerate(rows):
            scores += subjects.scores([index], [row], score).tolist()
            if run.watch is not None:
                run.watch("scores", number + 1, len(rows), {"best": max(scores)})
        table = np.full(subject.mask.shape, UNKNOWN)
        table[np.arange(len(start)), subject.before] = 0.0
        for (number, option), value in zip(single, scores[1:], strict=True):
            table[number, subject.row(with_option(start, number, option))[number]] = value - scores[0]
        worth = [float(one.max()) for one in table]
        plan = tuple(
            int(np.argmax([own[option] if option in one.allowed else -np.inf for option in range(len(one.options))]))
            for one, own in zip(subject.decisions, subject.preferences(table), strict=True)
        )
        plan = subject.repaired(plan, worth)
        return subject.row(subject.chosen(plan, table, limits) if limits else plan)


METHODS.add("knapsack", Knapsack())
