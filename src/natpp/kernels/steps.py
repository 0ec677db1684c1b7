"""A half (see separated.py) on images of a given shape: its sizes, its division into programs, and its launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from natpp.kernels import geometry, merged, merged_back
from natpp.kernels.conv_block import Half, Norm
from natpp.kernels.geometry import Conv
from natpp.kernels.precompile import launch
from natpp.kernels.tiles import Shares, columns_of, divided

NUMBERS = 4096  # of a copied tile: 32 per thread
COPYING = 528  # maximum copying programs: four per multiprocessor of an H200
COPIED = 4  # minimum tiles per copying program: concurrent trainings fill the GPU, and fewer programs cost it less
MOST_PROGRAMS = 396  # maximum multiplying programs: three per multiprocessor of an H200, so that all run at once
FOR_WEIGHTS = 132  # of these, programs for the gradient of weights, next to those for the gradient of x
PARTS = 8192  # numbers of one kind that all programs of a kernel sum up: programs times channels
LEAST = 132  # minimum multiplying programs for any number of channels: one per multiprocessor of an H200
MULTIPLIED = 2  # minimum tiles of strips per multiplying program
LONG = 32  # the same for the gradient of weights, where each program writes its own partial sum
JOINED = 4096  # partial results combined at once
WIDE = 8  # maximum numbers copied at once: 16 bytes, which Triton up to 3.6 loads without the L1 cache, unlike 8


class Step:
    """A half applied to images of a given shape."""

    def __init__(self, shape: Sequence[int], half: Half, groups: int, *, first: bool):
        self.images, channels, self.height, self.width = shape
        self.half, self.groups = half, groups
        out, stride = half.channels_out, half.stride
        kernel, dilation = (2, 1) if half.shifted is not None else (half.kernel, half.dilation)
        self.height_out, self.width_out = -(-self.height // stride), -(-self.width // stride)
        self.conv = Conv(self.images, self.height_out, self.width_out, channels, out, kernel, stride, dilation)
        self.back = Conv(self.images, self.height, self.width, out, channels, kernel, 1, dilation)
        whole = Conv(self.images, self.height, self.width, channels, out, kernel, 1, dilation)
        self.whole = self.conv if stride == 1 else whole  # for the gradient of the weights
        self.direct = first and kernel == 1 and stride == 1  # x itself is multiplied, after ReLU on the fly
        self.align, self.align_out = math.gcd(channels, WIDE), math.gcd(out, WIDE)
        # Buffers have zeros before, between and after rows and images: as many as a window extends beyond a border.
        # The gradient of the output is stored at the positions of the input, so that they correspond.
        before = dilation * (half.kernel // 2)
        after = (kernel - 1) * dilation - before
        reach = max(before, after)
        self.rows, self.columns = self.height + reach, self.width + reach
        self.lead = reach * (self.columns + 1)
        self.pixels = 2 * self.lead + self.images * self.rows * self.columns + 2 * geometry.WIDEST
        self.corner = self.lead - before * (self.columns + 1)  # where the window of the first pixel starts
        self.corner_back = self.lead - after * (self.columns + 1)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Depthwise, 1x1 and shifted weights; a missing one is replaced by any pointer, which is not read."""
        half = self.half
        return (
            half.pointwise if half.depthwise is None else half.depthwise,
            half.pointwise,
            half.pointwise if half.shifted is None else half.shifted,
        )

    @property
    def steps_of_weight(self) -> tuple[int, int]:
        """Steps in `pointwise` to the next input channel and to the next tap; a 1x1 conv has no taps."""
        weight = self.half.pointwise
        return (weight.stride(1), weight.stride(3)) if self.half.dense else (1, 0)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers that kernels need about the weights: whether they are separable, their sizes, and the strip."""
        conv = self.conv
        return (
            int(self.half.depthwise is not None), *self.steps_of_weight, conv.kernel, conv.dilation,
            conv.channels_in, conv.channels_out, len(self.half.pointwise), self.whole.strip,
        )  # fmt: skip

    @functools.cached_property
    def strips(self) -> Shares:
        """How strips are divided for the gradient of the weights: over whole buffers, so they may cross row ends."""
        whole = self.whole
        count = -(-self.images * self.rows * self.columns // whole.strip)
        room = max(MOST_PROGRAMS - self.cut_back.blocks * self.back.beside * self.groups, FOR_WEIGHTS)
        return divided(count, geometry.TALL[1], room // (whole.tall * whole.beside), LONG)

    @functools.cached_property
    def cut_back(self) -> Shares:
        """How the strips of a group are divided among programs for the gradient of x."""
        return self._cut(self.back, MOST_PROGRAMS - FOR_WEIGHTS)

    def _cut(self, conv: Conv, most: int) -> Shares:
        """How the strips of a group are divided among programs that sum up their results."""
        most = min(max(PARTS // conv.channels_out, LEAST), most) // self.groups
        return divided(conv.images // self.groups * conv.height * conv.across, geometry.STRIPS, most, MULTIPLIED)

    def _copied(self, channels: int) -> tuple[Shares, int, int]:
        """How the pixels of a buffer are divided among copying programs; rows and columns of a tile."""
        block_c, _ = columns_of(channels)
        across = -(-channels // block_c)
        block_r = NUMBERS // block_c
        size = self.images // self.groups * self.rows * self.columns
        last = self.pixels - (self.groups - 1) * size - (0 if self.groups == 1 else self.lead)  # of the last group
        return divided(last, block_r, COPYING // (across * self.groups), COPIED), block_r, block_c

    def prepare(
        self, x: Tensor, dtype: torch.dtype, norm: Norm | None, statistics: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The product's input, first normalized by `norm`; merged weights for conv and gradient; counters for both."""
        conv, back = self.conv, self.back
        weights = torch.empty(conv.depth, conv.beside * geometry.BREADTH, dtype=dtype, device=x.device)
        weights_back = torch.empty(back.depth, back.beside * geometry.BREADTH, dtype=dtype, device=x.device)
        shared, block_r, block_c = self._copied(conv.channels_in)
        across = -(-conv.channels_in // block_c)
        buffer, programs = x, shared.blocks
        counters = torch.empty(2, self.groups, dtype=torch.int32, device=x.device)
        if self.direct:
            programs, across = 0, 1
        else:
            buffer = torch.empty(self.pixels, conv.channels_in, dtype=dtype, device=x.device)
        blocks = [one.depth // geometry.MERGED * one.beside for one in (conv, back)]
        any_pointer = self.half.norm.weight  # which is not read
        launch(
            merged.prepare, (programs + sum(blocks), across, self.groups if programs else 1),
            x, buffer, any_pointer if statistics is None else statistics, counters,
            any_pointer if norm is None else norm.weight, any_pointer if norm is None else norm.bias, *self.weights,
            weights, weights_back,
            self.images // self.groups, self.height, self.width, self.rows, self.columns, self.lead, self.pixels,
            conv.channels_in // self.align, shared.share, programs, self.groups,
            int(self.half.depthwise is not None), *self.steps_of_weight, conv.kernel, conv.stride, conv.dilation,
            conv.channels_out, len(self.half.pointwise), conv.strip, conv.beside,
            blocks[0], back.strip, back.beside, 0.0 if norm is None else norm.eps,
            norm is not None, self.align, block_r, block_c, geometry.MERGED, geometry.BREADTH, **merged.COPIES,
        )  # fmt: skip
        return buffer, weights, weights_back, counters

    def forward(self, buffer: Tensor, weights: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
        """y, and its mean and variance; updates running statistics."""
        conv, norm = self.conv, self.half.norm
        shared = self._cut(conv, MOST_PROGRAMS)
        y = torch.empty(
            (self.images, conv.channels_out, conv.height, conv.width),
            dtype=weights.dtype,
            device=buffer.device,
            memory_format=torch.channels_last,
        )
        partial = torch.empty(3, self.groups, shared.blocks, conv.channels_out, dtype=torch.float32, device=y.device)
        statistics = torch.empty(2, self.groups, conv.channels_out, dtype=torch.float32, device=y.device)
        even = conv.even(self.groups)
        block_c, _ = columns_of(conv.channels_out)
        launch(
            merged.forward, (shared.blocks, conv.beside, self.groups),
            buffer, weights, y, partial, statistics, counters,
            statistics if norm.running_mean is None else norm.running_mean,
            statistics if norm.running_var is None else norm.running_var,
            conv.images // self.groups * conv.height * conv.across, conv.height, conv.width, self.rows, self.columns,
            self.corner, conv.channels_in // self.align, conv.channels_out // self.align_out, conv.kernel, conv.stride,
            conv.dilation, conv.strip, conv.across, conv.beside, shared.share, norm.momentum,
            self.direct, norm.running_mean is not None, even, conv.period if even else 0, self.align, self.align_out,
            geometry.STRIPS, geometry.DEPTH, geometry.BREADTH, block_c, JOINED // block_c, **merged.PRODUCTS,
        )  # fmt: skip
        return y, statistics

    def through_norm(
        self, y: Tensor, dz: Tensor, step_of_dz: int, statistics: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient of y in a buffer, and those of the norm's weight and bias (2, groups, channels)."""
        channels = self.conv.channels_out
        shared, block_r, block_c = self._copied(channels)
        buffer = torch.empty(self.pixels, channels, dtype=y.dtype, device=y.device)
        gradients = torch.empty(2, self.groups, channels, dtype=torch.float32, device=y.device)
        launch(
            merged_back.through_norm, (shared.blocks, -(-channels // block_c), self.groups),
            y, dz, buffer, sums, gradients, statistics, self.half.norm.weight,
            self.images // self.groups, self.height_out, self.width_out, self.rows, self.columns, self.lead,
            self.pixels, self.half.stride, channels // self.align_out, step_of_dz // self.align_out, shared.share,
            self.half.norm.eps,
            self.align_out, block_r, block_c, **merged.COPIES,
        )  # fmt: skip
        return buffer, gradients

    def backward(
        self,
        x: Tensor,
        buffer: Tensor,
        gradient: Tensor,
        weights: Tensor,
        counters: Tensor,
        before: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the input, their sums for its norm, gradients of weights; `before`: the half before's output."""
        whole, back = self.whole, self.back
        shared, strips = self.cut_back, self.strips
        like = x if before is None else before[0]
        dx = torch.empty_like(like, memory_format=torch.channels_last)
        sums = torch.empty(2, self.groups, back.channels_out, dtype=torch.float32, device=x.device)
        parts = torch.empty(2, self.groups, shared.blocks, back.channels_out, dtype=torch.float32, device=x.device)
        even = back.even(self.groups)
        block_c, _ = columns_of(back.channels_out)
        shape = (strips.blocks, whole.depth, whole.beside * geometry.BREADTH)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        programs = whole.tall * whole.beside * strips.blocks + shared.blocks * back.beside * self.groups
        launch(
            merged_back.backward, (programs,),
            buffer, gradient, weights, like, sums if before is None else before[1], dx, parts, sums, counters, partial,
            self.images, self.groups, self.height, self.width, self.rows, self.columns, self.lead, self.corner,
            self.corner_back, whole.channels_in // self.align, whole.channels_out // self.align_out, whole.kernel,
            whole.dilation, whole.strip, whole.beside, whole.tall, strips.share, strips.blocks,
            back.strip, back.across, back.beside, shared.share, shared.blocks,
            self.direct, before is not None, even, back.period if even and before is not None else 0, self.align,
            self.align_out, geometry.STRIPS, geometry.DEPTH, *geometry.TALL, geometry.BREADTH,
            block_c if before is not None else 16, JOINED // block_c if before is not None else 16, **merged.PRODUCTS,
        )  # fmt: skip
        return dx, sums, partial
