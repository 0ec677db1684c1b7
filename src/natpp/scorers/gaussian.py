"""A Gaussian process over features of candidates, fitted to the ranks of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from natpp.core.scores import Scores

MOST_ROWS, MOST_ROWS_OF_GRID = 4000, 500  # maximum number of scores to fit on, and to choose the kernel by
WEIGHTS = (0.1, 0.25, 0.5)  # candidate weights of each further view, relative to those before it


def normal_scores(scores: Scores) -> Scores:
    """Normal quantiles of the ranks of the scores; equal scores share the mean of their ranks."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - count / 2)[place] / len(scores)  # between 0 and 1
    return np.asarray(torch.special.ndtri(torch.from_numpy(ranks)).numpy())


class Process:
    """A Gaussian process fitted to targets; its kernel is a Matérn 5/2 kernel, or a weighted sum of them over views.

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
