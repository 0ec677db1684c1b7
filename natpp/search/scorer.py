"""A scorer gives an architecture a number, and any method runs on any scorer.

It counts the distinct architectures it was asked for and stops at its limit; architectures that compute
the same count as one and are scored once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from natpp.arch.graph import Architecture
from natpp.arch.layout import Setting
from natpp.errors import NatppError

Scores = NDArray[np.float64]
Score = Callable[[Sequence[Architecture]], Scores]  # a scorer, or a prediction of one


class LimitReached(NatppError):
    """A scorer was asked for more distinct architectures than it may score."""


class Scorer(ABC):
    """Scores of architectures, higher is better; each distinct one is scored once and counted."""

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self._known: dict[Architecture, float] = {}

    @property
    def queries(self) -> int:
        """Distinct architectures scored so far."""
        return len(self._known)

    @property
    def left(self) -> int | None:
        """How many more may be scored; None without a limit."""
        return None if self.limit is None else self.limit - self.queries

    def key(self, arch: Architecture) -> Architecture:
        """What counts as the same architecture: by default what it computes."""
        return arch.essence()

    def __call__(self, archs: Sequence[Architecture]) -> Scores:
        """One score for each architecture."""
        keys = [self.key(arch) for arch in archs]
        new = {key: arch for key, arch in zip(keys, archs, strict=True) if key not in self._known}
        if self.limit is not None and self.queries + len(new) > self.limit:
            raise LimitReached(
                f"the scorer may score {self.limit} architectures, has scored {self.queries} and was asked for "
                f"{len(new)} more"
            )
        if new:
            scores = self._score(list(new.values()))
            if not np.isfinite(scores).all():
                raise NatppError("a scorer gave a score that is not a number")
            self._known.update(zip(new, scores.tolist(), strict=True))
        return np.array([self._known[key] for key in keys])

    @abstractmethod
    def _score(self, archs: list[Architecture]) -> Scores:
        """Scores of architectures that were not scored before."""


@dataclass(frozen=True)
class Task:
    """What a transformation must keep to: the rule, the network, and whether the budget is strict."""

    rule: str
    where: Setting
    strict: bool = True
