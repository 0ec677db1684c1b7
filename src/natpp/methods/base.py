"""A method turns subjects into better ones: it may learn from some, then answers for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from natpp.config import Config
from natpp.core.budget import Budget
from natpp.core.decision import Plan
from natpp.core.learned import Learned
from natpp.core.scores import Score
from natpp.core.subject import Row
from natpp.run import Run
from natpp.subjects.many import Subjects

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Answer:
    """What a method picks for one subject."""

    plan: Plan
    chances: Sequence[Sequence[float]] | None = None
    """per decision, the probability of every option, if the method has any"""
    settings: dict[str, Any] = field(default_factory=dict)
    """how it was found, for the result"""
    learned: Learned | None = None


class Method(Config):
    """Answers with rows of operations for every subject, within rule and budget.

    A subclass is a frozen dataclass of settings. It defines `propose`, and `fit` if there is something to learn.

    Examples:
        >>> import natpp.methods  # registers them
        >>> from natpp.registry import METHODS
        >>> METHODS["random"].needs_scores, METHODS.given("random:tries=5").needs_scores
        (False, True)
    """

    needs_scores: ClassVar[bool] = False
    """whether it chooses by scores"""
    samples_many: ClassVar[bool] = False
    """whether `propose` gives as many different answers as it is asked for"""
    rule: ClassVar[str | None] = None
    """the rule of the method; None: the rule that the caller gives"""
    refuses: ClassVar[Mapping[str, str]] = {}
    """for kinds of subjects that it cannot work on (`architecture`, `module`): why"""
    usual_scorer: ClassVar[str] = "short"
    """the scorer if none is given"""
    longest: ClassVar[int] = 1
    """for how many times the usual steps it may have a scorer train a candidate"""

    def fit(self, subjects: Subjects, score: Score, chance: np.random.Generator) -> Self:
        """The method once it has learned from training subjects."""
        return self

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """Up to `count` rows for every subject, the best first."""
        raise NotImplementedError

    def takes_all(self, budget: Budget, scorer: str, single: bool) -> bool:
        """Whether it uses every kind of decision of a module; `single`: its input is one tensor."""
        return False

    def ready(self, rule: str) -> Self:
        """The method with the files that it needs loaded, for a rule."""
        return self

    @property
    def ops(self) -> tuple[str, ...] | None:
        """The operations it knows; None: all."""
        return None

    def answer(self, subjects: Subjects, score: Any, run: Run) -> Answer:
        """The answer for the only one of some subjects, fitted on it."""
        chance = np.random.default_rng(run.seed)
        ((row, *_),) = self.fit(subjects, score, chance).propose(subjects, 1, score, chance)
        return Answer(subjects.subjects[0].plan(row))


def picked(subjects: Subjects, candidates: list[list[Row]], score: Score) -> list[Row]:
    """The highest-scoring candidate of every subject; in a tie, the first."""
    indices = [index for index, rows in enumerate(candidates) for _ in rows]
    scores = subjects.scores(indices, [row for rows in candidates for row in rows], score)
    ends = np.cumsum([len(rows) for rows in candidates])[:-1]
    return [rows[int(some.argmax())] for rows, some in zip(candidates, np.split(scores, ends), strict=True)]
