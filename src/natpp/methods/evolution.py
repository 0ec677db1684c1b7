"""Regularized evolution for each input: mutate a good architecture, score it, remove the oldest."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from natpp.config import At
from natpp.core.scores import Score
from natpp.core.subject import Row
from natpp.methods.base import Method
from natpp.registry import METHODS
from natpp.subjects.many import Subjects


@dataclass(frozen=True)
class Evolution(Method):
    """Uses as many scores per input as best-of-10, including that of the input."""

    scores: Annotated[int, At(least=1)] = 10
    """scores per input, including that of the input"""
    population: Annotated[int, At(least=1)] = 5
    """size of the population; each new member replaces the oldest"""
    tournament: Annotated[int, At(least=1)] = 3
    """members drawn per mutation; the best of them is mutated"""
    needs_scores = True

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """The best candidate seen for every subject; all evolve side by side."""
        indices = list(range(len(subjects)))
        first = subjects.all_repaired(indices, subjects.before, [np.ones(len(row)) for row in subjects.before])
        found = subjects.scores(indices, first, score)
        living = [deque([(value, row)], self.population) for value, row in zip(found.tolist(), first, strict=True)]
        best = [members[0] for members in living]
        for _ in range(self.scores - 1):
            children = [self._child(subjects, index, living[index], chance) for index in indices]
            children = subjects.all_repaired(indices, children, [np.ones(len(child)) for child in children])
            found = subjects.scores(indices, children, score)
            for index, value, row in zip(indices, found.tolist(), children, strict=True):
                living[index].append((value, row))
                if value > best[index][0]:
                    best[index] = (value, row)
        return [[row] for _, row in best]

    def _child(
        self, subjects: Subjects, index: int, members: deque[tuple[float, Row]], chance: np.random.Generator
    ) -> Row:
        drawn = chance.integers(len(members), size=self.tournament).tolist()
        parent = max((members[number] for number in drawn), key=lambda member: member[0])[1]
        mask = subjects.masks[index].copy()
        mask[np.arange(len(parent)), parent] = False  # something has to change
        edges = np.flatnonzero(mask.any(axis=1))
        if not len(edges):
            return parent
        child = parent.copy()
        edge = chance.choice(edges)
        child[edge] = chance.choice(np.flatnonzero(mask[edge]))
        return child


METHODS.add("evolution", Evolution())
