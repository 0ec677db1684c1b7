"""In which order channels can go, if the layers that read them are refitted: optimal brain surgeon, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from natpp.decisions.lowrank import felt, roots

STEPS = 128  # of the elimination at least, if there are as many channels; the more channels, the more go in each step
RIDGE = 1e-6  # of the second moments, relative to the mean of their diagonal
DEAD = 0.25  # share of rows that are gone, at which matrices are made smaller


class Reader(NamedTuple):
    """A layer that reads channels."""

    second: Tensor
    """centred second moment of its inputs, unfolded for a convolution"""
    weight: Tensor
    metric: Tensor | None
    """what errors of its outputs cost"""
    rows: Tensor
    """for each channel, which of the unfolded inputs are its own; inputs of no channel stay"""


def obs_order(readers: Sequence[Reader]) -> tuple[list[int], Tensor]:
    """The order in which channels leave, and the summed error of all readers after each.

    Each time those leave whose loss, made up for by the others as well as it can be, raises the error least.
    """
    states = [_State(one) for one in readers]
    alive = torch.arange(len(readers[0].rows))
    together = max(1, len(alive) // STEPS)
    order, errors, total = list[int](), list[Tensor](), torch.zeros((), dtype=torch.double)
    while len(alive):
        scores = torch.stack([state.scores(alive) for state in states]).sum(dim=0)
        best = scores.argsort()[:together]
        gone = alive[best]
        added = torch.stack([state.remove(gone) for state in states]).sum()
        shares = scores[best].clamp(min=1e-300).cumsum(dim=0)
        errors.append(total + added * shares / shares[-1])
        total, order = total + added, [*order, *gone.tolist()]
        alive = alive[~torch.isin(alive, gone)]
    return order, torch.cat(errors)


class _State:
    """The best weights of a reader for the channels that are left, and the inverse of their second moments."""

    def __init__(self, reader: Reader):
        second = reader.second.clone()
        second.diagonal().add_(RIDGE * second.diagonal().mean().clamp(min=1e-300))
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(second))
        self.wanted = felt(reader.weight, roots(reader.metric)[0]).clone()  # (inputs, outputs)
        self.rows = reader.rows.clone()
        self.left = torch.ones(len(second), dtype=torch.bool)

    def scores(self, channels: Tensor) -> Tensor:
        """By how much the error rises with each of these channels gone."""
        rows = self.rows[channels]
        own = self.wanted[rows]  # (channels, rows, outputs)
        found: Tensor = torch.linalg.solve(self.inverse[rows[:, :, None], rows[:, None]], own)
        return (own * found).sum(dim=(1, 2))

    def remove(self, channels: Tensor) -> Tensor:
        """Remove channels, and refit the rest; by how much the error rises."""
        gone = self.rows[channels].flatten()
        columns, own = self.inverse[:, gone], self.wanted[gone]
        found: Tensor = torch.linalg.solve(columns[gone], torch.cat([own, columns.T], dim=1))
        self.wanted.addmm_(columns, found[:, : own.shape[1]], alpha=-1)
        self.inverse.addmm_(columns, found[:, own.shape[1] :], alpha=-1)
        self.left[gone] = False
        if (~self.left).sum() >= DEAD * len(self.left):
            places = self.left.cumsum(dim=0) - 1
            self.inverse = self.inverse[self.left][:, self.left]
            self.wanted, self.rows = self.wanted[self.left], places[self.rows].clamp(min=0)
            self.left = self.left[self.left]
        return (own * found[:, : own.shape[1]]).sum()
