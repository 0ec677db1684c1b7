"""A method turns input architectures into better ones: it may learn from some, then answers for others."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs


class Method(Protocol):
    """Answers with one row of operations for every input, within rule and budget.

    Examples:
        >>> import natpp.methods  # they register themselves
        >>> from natpp.registry import METHODS
        >>> METHODS["random"].asks, METHODS.given("random:tries=5").asks
        (False, True)
    """

    @property
    def rule(self) -> str | None:
        """The rule of the method; None: the rule that the caller gives."""
        ...

    @property
    def asks(self) -> bool:
        """Whether it needs scores."""
        ...

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> Method:
        """The method once it has learned from training inputs; unchanged if there is nothing to learn."""
        ...

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The method's answer for every input."""
        ...

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> list[list[Row]] | None:
        """`count` answers for every input, to choose from by a score; None if the method has only one."""
        ...


def picked(inputs: Inputs, candidates: list[list[Row]], score: Score) -> list[Row]:
    """The highest-scoring candidate of every input; the first of equal ones."""
    indices = [index for index, rows in enumerate(candidates) for _ in rows]
    scores = inputs.scores(indices, [row for rows in candidates for row in rows], score)
    ends = np.cumsum([len(rows) for rows in candidates])[:-1]
    return [rows[int(some.argmax())] for rows, some in zip(candidates, np.split(scores, ends), strict=True)]
