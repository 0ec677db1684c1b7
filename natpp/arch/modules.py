"""The few modules that torch does not have: factorized reduction, 2x2 pooling that keeps the size, zeros.

And two that it has, with faster kernels: their names, weights and results are torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from natpp import kernels


class BatchNorm2d(nn.BatchNorm2d):
    """Torch's, but the statistics of a batch are taken by natpp's kernels where these can."""

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        of_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not of_batch or self.momentum is None or not kernels.fast(x):
            return super().forward(x)
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        y, _, _ = kernels.batch_norm(
            x,
            self.weight,
            self.bias,
            self.eps,
            running_mean=self.running_mean if tracked else None,
            running_var=self.running_var if tracked else None,
            momentum=self.momentum,
        )
        return y


class AvgPool2d(nn.AvgPool2d):
    """Torch's with an odd kernel and padding that is not averaged in, by natpp's kernels where these can."""

    def __init__(self, kernel: int, stride: int):
        super().__init__(kernel, stride, kernel // 2, count_include_pad=False)

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        if not kernels.fast(x):
            return super().forward(x.contiguous() if x.is_cuda else x)  # torch's gradients, see `kernels.composed`
        assert isinstance(self.kernel_size, int)
        assert isinstance(self.stride, int)
        return kernels.average_pool(x, self.kernel_size, self.stride)


class FactorizedConv2d(nn.Module):
    """Halves the size: a 1x1 conv of stride 2 on x beside one on x shifted by one pixel."""

    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        half = channels_out // 2
        self.conv_1 = nn.Conv2d(channels_in, half, 1, stride=2, bias=False) if half else None
        self.conv_2 = nn.Conv2d(channels_in, channels_out - half, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.conv_1 is None:
            out: Tensor = self.conv_2(_shifted(x))
            return out
        return torch.cat([self.conv_1(x), self.conv_2(_shifted(x))], dim=1)


class Pool2x2(nn.Module):
    """2x2 pooling whose windows start at every pixel (stride 1) or every second one (stride 2).

    Windows over the right and bottom border repeat the last pixel, which for a 2x2 window is the same
    as leaving the outside out of the maximum or the average.
    """

    def __init__(self, kind: str, stride: int):
        super().__init__()
        self.pool = nn.MaxPool2d(2, stride) if kind == "max" else nn.AvgPool2d(2, stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        bottom, right = (1 if self.stride == 1 else side % 2 for side in x.shape[2:])
        if bottom or right:
            x = F.pad(x, (0, right, 0, bottom), mode="replicate")
        out: Tensor = self.pool(x)
        return out


class Zeros2d(nn.Module):
    """Zeros of the shape that a convolution of this stride would give."""

    def __init__(self, channels_out: int, stride: int):
        super().__init__()
        self.channels_out = channels_out
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        height, width = (-(-side // self.stride) for side in x.shape[2:])
        return x.new_zeros(x.shape[0], self.channels_out, height, width)


class GlobalPool2d(nn.Module):
    """The mean over all pixels: (batch, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def _shifted(x: Tensor) -> Tensor:
    """x without its first row and column; with a zero row and column behind where a side is odd."""
    if x.shape[2] % 2 or x.shape[3] % 2:
        x = F.pad(x, (0, 1, 0, 1))
    return x[:, :, 1:, 1:]


def _leaf(module: nn.Module, x: fx.Proxy) -> Tensor:
    """The module as one step of a traced graph, as torch's own are."""
    tracer = x.tracer
    assert isinstance(tracer, fx.Tracer)
    step: Tensor = tracer.create_proxy("call_module", tracer.path_of_module(module), (x,), {})  # type: ignore[assignment]
    return step
