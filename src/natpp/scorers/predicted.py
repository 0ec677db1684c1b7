"""Score a few architectures, predict the others, and choose which to score next.

A score can be expensive. So a value model, a Gaussian process over views of the living graph, is fitted
to the scores so far. The next architectures to score are those that the current prediction would choose for
random inputs, plus some at random. It handles graphs of any size, and uncertain predictions count less.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from natpp.arch.graph import Architecture
from natpp.config import At, Config
from natpp.core.scores import Gain, Score, Scores
from natpp.core.subject import Row
from natpp.errors import SettingError
from natpp.scorers.base import Scorer
from natpp.scorers.features import Features, flow_features, walk_features
from natpp.subjects.many import Subjects

FIRST_SCORES = 16  # maximum number used to measure how long a score takes
TRIES = 20  # draws per random transformation
RARE = 0.02  # features found in a smaller share of the architectures are dropped
MOST_ROWS, MOST_ROWS_OF_GRID = 4000, 500  # maximum number of scores to fit on, and to choose the kernel by
AT_ONCE = 256  # architectures per batch of predictions
MOST_KNOWN = 1 << 18  # cached predictions
WEIGHTS = (0.1, 0.25, 0.5)  # candidate weights of each further view, relative to those before it

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
        self._process = _Process([view.known for view in self._views], torch.from_numpy(targets))
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


def normal_scores(scores: Scores) -> Scores:
    """Normal quantiles of the ranks of the scores; equal scores share the mean of their ranks."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - count / 2)[place] / len(scores)  # between 0 and 1
    return np.asarray(torch.special.ndtri(torch.from_numpy(ranks)).numpy())


class _Process:
    """A Gaussian process with a Matérn 5/2 kernel over one view or a sum of some over several, fitted to targets.

    Lengths, weights, noise and scale maximize the likelihood of the targets, all but the scale over a grid.
    """

    def __init__(self, views: Sequence[Tensor], targets: Tensor):
        """Rows of every view, and a target for each."""
        if len(targets) > MOST_ROWS:  # its cost grows with their cube
            some = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(targets))[:MOST_ROWS]))
            views, targets = [rows[some] for rows in views], targets[some]
        self.views, self.mean = list(views), targets.mean()
        centred = targets - self.mean
        few = slice(None, None, -(-len(targets) // MOST_ROWS_OF_GRID))
        self.lengths, self.weights, noise = _likeliest([rows[few] for rows in views], centred[few])
        kernel = self._kernel(views)
        kernel.diagonal().add_(noise)
        self.root = torch.linalg.cholesky(kernel)
        self.solved = torch.cholesky_solve(centred[:, None], self.root)[:, 0]
        self.scale = (centred @ self.solved / len(targets)).item()

    def __call__(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at rows."""
        mean, known = self._known(views)
        return mean, (self.scale * (1 - known.square().sum(dim=0)).clamp(min=0)).sqrt()

    def difference(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of the difference of each second row to the first."""
        (mean, known), (other_mean, other) = self._known(first), self._known(second)
        alike = self._summed([(one - two).norm(dim=1) for one, two in zip(first, second, strict=True)])
        variance = 2 * (1 - alike) - (known - other).square().sum(dim=0)
        return other_mean - mean, (self.scale * variance.clamp(min=0)).sqrt()

    def _known(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Means at rows, and the part of them that the given rows explain: (given rows, rows)."""
        kernel = self._kernel(views)
        return self.mean + self.solved @ kernel, torch.linalg.solve_triangular(self.root, kernel, upper=False)

    def _kernel(self, views: Sequence[Tensor]) -> Tensor:
        return self._summed([_distances(*both) for both in zip(self.views, views, strict=True)])

    def _summed(self, distances: Sequence[Tensor]) -> Tensor:
        """Kernel of rows, from their distances in every view: 1 for equal rows."""
        parts = zip(self.weights, distances, self.lengths, strict=True)
        return torch.stack([weight * _matern(one / length) for weight, one, length in parts if weight > 0]).sum(dim=0)


def _distances(rows: Tensor, others: Tensor) -> Tensor:
    return torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")


def _matern(distance: Tensor) -> Tensor:
    scaled = math.sqrt(5) * distance
    return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)


def _likeliest(views: Sequence[Tensor], targets: Tensor) -> tuple[list[float], list[float], float]:
    """Lengths and weights of views, and noise as a share of the scale, that maximize the likelihood of the targets.

    Greedy: views are added one after the other, each with its best length and weight.
    """
    lengths: list[float] = []
    weights: list[float] = []
    best = -math.inf, 0.0  # likelihood, noise
    kernel = torch.zeros(len(targets), len(targets), dtype=targets.dtype)
    for rows in views:
        distances = _distances(rows, rows)
        so_far, length, weight = kernel, 1.0, 0.0
        for tried in (math.sqrt(max(rows.shape[1], 1)) * torch.logspace(-1, 3, 9, base=2)).tolist():
            alone = _matern(distances / tried)
            for share in WEIGHTS if weights else (1.0,):
                mixed = so_far + share * (alone - so_far)
                found = _likelihood(mixed, targets)
                if found > best:
                    best, kernel, length, weight = found, mixed, tried, share
        lengths.append(length)
        weights = [*(one * (1 - weight) for one in weights), weight]
    return lengths, weights, best[1]


def _likelihood(kernel: Tensor, targets: Tensor) -> tuple[float, float]:
    """The highest likelihood of the targets over the noises, and the noise it is reached with."""
    noises = torch.logspace(-3, 1, 17, dtype=targets.dtype)
    values, vectors = torch.linalg.eigh(kernel)
    spectrum = values.clamp(min=0) + noises[:, None]  # (noises, rows)
    scale = ((vectors.T @ targets).square() / spectrum).mean(dim=1).clamp(min=1e-12)
    likelihood = -(len(targets) * scale.log() + spectrum.log().sum(dim=1))
    best = int(likelihood.argmax())
    return likelihood[best].item(), noises[best].item()


class Round(NamedTuple):
    """Architectures that a prediction chose, with the expected scores and, once scored, the real ones."""

    number: int  # from 1 up
    expected: Scores
    scores: Scores | None = None


def predicted(
    inputs: Subjects,
    scorer: Scorer,
    config: PredictConfig,
    generator: np.random.Generator,
    plan: Callable[[], int] | None = None,
    tell: Callable[[Round], None] | None = None,
) -> Prediction:
    """A prediction fitted on as many scores as the scorer's limit allows, or as `plan` returns after the first ones.

    `tell` is called twice per round: after its architectures are chosen, and after they are scored.
    """
    if scorer.left is None and plan is None:
        raise SettingError("a prediction needs a scorer with a limit")
    if scorer.left is not None and scorer.left < 2:
        raise SettingError(f"a prediction needs at least 2 scores, and {scorer.left} are left")
    budget = FIRST_SCORES if scorer.left is None else scorer.left
    if plan is not None:
        budget = min(budget, FIRST_SCORES, max(scorer.together, 2))
    archs: list[Architecture] = []
    known: set[Architecture] = set()

    def take(arch: Architecture) -> bool:
        key = scorer.key(arch)
        if key in known or len(archs) >= budget:
            return False
        known.add(key)
        archs.append(arch)
        return True

    def take_random(count: int) -> None:
        """Subjects, plus random transformations if there are too few of them (for example one given architecture)."""
        for index in generator.permutation(len(inputs)).tolist():
            if count <= 0:
                return
            count -= take(inputs.given[index])
        for _ in range(TRIES * count):
            if count <= 0:
                return
            index = int(generator.integers(len(inputs)))
            count -= take(inputs.transformed(index, inputs.random_row(index, generator)))

    if plan is not None:
        take_random(budget)
        scorer(archs)
        budget = max(plan(), len(archs))
    take_random(max(round(budget * config.random_share), 2) - len(archs))
    scores = scorer(archs)
    a_round = max(math.ceil((budget - len(archs)) / config.rounds), 1)
    number = 0
    while len(archs) < budget:
        prediction = Prediction(archs, scores, config)
        before = len(archs)
        wanted = min(a_round, budget - before)
        indices = generator.permutation(len(inputs)).tolist()[: max(4 * a_round, 100)]
        starts: list[tuple[int, Row]] = [(index, inputs.before[index]) for index in indices]
        while len(starts) < wanted:  # too few inputs: also start from random transformations of them
            index = int(generator.integers(len(inputs)))
            starts.append((index, inputs.random_row(index, generator)))
        while starts and len(archs) - before < wanted:  # start from as many as needed
            some, starts = starts[:wanted], starts[wanted:]
            climbed = ascended(inputs, [index for index, _ in some], prediction.expected, [row for _, row in some])
            for (index, _), row in zip(some, climbed, strict=True):
                if len(archs) - before < wanted:
                    take(inputs.transformed(index, row))
        take_random(wanted - (len(archs) - before))
        if len(archs) == before:
            break  # every architecture has been scored
        number += 1
        chosen = Round(number, prediction.expected(archs[before:]))
        if tell is not None:
            tell(chosen)
        found = scorer(archs[before:])
        if tell is not None:
            tell(chosen._replace(scores=found))
        scores = np.concatenate([scores, found])
    return Prediction(archs, scores, config)


def ascended(
    inputs: Subjects, indices: Sequence[int], score: Score, starts: Sequence[Row] | None = None, sweeps: int = 3
) -> list[Row]:
    """For each input the result of coordinate ascent, edge by edge: allowed transitions only, within the budget.

    It starts from the input itself, or from a row for each.
    """
    rows = [inputs.before[index].copy() for index in indices] if starts is None else [row.copy() for row in starts]
    reached = inputs.scores(indices, rows, score)
    for _ in range(sweeps):
        before = [row.copy() for row in rows]
        for edge in range(max((len(row) for row in rows), default=0)):
            tried: list[tuple[int, Row]] = []
            for number, index in enumerate(indices):
                if edge < len(rows[number]):
                    for op in np.flatnonzero(inputs.masks[index][edge]).tolist():
                        other = rows[number].copy()
                        other[edge] = op
                        tried.append((number, other))
            found = inputs.scores([indices[number] for number, _ in tried], [row for _, row in tried], score)
            for (number, row), value in zip(tried, found.tolist(), strict=True):
                if value > reached[number] and inputs.fits(indices[number], row):
                    rows[number], reached[number] = row, value
        if all((now == was).all() for now, was in zip(rows, before, strict=True)):
            break
    return rows
