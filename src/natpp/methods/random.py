"""Random choice: one valid transformation, or the best of ten by score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from natpp.config import At, Config
from natpp.methods.base import picked
from natpp.registry import METHODS
from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs


@dataclass(frozen=True)
class Random(Config):
    """The best of several random valid transformations; with one try no score is needed."""

    tries: Annotated[int, At(least=1)] = 1
    """transformations drawn for each input"""
    rule: ClassVar[None] = None

    @property
    def asks(self) -> bool:
        """A single try needs no scores."""
        return self.tries > 1

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> Random:
        """Nothing to learn."""
        return self

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The transformation drawn, or the best of those drawn."""
        drawn = random_rows(inputs, self.tries, generator)
        return [rows[0] for rows in drawn] if self.tries == 1 else picked(inputs, drawn, score)

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> None:
        """None: choosing the best of several is a separate method."""


def random_rows(inputs: Inputs, count: int, generator: np.random.Generator) -> list[list[Row]]:
    """Valid transformations drawn uniformly for every input, repaired if they exceed the budget."""
    found = []
    for index, mask in enumerate(inputs.masks):
        rows = (generator.random((count, *mask.shape)) * mask).argmax(axis=2)
        order = generator.random(rows.shape)  # in which a repair reverts edges
        found.append(inputs.all_repaired([index] * count, [*rows], [*order]))
    return found


METHODS.add("random", Random())
METHODS.add("random-best-of-10", Random(10))
