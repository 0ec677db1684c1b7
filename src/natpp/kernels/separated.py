"""ReLU, depthwise conv, 1x1 conv and batch norm of a channels-last tensor, once or several times in a row.

A half is one such sequence. Its forward pass is two launches of the kernels in merged.py. The first normalizes its
input (if there is a half before it), applies ReLU and copies it with zero padding, while other programs merge the
weights; the second multiplies and computes the statistics. Only the last half is followed by a normalizing kernel.
Backward, a half is two launches as well: through its norm into a zero-padded buffer, then through conv and ReLU. A last
launch computes the gradients of the weights. No two programs add to the same value, so results are reproducible.

A half without a depthwise conv is ReLU, 1x1 conv, batch norm, and reads x directly. A factorized reduction, with two
1x1 convs, has windows of 2 x 2 pixels with weights in two corners.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from natpp.kernels import geometry, merged, merged_back, reference
from natpp.kernels.conv_block import Half, Norm
from natpp.kernels.geometry import Conv
from natpp.kernels.norm import gradient_sums, normalize
from natpp.kernels.precompile import launch
from natpp.kernels.tiles import columns_of, in_steps, on_device_of

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
FINISHED = 256  # partial gradients of weights that a column of threads reads at once
KEPT = 5  # tensors that a half saves for the backward pass


class Separated(torch.autograd.Function):
    """Images after some halves; updates running statistics if given."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        halves: Sequence[Half],
        groups: int,
        dtype: torch.dtype,
        added: Tensor | None,
        *_: Tensor,
    ) -> Tensor:
        steps: list[_Step] = []
        kept: list[Tensor] = []  # per half: the conv's input, the backward weights, the conv's output, …
        y, statistics, norm = x, None, None
        with on_device_of(x):
            for half in halves:
                step = _Step(y.shape, half, groups, first=norm is None)
                buffer, weights, back, counters = step.prepare(y, dtype, norm, statistics)
                y, statistics = step.forward(buffer, weights, counters)
                steps.append(step)
                kept += [buffer, back, y, statistics, counters]
                norm = half.norm
            assert statistics is not None
            assert norm is not None
            z, counters = normalize(y, statistics, None, norm.weight, norm.bias, norm.eps, groups, added=added)
        ctx.save_for_backward(x, *kept, counters, *(tensor for half in halves for tensor in half.tensors()))
        ctx.steps, ctx.halves, ctx.groups, ctx.dtype = steps, halves, groups, dtype
        ctx.set_materialize_grads(False)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (dz,) = gradients
        wanted = ctx.needs_input_grad
        if dz is None:
            return (None,) * len(wanted)
        x, *saved = ctx.saved_tensors
        count = KEPT * len(ctx.steps)
        if torch.is_grad_enabled():  # a gradient of the gradient is needed
            return _again(ctx, x, saved[count + 1 :], dz)
        kept = [saved[begin : begin + KEPT] for begin in range(0, count, KEPT)]
        with on_device_of(dz):
            dx, found = _backward(ctx.steps, x, kept, saved[count], dz)
        return (
            dx if wanted[0] else None,
            *(None,) * 3,
            dz if wanted[4] else None,
            *(one if want else None for one, want in zip(found, wanted[5:], strict=True)),
        )


def _again(ctx: Any, x: Tensor, tensors: Sequence[Tensor], dz: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiable gradients, computed by torch operations."""
    given = iter(tensors)
    halves = [half.with_tensors([next(given) for _ in half.tensors()]) for half in ctx.halves]
    z = reference.separable(x, halves, ctx.groups, ctx.dtype)
    inputs = [x, *tensors]
    wanted = [ctx.needs_input_grad[0], *ctx.needs_input_grad[5:]]
    some = [one for one, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(z, some, dz, create_graph=True))
    first, *others = (next(found) if want else None for want in wanted)
    return first, None, None, None, dz if ctx.needs_input_grad[4] else None, *others


def _backward(
    steps: Sequence[_Step], x: Tensor, kept: Sequence[Sequence[Tensor]], last_counters: Tensor, dz: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of x, and of the tensors of all halves."""
    dz, step_of_dz = in_steps(dz, columns_of(dz.shape[1])[1])
    _, _, y, statistics, _ = kept[-1]
    sums = gradient_sums(y, dz, step_of_dz, statistics[0], last_counters, steps[-1].groups)
    norms: list[Tensor] = []
    partial: list[Tensor] = []
    for number in reversed(range(len(steps))):
        step = steps[number]
        buffer, weights, y, statistics, counters = kept[number]
        gradient, of_norm = step.through_norm(y, dz, step_of_dz, statistics, sums)
        before = (kept[number - 1][2], kept[number - 1][3]) if number else None
        dz, sums, of_weights = step.backward(x, buffer, gradient, weights, counters, before)
        step_of_dz = step.half.pointwise.shape[1]
        norms.insert(0, of_norm)
        partial.insert(0, of_weights)
    found: list[Tensor] = []
    of_convs = _finish(steps, partial)
    for step, of_norm in zip(steps, norms, strict=True):
        *convs, weight, bias = step.half.tensors()
        found += [_shaped(next(of_convs), one) for one in convs]
        dweight, dbias = of_norm[:, 0] if step.groups == 1 else of_norm.sum(1)
        found += [dweight.to(weight.dtype), dbias.to(bias.dtype)]
    return dz, found


def _shaped(values: Tensor, like: Tensor) -> Tensor:
    """A flat tensor reshaped to the shape and memory format of another."""
    if like.is_contiguous():
        return values.view(like.shape)
    out, channels, height, width = like.shape
    return values.view(out, height, width, channels).permute(0, 3, 1, 2)


def _finish(steps: Sequence[_Step], partial: Sequence[Tensor]) -> Any:
    """The gradients of depthwise and 1x1 weights of all halves, one after the other, as vectors."""
    numbers = [[one.numel() for one in step.half.tensors()[:-2]] for step in steps]
    like = steps[0].half.pointwise
    found = torch.empty(sum(map(sum, numbers)), dtype=like.dtype, device=like.device)
    rows = []
    at = 0
    for step, of_weights, some in zip(steps, partial, numbers, strict=True):
        rows.append(
            (of_weights, *step.weights, at, *step.numbers, step.whole.depth, step.whole.beside, step.strips.blocks)
        )
        at += sum(some)
    for begin in range(0, len(steps), 2):  # one launch for up to two halves
        pair = steps[begin : begin + 2]
        taps = max(16, 1 << max(step.conv.kernel**2 - 1 for step in pair).bit_length())
        launch(
            merged_back.finish,
            (max(step.conv.channels_in for step in pair), len(pair)),
            found,
            *rows[begin],
            *rows[min(begin + 1, len(rows) - 1)],
            taps,
            geometry.BREADTH,
            FINISHED // taps,
            **merged_back.SUMS,
        )
    return iter(torch.split(found, [number for some in numbers for number in some]))


@dataclass(frozen=True)
class _Shared:
    """How pixels or strips are divided: `share` of them for each of `blocks` programs."""

    share: int
    blocks: int


def _shared(count: int, tile: int, most: int, least: int) -> _Shared:
    """At least `least` whole tiles per program, and no empty program."""
    tiles = -(-count // tile)
    share = max(-(-tiles // max(most, 1)), least) * tile
    return _Shared(share, -(-count // share))


class _Step:
    """A half applied to images of a given shape: its sizes, how it is divided into programs, and its kernels."""

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
            int(self.half.depthwise is not None),
            *self.steps_of_weight,
            conv.kernel,
            conv.dilation,
            conv.channels_in,
            conv.channels_out,
            len(self.half.pointwise),
            self.whole.strip,
        )

    @functools.cached_property
    def strips(self) -> _Shared:
        """How strips are divided for the gradient of the weights: over whole buffers, so they may cross row ends."""
        whole = self.whole
        count = -(-self.images * self.rows * self.columns // whole.strip)
        room = max(MOST_PROGRAMS - self.cut_back.blocks * self.back.beside * self.groups, FOR_WEIGHTS)
        return _shared(count, geometry.TALL[1], room // (whole.tall * whole.beside), LONG)

    @functools.cached_property
    def cut_back(self) -> _Shared:
        """How the strips of a group are divided among programs for the gradient of x."""
        return self._cut(self.back, MOST_PROGRAMS - FOR_WEIGHTS)

    def _cut(self, conv: Conv, most: int) -> _Shared:
        """How the strips of a group are divided among programs that sum up their results."""
        most = min(max(PARTS // conv.channels_out, LEAST), most) // self.groups
        return _shared(conv.images // self.groups * conv.height * conv.across, geometry.STRIPS, most, MULTIPLIED)

    def _copied(self, channels: int) -> tuple[_Shared, int, int]:
        """How the pixels of a buffer are divided among copying programs; rows and columns of a tile."""
        block_c, _ = columns_of(channels)
        across = -(-channels // block_c)
        block_r = NUMBERS // block_c
        size = self.images // self.groups * self.rows * self.columns
        last = self.pixels - (self.groups - 1) * size - (0 if self.groups == 1 else self.lead)  # of the last group
        return _shared(last, block_r, COPYING // (across * self.groups), COPIED), block_r, block_c

    def prepare(
        self, x: Tensor, dtype: torch.dtype, norm: Norm | None, statistics: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The input of the product, merged weights for the conv and its gradient, and counters for both.

        `norm` is first applied to x, with the statistics of x.
        """
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
        any_pointer = self.half.norm.weight
        launch(
            merged.prepare,
            (programs + sum(blocks), across, self.groups if programs else 1),
            x,
            buffer,
            any_pointer if statistics is None else statistics,
            counters,
            any_pointer if norm is None else norm.weight,
            any_pointer if norm is None else norm.bias,
            *self.weights,
            weights,
            weights_back,
            self.images // self.groups,
            self.height,
            self.width,
            self.rows,
            self.columns,
            self.lead,
            self.pixels,
            conv.channels_in // self.align,
            shared.share,
            programs,
            self.groups,
            int(self.half.depthwise is not None),
            *self.steps_of_weight,
            conv.kernel,
            conv.stride,
            conv.dilation,
            conv.channels_out,
            len(self.half.pointwise),
            conv.strip,
            conv.beside,
            blocks[0],
            back.strip,
            back.beside,
            0.0 if norm is None else norm.eps,
            norm is not None,
            self.align,
            block_r,
            block_c,
            geometry.MERGED,
            geometry.BREADTH,
            **merged.COPIES,
        )
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
            merged.forward,
            (shared.blocks, conv.beside, self.groups),
            buffer,
            weights,
            y,
            partial,
            statistics,
            counters,
            statistics if norm.running_mean is None else norm.running_mean,
            statistics if norm.running_var is None else norm.running_var,
            conv.images // self.groups * conv.height * conv.across,
            conv.height,
            conv.width,
            self.rows,
            self.columns,
            self.corner,
            conv.channels_in // self.align,
            conv.channels_out // self.align_out,
            conv.kernel,
            conv.stride,
            conv.dilation,
            conv.strip,
            conv.across,
            conv.beside,
            shared.share,
            norm.momentum,
            self.direct,
            norm.running_mean is not None,
            even,
            conv.period if even else 0,
            self.align,
            self.align_out,
            geometry.STRIPS,
            geometry.DEPTH,
            geometry.BREADTH,
            block_c,
            JOINED // block_c,
            **merged.PRODUCTS,
        )
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
            merged_back.through_norm,
            (shared.blocks, -(-channels // block_c), self.groups),
            y,
            dz,
            buffer,
            sums,
            gradients,
            statistics,
            self.half.norm.weight,
            self.images // self.groups,
            self.height_out,
            self.width_out,
            self.rows,
            self.columns,
            self.lead,
            self.pixels,
            self.half.stride,
            channels // self.align_out,
            step_of_dz // self.align_out,
            shared.share,
            self.half.norm.eps,
            self.align_out,
            block_r,
            block_c,
            **merged.COPIES,
        )
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
        """Gradients of the half's input, their sums that its norm needs, and gradients of merged weights.

        `before`: the output of the previous half, and its statistics.
        """
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
            merged_back.backward,
            (programs,),
            buffer,
            gradient,
            weights,
            like,
            sums if before is None else before[1],
            dx,
            parts,
            sums,
            counters,
            partial,
            self.images,
            self.groups,
            self.height,
            self.width,
            self.rows,
            self.columns,
            self.lead,
            self.corner,
            self.corner_back,
            whole.channels_in // self.align,
            whole.channels_out // self.align_out,
            whole.kernel,
            whole.dilation,
            whole.strip,
            whole.beside,
            whole.tall,
            strips.share,
            strips.blocks,
            back.strip,
            back.across,
            back.beside,
            shared.share,
            shared.blocks,
            self.direct,
            before is not None,
            even,
            back.period if even and before is not None else 0,
            self.align,
            self.align_out,
            geometry.STRIPS,
            geometry.DEPTH,
            *geometry.TALL,
            geometry.BREADTH,
            block_c if before is not None else 16,
            JOINED // block_c if before is not None else 16,
            **merged.PRODUCTS,
        )
        return dx, sums, partial
