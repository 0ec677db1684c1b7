"""Torch implementations of the kernels: for CPUs, other memory formats, compilers and exports."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from natpp.kernels.conv_block import Half


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images normalized by the batch statistics of their group; also mean and variance (groups, channels)."""
    parts = x.chunk(groups)
    inside = None if weight is None else bias  # on a GPU, torch computes no gradient for a bias without a weight
    normalized = [functional.batch_norm(part, None, None, weight, inside, training=True, eps=eps) for part in parts]
    if weight is None and bias is not None:
        normalized = [(part + bias.view(1, -1, 1, 1)).to(x.dtype) for part in normalized]
    with torch.no_grad():
        wide = torch.promote_types(x.dtype, torch.float32)
        found = [torch.var_mean(part.to(wide), dim=(0, 2, 3), correction=0) for part in parts]
    var, mean = (torch.stack(statistic) for statistic in zip(*found, strict=True))
    return normalized[0] if groups == 1 else torch.cat(normalized), mean, var


def average_pool(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Means over windows, without padding; torch's gradients are wrong in channels-last memory (pytorch#188344)."""
    x = x.contiguous() if x.is_cuda else x
    return functional.avg_pool2d(x, kernel, stride, kernel // 2, count_include_pad=False)


def separable(x: Tensor, halves: Sequence[Half], groups: int, dtype: torch.dtype | None = None) -> Tensor:
    """Images after some halves, with convolutions in the given dtype; updates running statistics."""
    for half in halves:
        x = functional.relu(x)
        x = x if dtype is None else x.to(dtype)
        stride, padding = half.stride, half.dilation * (half.kernel // 2)
        if half.depthwise is not None:
            weight = half.depthwise.to(x.dtype)
            x = functional.conv2d(x, weight, None, stride, padding, half.dilation, groups=len(weight))
            stride, padding = 1, 0
        y = functional.conv2d(x, half.pointwise.to(x.dtype), None, stride, padding, half.dilation)
        if half.shifted is not None:
            y = torch.cat([y, functional.conv2d(shifted(x), half.shifted.to(x.dtype), None, stride)], dim=1)
        x = y
        norm = half.norm
        rows = x.numel() // (groups * x.shape[1])
        x, mean, var = batch_norm(x, norm.weight, norm.bias, norm.eps, groups)
        follow(norm.running_mean, norm.running_var, mean, var, rows, norm.momentum)
    return x


def shifted(x: Tensor) -> Tensor:
    """x without its first row and column; an odd side is then padded with a zero row or column at its end."""
    if x.shape[2] % 2 or x.shape[3] % 2:
        x = functional.pad(x, (0, 1, 0, 1))
    return x[:, :, 1:, 1:]


@torch.no_grad()
def follow(
    running_mean: Tensor | None, running_var: Tensor | None, mean: Tensor, var: Tensor, rows: int, momentum: float
) -> None:
    """Move running statistics, if there are any, towards those of a batch of one group."""
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean[0].to(running_mean.dtype), momentum)
        running_var.lerp_((var[0] * (rows / (rows - 1))).to(running_var.dtype), momentum)
