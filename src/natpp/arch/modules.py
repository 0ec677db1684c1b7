"""Modules that torch lacks, such as factorized reduction, and some of torch's modules with faster kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from natpp import kernels

WINDOWS = (3, 5, 7)  # sides of the windows of convs that are fused, besides 1


class Layers(nn.Sequential):
    """`nn.Sequential` that fuses convs with ReLU and batch norm where the kernels can, unless there are hooks."""

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy) or not kernels.fast(x):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        return along(list(self), x, lambda layer, value: layer(value))

    def added_to(self, total: Tensor, x: Tensor) -> Tensor:
        """The total plus the output of the layers, added in the same kernel where possible."""
        if kernels.fast(x) and not _hooked(self):
            norms, halves = _halves(list(self))
            if _length(halves) == len(self) and kernels.fits(x, halves, added=total):
                for norm in norms:
                    norm.count()
                return kernels.separable(x, halves, added=total)
        found: Tensor = self(x)
        return total + found


def along(
    layers: Sequence[nn.Module], x: Tensor, call: Callable[[nn.Module, Tensor], Tensor], groups: int = 1
) -> Tensor:
    """The output of a chain of layers, fused where possible, with batch statistics for each group of images."""
    place = 0
    while place < len(layers):
        norms, halves = _halves(layers[place:])
        if halves and kernels.fast(x) and kernels.fits(x, halves, groups):
            for norm in norms:
                norm.count()
            x = kernels.separable(x, halves, groups)
            place += _length(halves)
        else:
            x = call(layers[place], x)
            place += 1
    return x


class Batched(nn.Module):
    """A norm that tells the kernels what they need to know about it."""

    def of_batch(self) -> kernels.Norm | None:
        """The norm for the kernels, if it uses batch statistics only; otherwise None."""
        raise NotImplementedError

    def count(self) -> None:
        """Count one more batch."""


def _halves(layers: Sequence[nn.Module]) -> tuple[list[Batched], list[kernels.Half]]:
    """The leading separable convolutions of a chain, or one conv or factorized conv, and their norms."""
    norms: list[Batched] = []
    halves: list[kernels.Half] = []
    rest = list(layers)
    while len(rest) >= 3 and type(rest[0]) is nn.ReLU:
        depthwise = rest[1] if len(rest) >= 4 and _is_conv(rest[1], WINDOWS, depthwise=True) else None
        if depthwise is None and halves:
            break
        length = 3 if depthwise is None else 4
        pointwise, norm = rest[length - 2 : length]
        shifted: nn.Module | None = None
        parts = rest[:length]
        if isinstance(pointwise, FactorizedConv2d) and depthwise is None and isinstance(pointwise.conv_1, nn.Module):
            shifted = pointwise.conv_2
            pointwise = pointwise.conv_1
            parts += [pointwise, shifted]
        of_batch = norm.of_batch() if isinstance(norm, Batched) else None
        if not isinstance(norm, Batched) or of_batch is None or any(map(_hooked, parts)):
            break
        sides = (1, *WINDOWS) if depthwise is None and shifted is None else (1,)
        if not _is_conv(pointwise, sides) or (depthwise is not None and pointwise.stride != (1, 1)):
            break
        weight = None
        if shifted is not None:
            if not _is_conv(shifted, (1,)):
                break
            weight = shifted.weight
        first = depthwise or pointwise
        own = None if depthwise is None else depthwise.weight
        norms.append(norm)
        halves.append(kernels.Half(own, pointwise.weight, of_batch, first.stride[0], first.dilation[0], weight))
        rest = rest[length:]
        if depthwise is None:
            break
    return norms, halves


def _length(halves: Sequence[kernels.Half]) -> int:
    """The number of layers that these halves replace."""
    return sum(3 if half.depthwise is None else 4 for half in halves)


def _is_conv(layer: nn.Module, sides: Sequence[int], *, depthwise: bool = False) -> TypeGuard[nn.Conv2d]:
    """Whether it is a dense or depthwise conv with square windows, centred on every pixel or on every second one."""
    if type(layer) is not nn.Conv2d or layer.bias is not None or layer.padding_mode != "zeros":
        return False
    side, stride, dilation = layer.kernel_size[0], layer.stride[0], layer.dilation[0]
    border = dilation * (side // 2)
    square = (
        layer.kernel_size == (side, side) and layer.stride == (stride, stride) and layer.padding == (border, border)
    )
    groups = layer.in_channels == layer.out_channels == layer.groups if depthwise else layer.groups == 1
    return groups and square and side in sides and layer.dilation == (dilation, dilation)


def _hooked(layer: nn.Module) -> bool:
    return any((layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks))


class BatchNorm2d(nn.BatchNorm2d, Batched):
    """`nn.BatchNorm2d` with batch statistics from natpp's kernels where they apply."""

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        if not self._by_batch or self.momentum is None or not kernels.fast(x):
            return super().forward(x)
        self.count()
        mean, var = self._running
        return kernels.batch_norm(
            x, self.weight, self.bias, self.eps, running_mean=mean, running_var=var, momentum=self.momentum
        )[0]

    def of_batch(self) -> kernels.Norm | None:
        if not self._by_batch or self.momentum is None or not self.affine:
            return None
        return kernels.Norm(self.weight, self.bias, self.eps, *self._running, self.momentum)

    def count(self) -> None:
        if self._tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)

    @property
    def _by_batch(self) -> bool:
        return self.training or (self.running_mean is None and self.running_var is None)

    @property
    def _tracked(self) -> bool:
        return self.training and self.track_running_stats

    @property
    def _running(self) -> tuple[Tensor | None, Tensor | None]:
        return (self.running_mean, self.running_var) if self._tracked else (None, None)


class AvgPool2d(nn.AvgPool2d):
    """`nn.AvgPool2d` with an odd kernel, padding left out of the mean, and natpp's kernels where they apply."""

    def __init__(self, kernel: int, stride: int):
        super().__init__(kernel, stride, kernel // 2, count_include_pad=False)

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        if not kernels.fast(x):
            return super().forward(x.contiguous() if x.is_cuda else x)  # see `kernels.reference.average_pool`
        assert isinstance(self.kernel_size, int)
        assert isinstance(self.stride, int)
        return kernels.average_pool(x, self.kernel_size, self.stride)


class MaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d` with an odd kernel, and natpp's kernels where they apply."""

    def __init__(self, kernel: int, stride: int):
        super().__init__(kernel, stride, kernel // 2)

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        if not kernels.fast(x):
            found: Tensor = super().forward(x)
            return found
        assert isinstance(self.kernel_size, int)
        assert isinstance(self.stride, int)
        return kernels.max_pool(x, self.kernel_size, self.stride)


class FactorizedConv2d(nn.Module):
    """Halves the size: two 1x1 convs of stride 2, on x and on x shifted by one pixel, concatenated."""

    def __init__(self, channels_in: int, channels_out: int, bias: bool = False):
        super().__init__()
        half = channels_out // 2
        self.conv_1 = nn.Conv2d(channels_in, half, 1, stride=2, bias=bias) if half else None
        self.conv_2 = nn.Conv2d(channels_in, channels_out - half, 1, stride=2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.conv_1 is None:
            out: Tensor = self.conv_2(self._shifted(x))
            return out
        return torch.cat([self.conv_1(x), self.conv_2(self._shifted(x))], dim=1)

    def _shifted(self, x: Tensor) -> Tensor:
        odd = x.shape[2] % 2 or x.shape[3] % 2
        return (F.pad(x, (0, 1, 0, 1)) if odd else x)[:, :, 1:, 1:]


class Pool2x2(nn.Module):
    """2x2 pooling of windows at every pixel or every second one; at the right and bottom border it repeats pixels."""

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
    """Zeros with the shape of the output of a convolution with this stride."""

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
        if kernels.fast(x):  # so that the gradient is channels-last as well
            return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)
        return x.mean(dim=(2, 3))


def _leaf(module: nn.Module, x: fx.Proxy) -> Tensor:
    """The module as one node of a traced graph, like torch's own modules."""
    tracer = x.tracer
    assert isinstance(tracer, fx.Tracer)
    step: Tensor = tracer.create_proxy("call_module", tracer.path_of_module(module), (x,), {})  # type: ignore[assignment]
    return step
