"""ReLU, depthwise conv, 1x1 conv and batch norm of a channels-last tensor, once or several times one after the other.

A half is one such sequence. Forward it is one kernel: for a tile of pixels the windows are gathered, mixed by the 1x1
weights, and written with what the tile knows of the statistics; the next half normalizes what it reads, and only the
last one is followed by a kernel that normalizes. Backward a half is two: through norm and 1x1 conv, with the windows
gathered anew for the gradient of its weights, then through depthwise conv and ReLU. Nothing else is kept than the input
and what the 1x1 convs gave. Sums over pixels are written by every program for its own pixels and joined by whoever
reads them, those for weights by one last kernel: nothing is added to from two sides, so that bits repeat.

A half without depthwise conv is ReLU, 1x1 conv, batch norm; a factorized reduction has two 1x1 convs. What is added up
is in float32; matrix products take what the tensors hold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from natpp.kernels import composed
from natpp.kernels.halves import Half
from natpp.kernels.norm import gradient_sums, joined_statistics, joined_sums, move_running, normalize
from natpp.kernels.tiles import MOST_PROGRAMS, in_steps, on_device_of

NUMBERS = 8192  # of a tile: 32 for each thread
LEAST = 64  # programs, however many channels there are
PARTS = 8192  # numbers of one kind that all programs of a kernel sum up: programs times channels
JOINED = 4096  # of these, what is joined at once
SUMMED = 128, 32  # of the last kernel: parts and numbers at once
OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}  # one stage: no copies of tiles in shared memory
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


class Separated(torch.autograd.Function):
    """Images after some halves; running statistics are updated where given."""

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
        kept = [x]
        steps: list[_Step] = []
        statistics: list[Tensor] = []
        before: tuple[Tensor, int] | None = None
        with on_device_of(x):
            for number, half in enumerate(halves):
                step = _Step(kept[-1], half, groups, halves[number - 1] if number else None)
                y, partial, found = step.forward(kept[-1], dtype, before)
                kept.append(y)
                steps.append(step)
                if found is not None:
                    statistics.append(found)
                before = partial, step.share
            assert before is not None
            last = halves[-1].norm
            z, found = normalize(
                kept[-1],
                *before,
                last.weight,
                last.bias,
                last.eps,
                groups,
                last.running_mean,
                last.running_var,
                last.momentum,
                added,
            )
        statistics.append(found)
        ctx.save_for_backward(*kept, *statistics, *(tensor for half in halves for tensor in half.tensors()))
        ctx.steps, ctx.halves, ctx.groups, ctx.dtype = steps, halves, groups, dtype
        ctx.set_materialize_grads(False)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (dz,) = gradients
        wanted = ctx.needs_input_grad
        if dz is None:
            return (None,) * len(wanted)
        count = len(ctx.steps)
        saved = ctx.saved_tensors
        kept, statistics, tensors = saved[: count + 1], saved[count + 1 : 2 * count + 1], saved[2 * count + 1 :]
        if torch.is_grad_enabled():  # somebody wants the gradient of the gradient
            return _again(ctx, kept[0], tensors, dz)
        with on_device_of(dz):
            dx, found = _backward(ctx.steps, kept, statistics, dz)
        return (
            dx if wanted[0] else None,
            *(None,) * 3,
            dz if wanted[4] else None,
            *(one if want else None for one, want in zip(found, wanted[5:], strict=True)),
        )


def _again(ctx: Any, x: Tensor, tensors: Sequence[Tensor], dz: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients with a graph of their own, from what is composed of torch's operations."""
    given = iter(tensors)
    halves = [half.with_tensors([next(given) for _ in half.tensors()]) for half in ctx.halves]
    z = composed.separable(x, halves, ctx.groups, ctx.dtype)
    inputs = [x, *tensors]
    wanted = [ctx.needs_input_grad[0], *ctx.needs_input_grad[5:]]
    some = [one for one, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(z, some, dz, create_graph=True))
    first, *others = (next(found) if want else None for want in wanted)
    return first, None, None, None, dz if ctx.needs_input_grad[4] else None, *others


def _backward(
    steps: Sequence[_Step], kept: Sequence[Tensor], statistics: Sequence[Tensor], dz: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of x, and of the tensors of all halves."""
    room = _Room(steps, kept[0].device)
    dz, step_of_dz = in_steps(dz, steps[-1].align_out)
    sums = gradient_sums(kept[-1], dz, step_of_dz, statistics[-1][0], steps[-1].groups)
    norms: list[Tensor] = []
    for number in reversed(range(len(steps))):
        step = steps[number]
        before = statistics[number - 1] if number else None
        t, of_norm = step.through_pointwise(
            kept[number], kept[number + 1], dz, step_of_dz, before, statistics[number], sums, room, number
        )
        norms.insert(0, of_norm)
        if step.direct:
            dz = t
        else:
            dz, sums = step.through_depthwise(kept[number], t, before, room, number)
        step_of_dz = step.channels_in
    weights = room.finish()
    found: list[Tensor] = []
    for step, of_norm in zip(steps, norms, strict=True):
        if step.depthwise is not None:
            found.append(next(weights).view(step.depthwise.shape))
        pointwise = next(weights)
        found.append(pointwise[: step.pointwise.numel()].view(step.pointwise.shape))
        if step.shifted is not None:
            found.append(pointwise[step.pointwise.numel() :].view(step.shifted.shape))
        dweight, dbias = of_norm[:, 0] if step.groups == 1 else of_norm.sum(1)
        found += [dweight.to(step.norm.weight.dtype), dbias.to(step.norm.bias.dtype)]
    return dz, found


def _blocked(channels: int, most: int) -> int:
    """The power of two that holds so many channels, 16 at least, which is the least a matrix product takes."""
    return min(max(16, 1 << (channels - 1).bit_length()), most)


@dataclass(frozen=True)
class _Shared:
    """How the pixels of a group are shared: `share` of them for each of `blocks` programs."""

    share: int
    blocks: int


def _shared(pixels: int, tile: int, most: int) -> _Shared:
    """Whole tiles each, and no program without any."""
    tiles = -(-pixels // tile)
    share = -(-tiles // max(most, 1)) * tile
    return _Shared(share, -(-pixels // share))


class _Step:
    """A half at its place: its sizes, how it is cut, and its kernels."""

    def __init__(self, x: Tensor, half: Half, groups: int, before: Half | None):
        images, self.channels_in, self.height, self.width = x.shape
        self.depthwise, self.pointwise, self.shifted = half.depthwise, half.pointwise, half.shifted
        self.norm = half.norm
        self.stride, self.dilation, self.kernel = half.stride, half.dilation, half.kernel
        self.before = None if before is None else before.norm
        self.groups = groups
        self.images = images
        self.channels_out = half.channels_out
        self.height_out, self.width_out = -(-self.height // half.stride), -(-self.width // half.stride)
        self.direct = half.depthwise is None and (half.stride == 1 or half.shifted is not None)
        self.align_in, self.align_out = math.gcd(self.channels_in, 16), math.gcd(self.channels_out, 16)
        self.block_i, self.block_o = _blocked(self.channels_in, 64), _blocked(self.channels_out, 256)
        self.block_p = _pixels_of(max(self.block_i, self.block_o))
        self.pixels = images // groups * self.height_out * self.width_out
        self.across = -(-self.channels_in // self.block_i)
        cut = _shared(self.pixels, self.block_p, _programs(self.block_o) // groups)
        self.share, self.blocks = cut.share, cut.blocks

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.height, self.width, self.height_out, self.width_out

    def forward(
        self, x: Tensor, dtype: torch.dtype, before: tuple[Tensor, int] | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """y, what its blocks know of its statistics, and the statistics of x (2, groups, channels) if it has a norm."""
        y = torch.empty(
            (self.images, self.channels_out, self.height_out, self.width_out),
            dtype=dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        partial = torch.empty(2, self.groups, self.blocks, self.channels_out, dtype=torch.float32, device=x.device)
        found = None
        norm = self.before
        if norm is not None:
            found = torch.empty(2, self.groups, self.channels_in, dtype=torch.float32, device=x.device)
        of_x, share_of_x = (partial, 1) if before is None else before
        running = norm is not None and norm.running_mean is not None
        _forward[(self.blocks, self.groups)](
            x,
            y,
            self.pointwise if self.depthwise is None else self.depthwise,  # any pointer, where it is not read
            self.pointwise,
            self.pointwise if self.shifted is None else self.shifted,
            of_x,
            partial if found is None else found,
            self.pointwise if norm is None else norm.weight,
            self.pointwise if norm is None else norm.bias,
            partial if norm is None or norm.running_mean is None else norm.running_mean,
            partial if norm is None or norm.running_var is None else norm.running_var,
            partial,
            self.pixels,
            *self.sizes,
            self.channels_in // self.align_in,
            self.channels_out // self.align_out,
            self.share,
            share_of_x,
            of_x.shape[2],
            self.images // self.groups,
            self.stride,
            self.dilation,
            len(self.pointwise),
            0.0 if norm is None else norm.eps,
            0.0 if norm is None else norm.momentum,
            self.kernel,
            norm is not None,
            running,
            self.shifted is not None,
            self.align_in,
            self.align_out,
            self.block_p,
            self.block_i,
            self.block_o,
            JOINED // self.block_i,
            **OPTIONS,
        )
        return y, partial, found

    def through_pointwise(
        self,
        x: Tensor,
        y: Tensor,
        dz: Tensor,
        step_of_dz: int,
        before: Tensor | None,
        statistics: Tensor,
        sums: Tensor,
        room: _Room,
        number: int,
    ) -> tuple[Tensor, Tensor]:
        """The gradient of what the 1x1 conv reads (or of x, where nothing is between), and those of the norm."""
        shape = x.shape if self.direct else (self.images, self.channels_in, self.height_out, self.width_out)
        t = torch.empty(
            shape, dtype=x.dtype if self.direct else y.dtype, device=x.device, memory_format=torch.channels_last
        )
        gradients = torch.empty(2, self.groups, self.channels_out, dtype=torch.float32, device=x.device)
        norm = self.before
        _through_pointwise[(room.pointwise[number].blocks, self.across, self.groups)](
            x,
            y,
            dz,
            t,
            self.pointwise if self.depthwise is None else self.depthwise,
            self.pointwise,
            self.pointwise if self.shifted is None else self.shifted,
            statistics if before is None else before,
            self.pointwise if norm is None else norm.weight,
            self.pointwise if norm is None else norm.bias,
            statistics,
            self.norm.weight,
            sums,
            gradients,
            room.partial,
            room.pointwise_at[number],
            self.pixels,
            *self.sizes,
            self.channels_in // self.align_in,
            self.channels_out // self.align_out,
            step_of_dz // self.align_out,
            room.pointwise[number].share,
            sums.shape[2],
            self.images // self.groups,
            self.stride,
            self.dilation,
            len(self.pointwise),
            0.0 if norm is None else norm.eps,
            self.norm.eps,
            self.kernel,
            norm is not None,
            self.direct,
            self.shifted is not None,
            self.align_in,
            self.align_out,
            self.block_p,
            self.block_i,
            self.block_o,
            JOINED // self.block_o,
            **OPTIONS,
        )
        return t, gradients

    def through_depthwise(
        self, x: Tensor, t: Tensor, before: Tensor | None, room: _Room, number: int
    ) -> tuple[Tensor, Tensor]:
        """The gradient of x as it is after its norm, if it has one, and the sums over it that this norm needs."""
        cut = room.depthwise[number]
        dx = torch.empty_like(x, memory_format=torch.channels_last)
        norm = self.before
        sums = room.partial  # not written
        if norm is not None:
            sums = torch.empty(2, self.groups, cut.blocks, self.channels_in, dtype=torch.float32, device=x.device)
        _through_depthwise[(cut.blocks, self.across, self.groups)](
            x,
            t,
            dx,
            self.pointwise if self.depthwise is None else self.depthwise,
            room.partial if before is None else before,
            self.pointwise if norm is None else norm.weight,
            self.pointwise if norm is None else norm.bias,
            sums,
            room.partial,
            room.depthwise_at[number],
            self.images // self.groups * self.height * self.width,
            *self.sizes,
            self.channels_in // self.align_in,
            cut.share,
            self.images // self.groups,
            self.stride,
            self.dilation,
            0.0 if norm is None else norm.eps,
            self.kernel,
            norm is not None,
            self.align_in,
            _pixels_of(self.block_i),
            self.block_i,
            max(16, 1 << (self.kernel * self.kernel - 1).bit_length()),
            **OPTIONS,
        )
        return dx, sums


def _pixels_of(block: int) -> int:
    """Pixels of a tile of so many channels; fewer of wide ones, of which there are few."""
    return max((NUMBERS if block <= 32 else NUMBERS // 2) // block, 32)


def _programs(block: int) -> int:
    """How many programs may sum up so many channels: each that reads them reads all."""
    return min(max(PARTS // block, LEAST), MOST_PROGRAMS)


class _Room:
    """Where programs write what they know of the gradients of weights, and the kernel that joins it."""

    def __init__(self, steps: Sequence[_Step], device: torch.device):
        self.steps = steps
        self.pointwise: list[_Shared] = []
        self.depthwise: list[_Shared] = []
        self.pointwise_at: list[int] = []
        self.depthwise_at: list[int] = []
        self.table: list[tuple[int, int, int]] = []  # where parts start, how many, numbers of each
        size = 0
        for step in steps:
            cut = _shared(step.pixels, step.block_p, _programs(step.block_o) // step.groups // step.across)
            self.pointwise.append(cut)
            back = _shared(
                step.images // step.groups * step.height * step.width,
                _pixels_of(step.block_i),
                _programs(step.block_i) // step.groups,
            )
            self.depthwise.append(back)
            self.depthwise_at.append(size)
            if step.depthwise is not None:
                size = self._with(size, step.groups * back.blocks, step.depthwise.numel())
            self.pointwise_at.append(size)
            size = self._with(size, step.groups * cut.blocks, step.channels_out * step.channels_in)
        self.partial = torch.empty(size, dtype=torch.float32, device=device)

    def _with(self, start: int, parts: int, numbers: int) -> int:
        self.table.append((start, parts, numbers))
        return start + parts * numbers

    def finish(self) -> Any:
        """The gradients of the weights, one after the other, as vectors."""
        total = sum(numbers for _, _, numbers in self.table)
        like = self.steps[0].pointwise
        found = torch.empty(total, dtype=like.dtype, device=like.device)
        at = 0
        for begin in range(0, len(self.table), 4):  # a launch for up to two halves
            some = self.table[begin : begin + 4]
            rows = some + [(0, 0, 0)] * (4 - len(some))
            widest = max(numbers for _, _, numbers in some)
            numbers_of = [number for row in rows for number in row]
            _finish[(-(-widest // SUMMED[1]), len(some))](
                self.partial, found, at, *numbers_of, *SUMMED, num_warps=4, enable_fp_fusion=True
            )
            at += sum(numbers for _, _, numbers in some)
        return iter(found.split([numbers for _, _, numbers in self.table]))


@triton.jit
def _places(begin, height, width, BLOCK_P: tl.constexpr):
    """Image, row and place in the row of so many pixels from `begin` on.

    Quotients of small numbers are taken in float32: half a pixel from the next whole number they are exact.
    """
    first = begin // width
    first_image = first // height
    place = begin - first * width + tl.arange(0, BLOCK_P)
    rows = ((place.to(tl.float32) + 0.5) * (1.0 / width.to(tl.float32))).to(tl.int32)
    across = place - rows * width
    down = first - first_image * height + rows
    images = ((down.to(tl.float32) + 0.5) * (1.0 / height.to(tl.float32))).to(tl.int32)
    return first_image + images, down - images * height, across


@triton.jit
def _product(first, second, added):
    """A matrix product, added to something."""
    if INTERPRETED:  # where bf16 is held as integers, which would be multiplied
        first = first.to(tl.float32)
        second = second.to(tl.float32)
    return tl.dot(first, second, added, input_precision="ieee")


@triton.jit
def _rectified(value):
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _scale_and_shift(statistics, weight, bias, eps, group, groups, channels, column, inside):
    """How a norm with these statistics changes what it reads."""
    mean = tl.load(statistics + group * channels + column, mask=inside, other=0.0)
    var = tl.load(statistics + (groups + group) * channels + column, mask=inside, other=1.0)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) / tl.sqrt(var + eps)
    return scale, tl.load(bias + column, mask=inside, other=0.0).to(tl.float32) - mean * scale


@triton.jit
def _within(place, size):
    """Whether a place is from 0 up and below the size."""
    return place.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def _read(places, valid, inside, scale, shift, NORMED: tl.constexpr):
    """Pixels of x, normalized if x has a norm, and rectified; zeros where there are none."""
    value = tl.load(places, mask=valid[:, None] & inside[None, :], other=0.0).to(tl.float32)
    if NORMED:
        value = tl.where(valid[:, None], value * scale[None, :] + shift[None, :], 0.0)
    return _rectified(value)


@triton.jit
def _row(
    total,
    start,
    weights,
    i,
    image,
    top,
    left,
    valid,
    inside,
    height,
    width,
    channels,
    dilation,
    scale,
    shift,
    KERNEL: tl.constexpr,
    NORMED: tl.constexpr,
):
    """The total, and what one row of every window adds."""
    row = top + i * dilation
    there = valid & _within(row, height)
    places = start + (((image * height + row) * width + left) * channels)[:, None]
    for j in tl.static_range(KERNEL):
        valid_j = there & _within(left + j * dilation, width)
        value = _read(places + j * dilation * channels, valid_j, inside, scale, shift, NORMED)
        weight = tl.load(weights + (i * KERNEL + j), mask=inside, other=0.0)
        total += value * weight.to(tl.float32)[None, :]
    return total


@triton.jit
def _gathered(
    start,
    depthwise,
    image,
    down,
    across,
    valid,
    column,
    inside,
    height,
    width,
    channels,
    stride,
    dilation,
    scale,
    shift,
    KERNEL: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """The depthwise conv of some channels of x, rectified, at some pixels of the output."""
    top = down * stride - dilation * (KERNEL // 2)
    left = across * stride - dilation * (KERNEL // 2)
    places = start + column[None, :]
    if KERNEL == 1:
        offset = ((image * height + top) * width + left) * channels
        total = _read(places + offset[:, None], valid, inside, scale, shift, NORMED)
    else:
        total = tl.zeros((BLOCK_P, BLOCK_I), dtype=tl.float32)
        weights = depthwise + column * (KERNEL * KERNEL)
        for i in range(KERNEL):  # not unrolled: there are not enough registers for all at once
            total = _row(
                total,
                places,
                weights,
                i,
                image,
                top,
                left,
                valid,
                inside,
                height,
                width,
                channels,
                dilation,
                scale,
                shift,
                KERNEL,
                NORMED,
            )
    return total


@triton.jit
def _next(start, image, down, across, valid, column, inside, height, width, channels):
    """What is one pixel down and to the right of every second pixel of x, rectified; zeros beside it."""
    row = 2 * down + 1
    place = 2 * across + 1
    offset = ((image * height + row) * width + place) * channels
    there = valid & (row < height) & (place < width)
    nothing = tl.zeros_like(column).to(tl.float32)
    return _read(start + offset[:, None] + column[None, :], there, inside, nothing, nothing, False)


@triton.jit(
    do_not_specialize=[
        "depthwise",
        "pointwise",
        "shifted",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "pixels",
        "height",
        "width",
        "height_out",
        "width_out",
        "columns_in",
        "columns_out",
        "share",
        "share_of_x",
        "blocks_of_x",
        "images",
        "stride",
        "dilation",
        "first_out",
    ]
)
def _forward(
    x,
    y,
    depthwise,
    pointwise,
    shifted,
    of_x,
    statistics,
    weight,
    bias,
    running_mean,
    running_var,
    partial,
    pixels,
    height,
    width,
    height_out,
    width_out,
    columns_in,
    columns_out,
    share,
    share_of_x,
    blocks_of_x,
    images,
    stride,
    dilation,
    first_out,
    eps,
    momentum,
    KERNEL: tl.constexpr,
    NORMED: tl.constexpr,
    RUNNING: tl.constexpr,
    FACTORIZED: tl.constexpr,
    ALIGN_IN: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """y, and of every block mean and squared deviations: partial (2, groups, blocks, channels).

    Where x has a norm, its statistics are joined first. All programs write the same to the same place, from where
    they read it again, channels by channels; the first moves the running ones.
    """
    block = tl.program_id(0)
    group = tl.program_id(1)
    groups = tl.num_programs(1)
    channels_in = columns_in * ALIGN_IN
    channels_out = columns_out * ALIGN_OUT
    if NORMED:
        rows = images * height * width
        for begin_i in range(0, channels_in, BLOCK_I):
            column = begin_i + tl.arange(0, BLOCK_I)
            inside = column < channels_in
            mean, var = joined_statistics(
                of_x, rows, share_of_x, blocks_of_x, channels_in, group, groups, column, BLOCK_I, BLOCK_B
            )
            tl.store(statistics + group * channels_in + column, mean, mask=inside)
            tl.store(statistics + (groups + group) * channels_in + column, var, mask=inside)
            if RUNNING and block == 0:
                move_running(running_mean, running_var, mean, var, rows.to(tl.float32), momentum, column, inside)
        tl.debug_barrier()

    out = tl.arange(0, BLOCK_O)
    inside_out = out < channels_out
    first = block * share
    last = tl.minimum(first + share, pixels)
    start = x + group * images * height * width * channels_in
    target = y + group * pixels * channels_out
    mean_out = tl.zeros((BLOCK_O,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_O,), dtype=tl.float32)
    for begin in range(first, last, BLOCK_P):
        pixel = begin + tl.arange(0, BLOCK_P)
        valid = pixel < last
        image, down, across = _places(begin, height_out, width_out, BLOCK_P)
        result = tl.zeros((BLOCK_P, BLOCK_O), dtype=tl.float32)
        for begin_i in range(0, channels_in, BLOCK_I):
            column = begin_i + tl.arange(0, BLOCK_I)
            inside = column < channels_in
            scale = tl.zeros((BLOCK_I,), dtype=tl.float32)
            shift = tl.zeros((BLOCK_I,), dtype=tl.float32)
            if NORMED:
                scale, shift = _scale_and_shift(
                    statistics, weight, bias, eps, group, groups, channels_in, column, inside
                )
            gathered = _gathered(
                start,
                depthwise,
                image,
                down,
                across,
                valid,
                column,
                inside,
                height,
                width,
                channels_in,
                stride,
                dilation,
                scale,
                shift,
                KERNEL,
                NORMED,
                BLOCK_P,
                BLOCK_I,
            )
            mixing = tl.load(
                pointwise + out[None, :] * channels_in + column[:, None],
                mask=inside[:, None] & (out < first_out)[None, :],
                other=0.0,
            )
            result = _product(gathered.to(y.dtype.element_ty), mixing.to(y.dtype.element_ty), result)
            if FACTORIZED:
                gathered = _next(start, image, down, across, valid, column, inside, height, width, channels_in)
                mixing = tl.load(
                    shifted + (out - first_out)[None, :] * channels_in + column[:, None],
                    mask=inside[:, None] & ((out >= first_out) & inside_out)[None, :],
                    other=0.0,
                )
                result = _product(gathered.to(y.dtype.element_ty), mixing.to(y.dtype.element_ty), result)
        mask = valid[:, None] & inside_out[None, :]
        rounded = result.to(y.dtype.element_ty)
        tl.store(target + pixel[:, None] * channels_out + out[None, :], rounded, mask=mask)
        value = rounded.to(tl.float32)
        before = (begin - first).to(tl.float32)
        count = tl.minimum(last - begin, BLOCK_P).to(tl.float32)
        tile_mean = tl.sum(value, axis=0) / count
        deviation = tl.where(valid[:, None], value - tile_mean[None, :], 0.0)
        difference = tile_mean - mean_out
        part = count / (before + count)
        mean_out += difference * part
        squares += tl.sum(deviation * deviation, axis=0) + difference * difference * (before * part)
    place = (group * tl.num_programs(0) + block) * channels_out + out
    half = groups * tl.num_programs(0) * channels_out
    tl.store(partial + place, mean_out, mask=inside_out)
    tl.store(partial + half + place, squares, mask=inside_out)


@triton.jit(
    do_not_specialize=[
        "depthwise",
        "pointwise",
        "shifted",
        "weight_before",
        "bias_before",
        "weight",
        "at",
        "pixels",
        "height",
        "width",
        "height_out",
        "width_out",
        "columns_in",
        "columns_out",
        "dz_columns",
        "share",
        "blocks_of_sums",
        "images",
        "stride",
        "dilation",
        "first_out",
    ]
)
def _through_pointwise(
    x,
    y,
    dz,
    t,
    depthwise,
    pointwise,
    shifted,
    before,
    weight_before,
    bias_before,
    statistics,
    weight,
    sums,
    gradients,
    partial,
    at,
    pixels,
    height,
    width,
    height_out,
    width_out,
    columns_in,
    columns_out,
    dz_columns,
    share,
    blocks_of_sums,
    images,
    stride,
    dilation,
    first_out,
    eps_before,
    eps,
    KERNEL: tl.constexpr,
    NORMED: tl.constexpr,
    DIRECT: tl.constexpr,
    FACTORIZED: tl.constexpr,
    ALIGN_IN: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """t: the gradient of what the 1x1 conv reads, of some channels; where DIRECT that of x, through the ReLU.

    Also the block's part of the gradient of the 1x1 weights, and once the gradients of the norm's weight and bias.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    groups = tl.num_programs(2)
    channels_in = columns_in * ALIGN_IN
    channels_out = columns_out * ALIGN_OUT
    step = dz_columns * ALIGN_OUT
    out = tl.arange(0, BLOCK_O)
    inside_out = out < channels_out
    column = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside = column < channels_in

    plain, weighted = joined_sums(sums, blocks_of_sums, channels_out, group, groups, out, BLOCK_O, BLOCK_B)
    mean = tl.load(statistics + group * channels_out + out, mask=inside_out, other=0.0)
    var = tl.load(statistics + (groups + group) * channels_out + out, mask=inside_out, other=1.0)
    inverse = 1.0 / tl.sqrt(var + eps)
    if block + tl.program_id(1) == 0:
        tl.store(gradients + group * channels_out + out, weighted * inverse, mask=inside_out)
        tl.store(gradients + (groups + group) * channels_out + out, plain, mask=inside_out)
    total = pixels.to(tl.float32)
    scale_out = inverse * tl.load(weight + out, mask=inside_out, other=0.0).to(tl.float32)
    center = plain / total
    slope = weighted / total * (inverse * inverse)

    scale = tl.zeros((BLOCK_I,), dtype=tl.float32)
    shift = tl.zeros((BLOCK_I,), dtype=tl.float32)
    if NORMED:
        scale, shift = _scale_and_shift(
            before, weight_before, bias_before, eps_before, group, groups, channels_in, column, inside
        )
    mixing = tl.load(
        pointwise + out[:, None] * channels_in + column[None, :],
        mask=(out < first_out)[:, None] & inside[None, :],
        other=0.0,
    ).to(y.dtype.element_ty)
    mixing_next = mixing
    if FACTORIZED:
        mixing_next = tl.load(
            shifted + (out - first_out)[:, None] * channels_in + column[None, :],
            mask=((out >= first_out) & inside_out)[:, None] & inside[None, :],
            other=0.0,
        ).to(y.dtype.element_ty)

    first = block * share
    last = tl.minimum(first + share, pixels)
    start = x + group * images * height * width * channels_in
    start_y = y + group * pixels * channels_out
    start_dz = dz + group * pixels * step
    target = t + group * pixels * channels_in
    if FACTORIZED:
        target = t + group * images * height * width * channels_in
    of_weights = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    of_next = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    for begin in range(first, last, BLOCK_P):
        pixel = begin + tl.arange(0, BLOCK_P)
        valid = pixel < last
        image, down, across = _places(begin, height_out, width_out, BLOCK_P)
        mask_out = valid[:, None] & inside_out[None, :]
        value = tl.load(start_y + pixel[:, None] * channels_out + out[None, :], mask=mask_out, other=0.0)
        gradient = tl.load(start_dz + pixel[:, None] * step + out[None, :], mask=mask_out, other=0.0)
        gradient = gradient.to(tl.float32) - center[None, :]
        gradient -= (value.to(tl.float32) - mean[None, :]) * slope[None, :]
        dy = tl.where(mask_out, gradient * scale_out[None, :], 0.0).to(y.dtype.element_ty)
        gathered = _gathered(
            start,
            depthwise,
            image,
            down,
            across,
            valid,
            column,
            inside,
            height,
            width,
            channels_in,
            stride,
            dilation,
            scale,
            shift,
            KERNEL,
            NORMED,
            BLOCK_P,
            BLOCK_I,
        )
        passed = _product(dy, mixing, tl.zeros((BLOCK_P, BLOCK_I), dtype=tl.float32))
        if DIRECT:
            passed = tl.where(gathered <= 0.0, 0.0, passed)
        if FACTORIZED:  # of every four pixels of x the first and the last were read
            after = _next(start, image, down, across, valid, column, inside, height, width, channels_in)
            passed_next = _product(dy, mixing_next, tl.zeros((BLOCK_P, BLOCK_I), dtype=tl.float32))
            passed_next = tl.where(after <= 0.0, 0.0, passed_next)
            of_next = _product(tl.trans(dy), after.to(y.dtype.element_ty), of_next)
            places = ((image * height + 2 * down) * width + 2 * across) * channels_in
            corner = target + places[:, None] + column[None, :]
            right = valid & (2 * across + 1 < width)
            below = valid & (2 * down + 1 < height)
            nothing = tl.zeros((BLOCK_P, BLOCK_I), dtype=t.dtype.element_ty)
            tl.store(corner, passed.to(t.dtype.element_ty), mask=valid[:, None] & inside[None, :])
            tl.store(corner + channels_in, nothing, mask=right[:, None] & inside[None, :])
            tl.store(corner + width * channels_in, nothing, mask=below[:, None] & inside[None, :])
            tl.store(
                corner + (width + 1) * channels_in,
                passed_next.to(t.dtype.element_ty),
                mask=(right & below)[:, None] & inside[None, :],
            )
        else:
            tl.store(
                target + pixel[:, None] * channels_in + column[None, :],
                passed.to(t.dtype.element_ty),
                mask=valid[:, None] & inside[None, :],
            )
        of_weights = _product(tl.trans(dy), gathered.to(y.dtype.element_ty), of_weights)
    if FACTORIZED:
        of_weights = tl.where((out < first_out)[:, None], of_weights, of_next)
    place = (group * tl.num_programs(0) + block) * channels_out * channels_in
    tl.store(
        partial + at + place + out[:, None] * channels_in + column[None, :],
        of_weights,
        mask=inside_out[:, None] & inside[None, :],
    )


@triton.jit
def _row_back(
    total,
    of_weights,
    start,
    weights,
    i,
    value,
    image,
    down,
    across,
    valid,
    inside,
    height_out,
    width_out,
    channels,
    stride,
    dilation,
    KERNEL: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """The total and what one row of the weights passes back to every pixel; and with the gradient of these weights."""
    tap = tl.arange(0, BLOCK_T)
    shift = stride - 1  # which is 0 or 1
    twice = down + (KERNEL // 2 - i) * dilation
    there = valid & _within(twice, height_out << shift) & ((twice & shift) == 0)
    places = start + ((image * height_out + (twice >> shift)) * width_out * channels)[:, None]
    for j in tl.static_range(KERNEL):
        twice_across = across + (KERNEL // 2 - j) * dilation
        hit = there & _within(twice_across, width_out << shift) & ((twice_across & shift) == 0)
        offset = (twice_across >> shift) * channels
        gradient = tl.load(places + offset[:, None], mask=hit[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if KERNEL == 1:
            total += gradient
        else:
            weight = tl.load(weights + (i * KERNEL + j), mask=inside, other=0.0)
            total += gradient * weight.to(tl.float32)[None, :]
            found = tl.sum(gradient * value, axis=0)
            of_weights += tl.where((tap == i * KERNEL + j)[:, None], found[None, :], 0.0)
    return total, of_weights


@triton.jit(
    do_not_specialize=[
        "depthwise",
        "weight",
        "bias",
        "at",
        "pixels",
        "height",
        "width",
        "height_out",
        "width_out",
        "columns",
        "share",
        "images",
        "stride",
        "dilation",
    ]
)
def _through_depthwise(
    x,
    t,
    dx,
    depthwise,
    statistics,
    weight,
    bias,
    sums,
    partial,
    at,
    pixels,
    height,
    width,
    height_out,
    width_out,
    columns,
    share,
    images,
    stride,
    dilation,
    eps,
    KERNEL: tl.constexpr,
    NORMED: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """dx, through depthwise conv and ReLU, and the block's part of the gradient of the depthwise weights.

    Where x has a norm, dx is the gradient of what this norm gives, and the block's sums over it are kept for the norm.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    groups = tl.num_programs(2)
    channels = columns * ALIGN
    column = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside = column < channels
    scale = tl.zeros((BLOCK_I,), dtype=tl.float32)
    shift = tl.zeros((BLOCK_I,), dtype=tl.float32)
    mean = tl.zeros((BLOCK_I,), dtype=tl.float32)
    if NORMED:
        scale, shift = _scale_and_shift(statistics, weight, bias, eps, group, groups, channels, column, inside)
        mean = tl.load(statistics + group * channels + column, mask=inside, other=0.0)
    first = block * share
    last = tl.minimum(first + share, pixels)
    start_x = x + group * pixels * channels
    start = t + group * images * height_out * width_out * channels + column[None, :]
    weights = depthwise + column * (KERNEL * KERNEL)
    target = dx + group * pixels * channels
    of_weights = tl.zeros((BLOCK_T, BLOCK_I), dtype=tl.float32)
    plain = tl.zeros((BLOCK_I,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_I,), dtype=tl.float32)
    for begin in range(first, last, BLOCK_P):
        pixel = begin + tl.arange(0, BLOCK_P)
        valid = pixel < last
        image, down, across = _places(begin, height, width, BLOCK_P)
        mask = valid[:, None] & inside[None, :]
        raw = tl.load(start_x + pixel[:, None] * channels + column[None, :], mask=mask, other=0.0).to(tl.float32)
        value = raw
        if NORMED:
            value = raw * scale[None, :] + shift[None, :]
        value = _rectified(value)  # outside it meets gradients of zero only
        total = tl.zeros((BLOCK_P, BLOCK_I), dtype=tl.float32)
        for i in range(KERNEL):
            total, of_weights = _row_back(
                total,
                of_weights,
                start,
                weights,
                i,
                value,
                image,
                down,
                across,
                valid,
                inside,
                height_out,
                width_out,
                channels,
                stride,
                dilation,
                KERNEL,
                BLOCK_T,
            )
        rounded = tl.where(value <= 0.0, 0.0, total).to(dx.dtype.element_ty)
        tl.store(target + pixel[:, None] * channels + column[None, :], rounded, mask=mask)
        if NORMED:
            gradient = rounded.to(tl.float32)
            plain += tl.sum(gradient, axis=0)
            weighted += tl.sum(gradient * (raw - mean[None, :]), axis=0)
    if NORMED:
        place = (group * tl.num_programs(0) + block) * channels + column
        tl.store(sums + place, plain, mask=inside)
        tl.store(sums + groups * tl.num_programs(0) * channels + place, weighted, mask=inside)
    tap = tl.arange(0, BLOCK_T)
    if KERNEL > 1:
        place = at + (group * tl.num_programs(0) + block) * channels * (KERNEL * KERNEL)
        tl.store(
            partial + place + column[None, :] * (KERNEL * KERNEL) + tap[:, None],
            of_weights,
            mask=(tap < KERNEL * KERNEL)[:, None] & inside[None, :],
        )


@triton.jit(
    do_not_specialize=[
        "at", "start_0", "parts_0", "numbers_0", "start_1", "parts_1", "numbers_1",
        "start_2", "parts_2", "numbers_2", "start_3", "parts_3", "numbers_3",
    ]
)  # fmt: skip
def _finish(
    partial,
    found,
    at,
    start_0,
    parts_0,
    numbers_0,
    start_1,
    parts_1,
    numbers_1,
    start_2,
    parts_2,
    numbers_2,
    start_3,
    parts_3,
    numbers_3,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sums over the parts of up to four tensors, each (parts, numbers), one after the other from `at` on."""
    which = tl.program_id(1)
    start = start_0
    parts = parts_0
    numbers = numbers_0
    target = at
    if which == 1:
        start = start_1
        parts = parts_1
        numbers = numbers_1
        target = at + numbers_0
    if which == 2:
        start = start_2
        parts = parts_2
        numbers = numbers_2
        target = at + numbers_0 + numbers_1
    if which == 3:
        start = start_3
        parts = parts_3
        numbers = numbers_3
        target = at + numbers_0 + numbers_1 + numbers_2
    number = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = number < numbers
    total = tl.zeros((BLOCK_S, BLOCK_N), dtype=tl.float32)
    for begin in range(0, parts, BLOCK_S):
        part = begin + tl.arange(0, BLOCK_S)
        mask = (part < parts)[:, None] & inside[None, :]
        total += tl.load(partial + start + part[:, None] * numbers + number[None, :], mask=mask, other=0.0)
    tl.store(found + target + number, tl.sum(total, axis=0).to(found.dtype.element_ty), mask=inside)
