"""Random choice: one valid transformation, or the best of ten by score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from natpp.config import At
from natpp.core.scores import Score
from natpp.core.subject import Row
from natpp.methods.base import Method, picked
from natpp.registry import METHODS
from natpp.subjects.many import Subjects


@dataclass(frozen=True)
class Random(Method):
    """The best of several random valid transformations; with one try no score is needed."""

    tries: Annotated[int, At(least=1)] = 1
    """transformations drawn for each input"""

    @property
    def needs_scores(self) -> bool:  # type: ignore[override]
        """A single try needs no scores."""
        return self.tries > 1

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """The transformation drawn, or the best of those drawn."""
        drawn = random_rows(subjects, self.tries, chance)
        return drawn if self.tries == 1 else [[row] for row in picked(subjects, drawn, score)]


def random_rows(subjects: Subjects, count: int, chance: np.random.Generator) -> list[list[Row]]:
    """Valid transformations drawn uniformly for every subject, repaired if they exceed the budget."""
    found = []
    for index, mask in enumerate(subjects.masks):
        rows = (chance.random((count, *mask.shape)) * mask).argmax(axis=2)
        order = chance.random(rows.shape)  # in which a repair reverts edges
        found.append(subjects.all_repaired([index] * count, [*rows], [*order]))
    return found


METHODS.add("random", Random())
METHODS.add("random-best-of-10", Random(10))
