"""Scores predicted from a few real ones: a Gaussian process over views of candidates, such as the living graph.

It handles graphs of any size, and uncertain predictions count less.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from natpp.config import At, Config
from natpp.core.scores import Gain, Score, Scores
from natpp.scorers.features import Features, flow_features, walk_features
from natpp.scorers.gaussian import Process, normal_scores

RARE = 0.02  # features found in a smaller share of the architectures are dropped
AT_ONCE = 256  # architectures per batch of predictions
MOST_KNOWN = 1 << 18  # cached predictions

View = Callable[[Any], Features]
VIEWS: tuple[View, ...] = (flow_features, walk_features)


@dataclass(frozen=True)
class PredictConfig(Config):
    """How scores are predicted and chosen."""

    random_share: Annotated[float, At(above=0, most=1)] = 0.4
    """share of the scores spent on architectures drawn at random"""
    rounds: Annotated[int, At(least=1)] = 8
    """rounds in which the prediction so far chooses the others"""
    doubt: Annotated[float, At(least=0)] = 0.5
    """standard deviations subtracted from a final prediction"""
    caution: Annotated[float, At(least=0)] = 0.0
    """if above 0: standard deviations subtracted from a predicted improvement over the input instead, so that
    uncertain changes are not made"""


class Prediction:
    """Scores of architectures predicted by a Gaussian process over their features.

    Scores are mapped by rank to a normal distribution (the median is 0). The distance between two scores depends
    on the scorer, but their order does not. The best architectures are resolved as finely as the worst.
    """

    def __init__(
        self,
        archs: Sequence[Hashable],
        scores: Scores,
        config: PredictConfig,
        views: Sequence[View] | None = None,
        prior: Prediction | None = None,
    ):
        """`views` are the features, for values other than architectures or to use other features.

        `prior` predicts scores of another kind, for example many cheap ones. These few scores are then modelled as a
        multiple of it plus a separate process.
        """
        self.config, self._prior = config, prior
        self.archs: list[Any] = list(archs)
        self.scores = scores
        self._views = [_Table(view, self.archs) for view in views or VIEWS]
        targets = normal_scores(scores)
        self._slope = 0.0
        if prior is not None:
            cheap = prior.expected(self.archs)
            spread_of_cheap = cheap.var()
            if spread_of_cheap > 0:
                self._slope = max(float(np.cov(cheap, targets, ddof=0)[0, 1] / spread_of_cheap), 0.0)
            targets = targets - self._slope * cheap
        self._process = Process([view.known for view in self._views], torch.from_numpy(targets))
        self._answers: dict[Hashable, tuple[float, ...]] = {}

    def expected(self, archs: Sequence[Hashable]) -> Scores:
        """Expected scores."""
        return self._both(archs)[:, 0]

    def hopeful(self, archs: Sequence[Hashable]) -> Scores:
        """Expected scores plus a share of the standard deviation: used to choose what to score."""
        expected, doubt = self._both(archs).T
        return np.asarray(expected + self.config.doubt * doubt)

    def careful(self, archs: Sequence[Hashable]) -> Scores:
        """Expected scores minus a share of the standard deviation: used for the final choices."""
        expected, doubt = self._both(archs).T
        return np.asarray(expected - self.config.doubt * doubt)

    def reward(self, done: float = 1.0) -> Score | Gain:
        """What a policy learns on when this share of the learning is over: careful scores, or gains if caution is set.

        Caution grows over the first half. A single change is seldom certain to improve the score even where several
        together are, so full caution from the start would miss such combinations.
        """
        if self.config.caution == 0:
            return self.careful
        if done >= 0.5:
            return Gain(self.gains)  # equal every time, so that cached answers are found
        return Gain(functools.partial(self.gains, caution=self.config.caution * 2 * done))

    def gains(self, before: Sequence[Hashable], after: Sequence[Hashable], caution: float | None = None) -> Scores:
        """Improvement of each over its input, minus caution times the standard deviation of the improvement.

        The difference of two similar architectures is certain to be small, even where both scores are uncertain.
        """
        mean, deviation = self.differences(before, after)
        return np.asarray(mean - (self.config.caution if caution is None else caution) * deviation)

    def differences(self, before: Sequence[Hashable], after: Sequence[Hashable]) -> tuple[Scores, Scores]:
        """Expected improvement of each over its input, and its standard deviation."""
        found = [np.zeros((2, 0))]
        for start in range(0, len(after), AT_ONCE):
            old, new = (self._padded(archs[start : start + AT_ONCE]) for archs in (before, after))
            found.append(torch.stack(self._process.difference(old, new)).numpy()[:, : len(after) - start])
        mean, deviation = np.concatenate(found, axis=1)
        if self._prior is not None:
            cheap_mean, cheap_deviation = self._prior.differences(before, after)
            mean = mean + self._slope * cheap_mean
            deviation = np.hypot(deviation, self._slope * cheap_deviation)
        return mean, deviation

    def _padded(self, archs: Sequence[Hashable]) -> list[Tensor]:
        """Rows of architectures in every view, padded to a fixed number so that results do not depend on neighbours."""
        return [functional.pad(view.rows(archs), (0, 0, 0, AT_ONCE - len(archs))) for view in self._views]

    def _both(self, archs: Sequence[Hashable]) -> Scores:
        """Expected scores and their standard deviations, (architectures, 2)."""
        new = [arch for arch in dict.fromkeys(archs) if arch not in self._answers]
        if len(self._answers) + len(new) > MOST_KNOWN:
            self._answers.clear()
            new = list(dict.fromkeys(archs))
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            answers = torch.stack(self._process(self._padded(some)), dim=1)[: len(some)].numpy()
            if self._prior is not None:
                cheap = self._slope * self._prior._both(some)
                answers = np.stack([answers[:, 0] + cheap[:, 0], np.hypot(answers[:, 1], cheap[:, 1])], axis=1)
            self._answers |= dict(zip(some, map(tuple, answers.tolist()), strict=True))
        return np.array([self._answers[arch] for arch in archs]).reshape(-1, 2)


class _Table:
    """A view, standardized: the features that are not rare, minus their mean, divided by their standard deviation."""

    def __init__(self, view: View, archs: Sequence[Any]):
        self._view = view
        features = [view(arch) for arch in archs]
        often = Counter(name for one in features for name in one)
        least = max(RARE * len(features), 2)
        self._columns = {name: i for i, name in enumerate(sorted(name for name in often if often[name] >= least))}
        table = self._counted(features)
        self._mean, spread = table.mean(axis=0), table.std(axis=0)
        self._kept = spread > 0
        self._spread = np.where(self._kept, spread, 1)
        self.known = self._scaled(table)
        """rows of the architectures it was fitted on"""

    def rows(self, archs: Sequence[Any]) -> Tensor:
        """A row for each."""
        return self._scaled(self._counted([self._view(arch) for arch in archs]))

    def _scaled(self, table: NDArray[np.float64]) -> Tensor:
        scaled = ((table - self._mean) / self._spread)[:, self._kept]
        return torch.from_numpy(scaled.clip(-5, 5))

    def _counted(self, features: Sequence[Features]) -> NDArray[np.float64]:
        table = np.zeros((len(features), len(self._columns)))
        for row, one in zip(table, features, strict=True):
            for name, value in one.items():
                if name in self._columns:
                    row[self._columns[name]] = value
        return table
