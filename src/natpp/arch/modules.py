"""The few modules that torch does not have: factorized reduction, 2x2 pooling that keeps the size, zeros.

And some that it has, with faster kernels: their names, weights and results are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from natpp import kernels
from natpp.kernels import reference


class Layers(nn.Sequential):
    """Torch's, but convolutions in it, each with ReLU and batch norm, are run as one where they can.

    Their modules are then not called one by one; those that have hooks are.
    """

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy) or not kernels.fast(x):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        return along(list(self), x, lambda layer, value: layer(value))

    def added_to(self, total: Tensor, x: Tensor) -> Tensor:
        """The total and what the layers make of x, added in the same kernel where that can be."""
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
    """What a chain of layers makes of images, each group of them with batch statistics of its own.

    Every layer is called, except where kernels know what several of them do.
    """
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
    """A norm that says what kernels need to know of it."""

    def of_batch(self) -> kernels.Norm | None:
        """What it would do to a batch, if that follows from the batch alone."""
        raise NotImplementedError

    def count(self) -> None:
        """One more batch was seen."""


def _halves(layers: Sequence[nn.Module]) -> tuple[list[Batched], list[kernels.Half]]:
    """The separable convolutions that a chain starts with, or one conv or factorized one, and their norms."""
    norms: list[Batched] = []
    halves: list[kernels.Half] = []
    rest = list(layers)
    while len(rest) >= 3 and type(rest[0]) is nn.ReLU:
        depthwise = rest[1] if len(rest) >= 4 and _is_depthwise(rest[1]) else None
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
        if not (_is_pointwise(pointwise) or (depthwise is None and shifted is None and _is_dense(pointwise))):
            break
        if not isinstance(norm, Batched) or any(map(_hooked, parts)):
            break
        if shifted is not None and not _is_pointwise(shifted):
            break
        assert isinstance(pointwise, nn.Conv2d)
        if depthwise is not None and pointwise.stride != (1, 1):
            break
        of_batch = norm.of_batch()
        if of_batch is None:
            break
        first = pointwise if depthwise is None else depthwise
        assert isinstance(first, nn.Conv2d)
        norms.append(norm)
        halves.append(
            kernels.Half(
                None if depthwise is None else first.weight,
                pointwise.weight,
                of_batch,
                first.stride[0],
                first.dilation[0],
                shifted.weight if isinstance(shifted, nn.Conv2d) else None,
            )
        )
        rest = rest[length:]
        if depthwise is None:
            break
    return norms, halves


def _length(halves: Sequence[kernels.Half]) -> int:
    """Of how many layers these are made."""
    return sum(3 if half.depthwise is None else 4 for half in halves)


def _is_depthwise(layer: nn.Module) -> bool:
    """Whether each channel is convolved by itself, in square windows."""
    return (
        isinstance(layer, nn.Conv2d) and _is_centered(layer) and layer.groups == layer.in_channels == layer.out_channels
    )


def _is_dense(layer: nn.Module) -> bool:
    """Whether all channels are convolved together, in square windows."""
    return isinstance(layer, nn.Conv2d) and _is_centered(layer) and layer.groups == 1


def _is_centered(layer: nn.Conv2d) -> bool:
    """Whether it convolves square windows around every pixel, or every second one."""
    if type(layer) is not nn.Conv2d or layer.bias is not None or layer.padding_mode != "zeros":
        return False
    side, other = layer.kernel_size
    (stride, _), (dilation, _) = layer.stride, layer.dilation
    return (
        side == other
        and side in (3, 5, 7)
        and layer.stride == (stride, stride)
        and layer.dilation == (dilation, dilation)
        and layer.padding == (dilation * (side // 2), dilation * (side // 2))
    )


def _is_pointwise(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.bias is not None:
        return False
    stride = layer.stride[0]
    return (
        layer.kernel_size == (1, 1)
        and layer.groups == 1
        and layer.stride == (stride, stride)
        and layer.padding == (0, 0)
    )


def _hooked(layer: nn.Module) -> bool:
    """Whether somebody wants to know when it is called."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks)


class BatchNorm2d(nn.BatchNorm2d, Batched):
    """Torch's, but the statistics of a batch are taken by natpp's kernels where these can."""

    def forward(self, x: Tensor | fx.Proxy) -> Tensor:
        if isinstance(x, fx.Proxy):
            return _leaf(self, x)
        if not self._by_batch or self.momentum is None or not kernels.fast(x):
            return super().forward(x)
        self.count()
        y, _, _ = kernels.batch_norm(
            x,
            self.weight,
            self.bias,
            self.eps,
            running_mean=self.running_mean if self._tracked else None,
            running_var=self.running_var if self._tracked else None,
            momentum=self.momentum,
        )
        return y

    def of_batch(self) -> kernels.Norm | None:
        if not self._by_batch or self.momentum is None or not self.affine:
            return None
        tracked = self._tracked
        return kernels.Norm(
            self.weight,
            self.bias,
            self.eps,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.momentum,
        )

    def count(self) -> None:
        if self._tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)

    @property
    def _by_batch(self) -> bool:
        return self.training or (self.running_mean is None and self.running_var is None)

    @property
    def _tracked(self) -> bool:
        return self.training and self.track_running_stats


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


class MaxPool2d(nn.MaxPool2d):
    """Torch's with an odd kernel, by natpp's kernels where these can."""

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
    """Halves the size: a 1x1 conv of stride 2 on x beside one on x shifted by one pixel."""

    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        half = channels_out // 2
        self.conv_1 = nn.Conv2d(channels_in, half, 1, stride=2, bias=False) if half else None
        self.conv_2 = nn.Conv2d(channels_in, channels_out - half, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.conv_1 is None:
            out: Tensor = self.conv_2(reference.shifted(x))
            return out
        return torch.cat([self.conv_1(x), self.conv_2(reference.shifted(x))], dim=1)


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
        if kernels.fast(x):  # so that the gradient is in channels-last memory too
            return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)
        return x.mean(dim=(2, 3))


def _leaf(module: nn.Module, x: fx.Proxy) -> Tensor:
    """The module as one step of a traced graph, as torch's own are."""
    tracer = x.tracer
    assert isinstance(tracer, fx.Tracer)
    step: Tensor = tracer.create_proxy("call_module", tracer.path_of_module(module), (x,), {})  # type: ignore[assignment]
    return step
