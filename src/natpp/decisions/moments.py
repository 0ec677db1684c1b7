"""Second moments of a layer's inputs and target outputs, and the weights that follow from them in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 1 << 18  # positions that a layer is fitted on; if there are more, a sample of them
UNFOLDED = 1 << 25  # elements of unfolded inputs held at a time
ALTERNATIONS = 3  # of depthwise and pointwise weights


class Cross(NamedTuple):
    """Target outputs of a layer: their means (groups, outputs), and their moments with its inputs."""

    mean: Tensor
    moments: Tensor  # (groups, inputs, outputs)


class Moments:
    """Means and second moments of a layer's inputs, unfolded for a convolution; centred if the layer is `free`.

    A free layer may add a constant to each output. With `mixed`, all inputs belong to one group, as for a depthwise
    convolution that is fitted together with the pointwise one after it.
    """

    def __init__(
        self, layer: nn.Conv2d | nn.Linear, inputs: Sequence[Tensor], *, free: bool = True, mixed: bool = False
    ):
        self.layer, self.inputs, self.free, self.count = layer, inputs, free, 0
        self.groups = 1 if mixed or isinstance(layer, nn.Linear) else layer.groups
        for rows in self._rows():
            if not self.count:
                self.mean = torch.zeros(rows.shape[1:], dtype=torch.double)
                self.second = torch.zeros(*rows.shape[1:], rows.shape[2], dtype=torch.double)
            self.count += len(rows)
            self.mean += rows.sum(dim=0).double().cpu()
            self.second += torch.einsum("rgd,rge->gde", rows, rows).double().cpu()
        self.mean *= free / self.count
        self.second = self.second / self.count - torch.einsum("gd,ge->gde", self.mean, self.mean)

    def with_outputs(self, outputs: Iterator[Tensor]) -> Cross:
        """The moments with the target outputs, which come batch by batch."""
        total, cross = torch.zeros(0, dtype=torch.double), torch.zeros(0, dtype=torch.double)
        for rows, goal in zip(self._rows(), self._outputs(outputs), strict=True):
            if not cross.numel():
                total = torch.zeros(goal.shape[1:], dtype=torch.double)
                cross = torch.zeros(self.groups, rows.shape[2], goal.shape[2], dtype=torch.double)
            total += goal.sum(dim=0).double().cpu()
            cross += torch.einsum("rgd,rgo->gdo", rows, goal).double().cpu()
        mean = total * self.free / self.count
        return Cross(mean, cross / self.count - torch.einsum("gd,go->gdo", self.mean, mean))

    def _rows(self) -> Iterator[Tensor]:
        """Inputs as (rows, groups, inputs of a group), unfolded for a convolution."""
        for number, x in enumerate(self.inputs):
            for part in self._parts(x):
                if isinstance(self.layer, nn.Linear):
                    yield x[part].reshape(-1, 1, x.shape[-1])
                    continue
                size, padding = self.layer.kernel_size, cast(Any, self.layer.padding)
                found = functional.unfold(x[part], size, self.layer.dilation, padding, self.layer.stride)
                found = found[:, :, self._drawn(number, found.shape[2])]  # (images, inputs, positions)
                yield found.transpose(1, 2).reshape(-1, self.groups, found.shape[1] // self.groups)

    def _outputs(self, goals: Iterator[Tensor]) -> Iterator[Tensor]:
        """Outputs of the same rows, as (rows, groups, outputs of a group)."""
        for number, (x, goal) in enumerate(zip(self.inputs, goals, strict=True)):
            for part in self._parts(x):
                if isinstance(self.layer, nn.Linear):
                    yield goal[part].reshape(-1, 1, goal.shape[-1])
                    continue
                found = goal[part].flatten(2)
                found = found[:, :, self._drawn(number, found.shape[2])]
                yield found.transpose(1, 2).reshape(-1, self.groups, found.shape[1] // self.groups)

    def _parts(self, x: Tensor) -> list[slice]:
        """Slices of a few images each, so that unfolding them needs little memory."""
        numbers = x[0].numel() * (math.prod(self.layer.kernel_size) if isinstance(self.layer, nn.Conv2d) else 1)
        step = max(1, UNFOLDED // max(numbers, 1))
        return [slice(start, start + step) for start in range(0, len(x), step)]

    def _drawn(self, batch: int, positions: int) -> Tensor:
        """The positions of a batch that are used; the same ones in every call."""
        count = max(1, ROWS // sum(len(x) for x in self.inputs))
        if count >= positions:
            return torch.arange(positions)
        return torch.randperm(positions, generator=torch.Generator().manual_seed(batch))[:count]


def solved(moments: Moments, cross: Cross, ridge: float) -> tuple[Tensor, Tensor]:
    """Weights (outputs, inputs of a group) and biases that fit these outputs best."""
    found = _ridge(moments.second, cross.moments, ridge)  # (groups, inputs, outputs)
    bias = (cross.mean - torch.einsum("gd,gdo->go", moments.mean, found)).flatten()
    return found.transpose(1, 2).flatten(0, 1), bias


def separated(
    moments: Moments, cross: Cross, kernels: Tensor, pointwise: Tensor, ridge: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Kernels of a depthwise convolution, weights of the pointwise one after it, and biases: fitted in turn."""
    (second,), (mean,), (wanted,) = moments.second, moments.mean, cross.moments
    channels, taps = len(kernels), kernels[0].numel()
    depth = kernels.reshape(channels, taps).double().cpu()
    blocks = second.reshape(channels, taps, channels, taps)
    point = pointwise.flatten(1).double().cpu()
    for turn in range(ALTERNATIONS):
        if turn:  # the best kernels for the current pointwise weights
            gram = (point.T @ point)[:, None, :, None]
            right = torch.einsum("oc,cto->ct", point, wanted.reshape(channels, taps, -1))
            system = (gram * blocks).reshape(1, channels * taps, channels * taps)
            depth = _ridge(system, right.reshape(1, -1, 1), ridge).reshape(channels, taps)
        features = torch.einsum("ct,ctdu,du->cd", depth, blocks, depth)
        right = torch.einsum("ct,cto->co", depth, wanted.reshape(channels, taps, -1))
        point = _ridge(features[None], right[None], ridge)[0].T
    bias = cross.mean[0] - point @ torch.einsum("ct,ct->c", depth, mean.reshape(channels, taps))
    return depth.reshape(kernels.shape), point, bias


def _ridge(system: Tensor, right: Tensor, ridge: float) -> Tensor:
    """The solution of the normal equations, with a ridge relative to the mean of the diagonal."""
    strength = ridge * system.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-12)
    eye = torch.eye(system.shape[-1], dtype=system.dtype)
    found: Tensor = torch.linalg.solve(system + strength[:, None, None] * eye, right)
    return found
