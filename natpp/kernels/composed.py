"""What the kernels compute, in torch's own operations: for CPUs, other memory layouts, compilers and exports."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images normalized by the statistics of their group, and these: mean and variance (groups, channels)."""
    parts = x.chunk(groups)
    normalized = [functional.batch_norm(part, None, None, weight, bias, training=True, eps=eps) for part in parts]
    with torch.no_grad():
        wide = torch.promote_types(x.dtype, torch.float32)
        found = [torch.var_mean(part.to(wide), dim=(0, 2, 3), correction=0) for part in parts]
    var, mean = (torch.stack(statistic) for statistic in zip(*found, strict=True))
    return normalized[0] if groups == 1 else torch.cat(normalized), mean, var


def average_pool(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Means over windows around every pixel, or every second one; what is outside is left out.

    On a GPU never in channels-last memory, in which torch's gradients of padded windows are wrong (pytorch#188344).
    """
    x = x.contiguous() if x.is_cuda else x
    return functional.avg_pool2d(x, kernel, stride, kernel // 2, count_include_pad=False)
