"""Second moments of a layer's inputs and target outputs, and the weights that follow from them in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 100_000  # positions that a layer is fitted on; if there are more, a sample of them
GATHERED = 1 << 24  # elements of unfolded inputs gathered at a time
KEPT = 1 << 26  # elements of unfolded inputs kept for the next fit of the same layer; more are gathered again
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
        self.kept: list[Tensor] | None = None
        found, size = list[Tensor](), 0
        for rows in self.rows():
            if not self.count:
                self.mean = torch.zeros(rows.shape[1:], dtype=torch.double)
                self.second = torch.zeros(*rows.shape[1:], rows.shape[2], dtype=torch.double)
            self.count += len(rows)
            self.mean += rows.sum(dim=0).double().cpu()
            self.second += torch.einsum("rgd,rge->gde", rows, rows).double().cpu()
            size += rows.numel()
            found = [*found, rows] if size <= KEPT else []
        self.kept = found if size <= KEPT else None
        self.mean *= free / self.count
        self.second = self.second / self.count - torch.einsum("gd,ge->gde", self.mean, self.mean)

    def with_outputs(self, outputs: Iterable[Tensor]) -> Cross:
        """The moments with the target outputs, which come as `picked` gives them."""
        total, cross = torch.zeros(0, dtype=torch.double), torch.zeros(0, dtype=torch.double)
        for rows, found in zip(self.rows(), outputs, strict=True):
            goal = found.reshape(len(found), self.groups, -1)
            if not cross.numel():
                total = torch.zeros(goal.shape[1:], dtype=torch.double)
                cross = torch.zeros(self.groups, rows.shape[2], goal.shape[2], dtype=torch.double)
            total += goal.sum(dim=0).double().cpu()
            cross += torch.einsum("rgd,rgo->gdo", rows, goal).double().cpu()
        mean = total * self.free / self.count
        return Cross(mean, cross / self.count - torch.einsum("gd,go->gdo", self.mean, mean))

    def rows(self) -> Iterable[Tensor]:
        """Inputs as (rows, groups, inputs of a group), unfolded for a convolution, a part at a time."""
        return self._gathered() if self.kept is None else self.kept

    def picked(self, values: Sequence[Tensor]) -> Iterator[Tensor]:
        """Outputs at the same rows, as (rows, outputs)."""
        linear = isinstance(self.layer, nn.Linear)
        for number, (x, value) in enumerate(zip(self.inputs, values, strict=True)):
            flat = value.reshape(len(value), -1, value.shape[-1]) if linear else value.flatten(2)
            drawn = self._drawn(number, x).to(value.device)
            for part in self._parts(x):
                found = flat[part][:, drawn] if linear else flat[part][:, :, drawn].transpose(1, 2)
                yield found.reshape(-1, found.shape[-1])

    def _gathered(self) -> Iterator[Tensor]:
        for number, x in enumerate(self.inputs):
            drawn = self._drawn(number, x).to(x.device)
            if isinstance(self.layer, nn.Linear):
                flat = x.reshape(len(x), -1, x.shape[-1])
                yield from (flat[part][:, drawn].reshape(-1, 1, x.shape[-1]) for part in self._parts(x))
                continue
            (_, wide), (down, right), (tall, broad) = self._size(x), self.layer.stride, self.layer.kernel_size
            above, left = cast(Any, self.layer.padding)
            padded = functional.pad(x, (left, left, above, above))
            line, (step, along) = padded.shape[3], self.layer.dilation
            corners = drawn // wide * down * line + drawn % wide * right
            taps = torch.arange(tall, device=x.device)[:, None] * step * line
            places = (corners[:, None] + (taps + torch.arange(broad, device=x.device) * along).flatten()).flatten()
            for part in self._parts(x):
                found = padded[part].flatten(2)[:, :, places]  # (images, channels, positions * taps)
                found = found.reshape(*found.shape[:2], len(drawn), tall * broad).transpose(1, 2)
                yield found.reshape(len(found) * len(drawn), self.groups, -1)

    def _size(self, x: Tensor) -> tuple[int, int]:
        """Height and width of a convolution's output."""
        layer = cast(nn.Conv2d, self.layer)
        high, wide = (
            (side + 2 * pad - dilation * (size - 1) - 1) // stride + 1
            for side, pad, dilation, size, stride in zip(
                x.shape[2:], cast(Any, layer.padding), layer.dilation, layer.kernel_size, layer.stride, strict=True
            )
        )
        return high, wide

    def _parts(self, x: Tensor) -> list[slice]:
        """Slices of a few images each, so that what is gathered needs little memory."""
        weights = self.layer.kernel_size if isinstance(self.layer, nn.Conv2d) else ()
        inputs = x.shape[1] * math.prod(weights) if weights else x.shape[-1]
        step = max(1, GATHERED // max(len(self._drawn(0, x)) * inputs, 1))
        return [slice(start, start + step) for start in range(0, len(x), step)]

    def _drawn(self, batch: int, x: Tensor) -> Tensor:
        """The positions of a batch that are used; the same ones in every call."""
        linear = isinstance(self.layer, nn.Linear)
        positions = x[0].numel() // x.shape[-1] if linear else math.prod(self._size(x))
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


def ridged(system: Tensor, ridge: float) -> Tensor:
    """Second moments (groups, inputs, inputs) with a ridge relative to the mean of the diagonal."""
    strength = ridge * system.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-12)
    return system + strength[:, None, None] * torch.eye(system.shape[-1], dtype=system.dtype)


def _ridge(system: Tensor, right: Tensor, ridge: float) -> Tensor:
    """The solution of the normal equations, with a ridge."""
    found: Tensor = torch.linalg.solve(ridged(system, ridge), right)
    return found
