"""A scorer maps an architecture to a number, and any method runs on any scorer.

It counts the distinct architectures it was asked for and stops at its limit; architectures that compute
the same count as one and are scored once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from natpp.arch.cost import counts
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.core.scores import Scores
from natpp.errors import NatppError, SettingError, did_you_mean

PRICED = ("params", "madds")  # costs that can have a price


class LimitReached(NatppError):
    """A scorer was asked for more distinct architectures than it may score."""


class Scorer(ABC):
    """Scores of architectures, higher is better; each distinct one is scored once and counted.

    Examples:
        >>> import numpy as np
        >>> from natpp.scorers.base import Scorer
        >>> class Skips(Scorer):
        ...     def _score(self, archs):
        ...         return np.array([float(arch.normal.ops.count("skip_connect")) for arch in archs])
        >>> scorer = Skips(limit=2)
        >>> scorer([natpp.load("darts"), natpp.load("enas")]).tolist(), scorer.left
        ([2.0, 2.0], 0)
    """

    free = False  # whether scores are so cheap that none has to be predicted
    together = 1 << 30  # architectures scored at a time; after each time `scored` is called

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.scored: Callable[[], None] | None = None  # called after each group of scores
        self._seconds = 0.0  # spent on scores
        self._made = 0  # scores that were computed, not recalled
        self._known: dict[Any, float] = {}
        self._earlier: dict[Any, float] = {}

    @property
    def queries(self) -> int:
        """Distinct architectures scored so far."""
        return len(self._known)

    @property
    def left(self) -> int | None:
        """How many more may be scored; None without a limit."""
        return None if self.limit is None else self.limit - self.queries

    @property
    def seconds_each(self) -> float:
        """Seconds per score, averaged over those made so far."""
        return self._seconds / max(self._made, 1)

    @property
    def known(self) -> dict[Any, float]:
        """Every score given so far, by `key`."""
        return dict(self._known)

    def recall(self, scores: Mapping[Any, float]) -> None:
        """Take scores, by `key`, from an earlier run: they are counted when asked for, and not made again."""
        self._earlier |= scores

    def key(self, candidate: Any) -> Any:
        """Equal for candidates that count as the same: by default those that compute the same function."""
        return candidate.key

    def arranged(self, keys: list[Any]) -> list[Any]:
        """The order in which candidates are scored, `together` of them at a time."""
        return keys

    def __call__(self, candidates: Sequence[Any]) -> Scores:
        """One score for each candidate: an architecture, or a module's `Candidate`."""
        keys = [self.key(one) for one in candidates]
        new = {key: one for key, one in zip(keys, candidates, strict=True) if key not in self._known}
        if self.limit is not None and self.queries + len(new) > self.limit:
            raise LimitReached(
                f"the scorer may score {self.limit} candidates, has scored {self.queries} and was asked for "
                f"{len(new)} more"
            )
        self._known.update({key: self._earlier[key] for key in new if key in self._earlier})
        unknown = self.arranged([key for key in new if key not in self._known])
        for start in range(0, len(unknown), self.together):
            some = unknown[start : start + self.together]
            begin = time.perf_counter()
            scores = self._score([new[key] for key in some])
            self._seconds += time.perf_counter() - begin
            self._made += len(some)
            if not np.isfinite(scores).all():
                raise NatppError("a scorer gave a score that is not a number")
            self._known.update(zip(some, scores.tolist(), strict=True))
            if self.scored is not None:
                self.scored()
        return np.array([self._known[key] for key in keys])

    @abstractmethod
    def _score(self, candidates: list[Any]) -> Scores:
        """Scores of candidates that were not scored before."""


def check_price(price: Mapping[str, float]) -> None:
    """Raise an error for an unknown cost or an invalid price."""
    for name, value in price.items():
        if name not in PRICED:
            raise SettingError(f"unknown cost {name!r} in the price. {did_you_mean(name, PRICED)}")
        if not 0 <= value < float("inf"):
            raise SettingError(f"the price of {name} is {value}, expected points of the score from 0 up")


class Priced(Scorer):
    """Another scorer's scores minus a price on cost, with a separate limit.

    A price is the number of score points you would trade for halving the living parameters or multiply-adds:
    R(α) = score(α) - price · log2 cost(α), so that an improvement weighs relative costs.
    """

    def __init__(self, scorer: Scorer, where: Setting, price: Mapping[str, float], limit: int | None = None):
        super().__init__(limit)
        check_price(price)
        self.scorer = scorer
        self.where = where
        self.price = dict(price)
        self.free, self.together = scorer.free, scorer.together

    def key(self, candidate: Any) -> Any:
        return self.scorer.key(candidate)

    def arranged(self, keys: list[Any]) -> list[Any]:
        return self.scorer.arranged(keys)

    @property
    def seconds_each(self) -> float:
        return self.scorer.seconds_each

    def _score(self, archs: list[Architecture]) -> Scores:
        scores = self.scorer(archs)
        for name, value in self.price.items():
            found = [getattr(counts(arch, self.where), f"live_{name}") for arch in archs]
            scores = scores - value * np.log2(found)
        return scores
