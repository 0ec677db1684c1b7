"""Score a few candidates, predict the others, and choose round by round which to score next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from natpp.core.scores import Score, Scores
from natpp.core.subject import Row
from natpp.errors import SettingError
from natpp.scorers.base import Scorer
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.subjects.many import Subjects

FIRST_SCORES = 16  # maximum number used to measure how long a score takes
TRIES = 20  # draws per random transformation


class Pool(Protocol):
    """Candidates of which some are scored."""

    def __len__(self) -> int:
        """How many are scored."""

    def late(self) -> bool:
        """Whether the time is up."""

    def score_promising(self, count: int) -> None:
        """Score up to `count` more: the most promising ones, predicted from the scores so far."""


def in_rounds(pool: Pool, total: int, rounds: int) -> None:
    """Score promising candidates in equal rounds until `total` are scored, or all are, or the time is up."""
    a_round = max(math.ceil((total - len(pool)) / rounds), 1)
    while len(pool) < total and not pool.late():
        before = len(pool)
        pool.score_promising(min(a_round, total - before))
        if len(pool) == before:
            break  # every candidate has been scored


class Round(NamedTuple):
    """Candidates that a prediction chose, with the expected scores and, once scored, the real ones."""

    number: int  # from 1 up
    expected: Scores
    scores: Scores | None = None


def predicted(
    subjects: Subjects,
    scorer: Scorer,
    config: PredictConfig,
    chance: np.random.Generator,
    plan: Callable[[], int] | None = None,
    tell: Callable[[Round], None] | None = None,
) -> Prediction:
    """A prediction fitted on as many scores as the scorer's limit allows, or as `plan` returns after the first ones.

    `tell` is called twice per round: after its candidates are chosen, and after they are scored.
    """
    if scorer.left is None and plan is None:
        raise SettingError("a prediction needs a scorer with a limit")
    if scorer.left is not None and scorer.left < 2:
        raise SettingError(f"a prediction needs at least 2 scores, and {scorer.left} are left")
    most = FIRST_SCORES if scorer.left is None else scorer.left
    if plan is not None:
        most = min(most, FIRST_SCORES, max(scorer.together, 2))
    pool = _Climbing(subjects, scorer, config, chance, tell or (lambda _: None))
    if plan is not None:
        pool.take_random(most)
        pool.score()
        most = max(plan(), len(pool))
    pool.take_random(max(round(most * config.random_share), 2) - len(pool))
    pool.score()
    in_rounds(pool, most, config.rounds)
    return Prediction(pool.candidates, pool.scores, config)


class _Climbing:
    """Candidates for some subjects; promising ones are reached by ascent on the prediction."""

    def __init__(
        self,
        subjects: Subjects,
        scorer: Scorer,
        config: PredictConfig,
        chance: np.random.Generator,
        tell: Callable[[Round], None],
    ):
        self.subjects, self.scorer, self.config, self.chance, self.tell = subjects, scorer, config, chance, tell
        self.candidates: list[Any] = []
        self.scores: Scores = np.zeros(0)
        self._known: set[Any] = set()
        self._rounds, self._most = 0, 0  # rounds so far, and candidates in the largest of them

    def __len__(self) -> int:
        return len(self.candidates)

    def late(self) -> bool:
        return False  # the number of scores was planned

    def take(self, candidate: Any) -> bool:
        """Add a candidate that is not known yet."""
        key = self.scorer.key(candidate)
        if key in self._known:
            return False
        self._known.add(key)
        self.candidates.append(candidate)
        return True

    def take_random(self, count: int) -> None:
        """Subjects, plus random transformations if there are too few of them (for example one given architecture)."""
        for index in self.chance.permutation(len(self.subjects)).tolist():
            if count <= 0:
                return
            count -= self.take(self.subjects.own(index))
        for _ in range(TRIES * count):
            if count <= 0:
                return
            index, row = self._random()
            count -= self.take(self.subjects.transformed(index, row))

    def score(self) -> None:
        """Score all that were taken since the last time."""
        new = self.candidates[len(self.scores) :]
        self.scores = np.concatenate([self.scores, self.scorer(new)]) if new else self.scores

    def score_promising(self, count: int) -> None:
        prediction, before = Prediction(self.candidates, self.scores, self.config), len(self)
        self._most = max(self._most, count)
        indices = self.chance.permutation(len(self.subjects)).tolist()[: max(4 * self._most, 100)]
        starts = [(index, self.subjects.before[index]) for index in indices]
        while len(starts) < count:  # too few subjects: also start from random transformations of them
            starts.append(self._random())
        while starts and len(self) - before < count:  # start from as many as needed
            some, starts = starts[:count], starts[count:]
            which, rows = [index for index, _ in some], [row for _, row in some]
            for index, row in zip(which, ascended(self.subjects, which, prediction.expected, rows), strict=True):
                if len(self) - before < count:
                    self.take(self.subjects.transformed(index, row))
        self.take_random(count - (len(self) - before))
        if len(self) == before:
            return
        self._rounds += 1
        chosen = Round(self._rounds, prediction.expected(self.candidates[before:]))
        self.tell(chosen)
        self.score()
        self.tell(chosen._replace(scores=self.scores[before:]))

    def _random(self) -> tuple[int, Row]:
        index = int(self.chance.integers(len(self.subjects)))
        return index, self.subjects.random_row(index, self.chance)


def ascended(
    subjects: Subjects, indices: Sequence[int], score: Score, starts: Sequence[Row] | None = None, sweeps: int = 3
) -> list[Row]:
    """For each input the result of coordinate ascent, edge by edge: allowed transitions only, within the budget.

    It starts from the input itself, or from a row for each.
    """
    rows = [subjects.before[index].copy() for index in indices] if starts is None else [row.copy() for row in starts]
    reached = subjects.scores(indices, rows, score)
    for _ in range(sweeps):
        before = [row.copy() for row in rows]
        for edge in range(max((len(row) for row in rows), default=0)):
            tried: list[tuple[int, Row]] = []
            for number, index in enumerate(indices):
                if edge < len(rows[number]):
                    for op in np.flatnonzero(subjects.masks[index][edge]).tolist():
                        other = rows[number].copy()
                        other[edge] = op
                        tried.append((number, other))
            found = subjects.scores([indices[number] for number, _ in tried], [row for _, row in tried], score)
            for (number, row), value in zip(tried, found.tolist(), strict=True):
                if value > reached[number] and subjects.fits(indices[number], row):
                    rows[number], reached[number] = row, value
        if all((now == was).all() for now, was in zip(rows, before, strict=True)):
            break
    return rows
