"""Regularized evolution for each input: mutate a good architecture, score it, remove the oldest."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from natpp.config import At, Config
from natpp.registry import METHODS
from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs


@dataclass(frozen=True)
class Evolution(Config):
    """Uses as many scores per input as best-of-10, including that of the input."""

    scores: Annotated[int, At(least=1)] = 10
    """scores per input, including that of the input"""
    population: Annotated[int, At(least=1)] = 5
    """size of the population; each new member replaces the oldest"""
    tournament: Annotated[int, At(least=1)] = 3
    """members drawn per mutation; the best of them is mutated"""
    rule: ClassVar[None] = None
    asks: ClassVar[bool] = True

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> Evolution:
        """Nothing to learn."""
        return self

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The best architecture seen for every input; all inputs evolve side by side."""
        indices = list(range(len(inputs)))
        first = [inputs.encoded[index].ops for index in indices]
        found = inputs.scores(indices, first, score)
        living = [deque([(value, row)], self.population) for value, row in zip(found.tolist(), first, strict=True)]
        best = [members[0] for members in living]
        for _ in range(self.scores - 1):
            children = [self._child(inputs, index, living[index], generator) for index in indices]
            children = inputs.all_repaired(indices, children, [np.ones(len(child)) for child in children])
            found = inputs.scores(indices, children, score)
            for index, value, row in zip(indices, found.tolist(), children, strict=True):
                living[index].append((value, row))
                if value > best[index][0]:
                    best[index] = (value, row)
        return [row for _, row in best]

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> None:
        """None: it has already chosen by scores."""

    def _child(
        self, inputs: Inputs, index: int, members: deque[tuple[float, Row]], generator: np.random.Generator
    ) -> Row:
        drawn = generator.integers(len(members), size=self.tournament).tolist()
        parent = max((members[number] for number in drawn), key=lambda member: member[0])[1]
        mask = inputs.masks[index].copy()
        mask[np.arange(len(parent)), parent] = False  # something has to change
        edges = np.flatnonzero(mask.any(axis=1))
        if not len(edges):
            return parent
        child = parent.copy()
        edge = generator.choice(edges)
        child[edge] = generator.choice(np.flatnonzero(mask[edge]))
        return child


METHODS.add("evolution", Evolution())
