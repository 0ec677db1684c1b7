"""Pools of a channels-last tensor. Forward and backward only gather, so no two programs add to the same value.

Max pooling stores one byte per maximum: its index in the window.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from natpp.kernels import reference
from natpp.kernels.precompile import launch
from natpp.kernels.tiles import columns_of, in_steps, on_device_of

TILE_BYTES = 4096  # of the tile that one program makes
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
UNROLLED = tl.constexpr(3)  # larger windows are processed row by row, since they would need too many registers


class Pooled(torch.autograd.Function):
    """Means over windows of kernel x kernel pixels; the padding is not averaged in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int) -> Tensor:
        y = _output(x, stride, x.dtype)
        _launch(_pool, x, y, x, y, kernel, stride)
        ctx.kernel, ctx.stride, ctx.shape = kernel, stride, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (dy,) = gradients
        if torch.is_grad_enabled():  # a gradient of the gradient is needed
            x = torch.zeros(ctx.shape, dtype=dy.dtype, device=dy.device, requires_grad=True)
            y = reference.average_pool(x, ctx.kernel, ctx.stride)
            return torch.autograd.grad(y, x, dy, create_graph=True)[0], None, None
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        _launch(_pool_back, dy, dx, dx, dy, ctx.kernel, ctx.stride)
        return dx, None, None


class MaxPooled(torch.autograd.Function):
    """Maxima over windows of kernel x kernel pixels; ties go to the first, as in torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int) -> Tensor:
        y, taps = (_output(x, stride, dtype) for dtype in (x.dtype, torch.uint8))
        _launch(_max_pool, x, y, x, y, kernel, stride, taps)
        ctx.save_for_backward(taps)
        ctx.kernel, ctx.stride, ctx.shape = kernel, stride, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (dy,) = gradients
        (taps,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is needed
            return _scattered(dy, taps, ctx.kernel, ctx.stride, ctx.shape), None, None
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        _launch(_max_pool_back, dy, dx, dx, dy, ctx.kernel, ctx.stride, taps)
        return dx, None, None


def _output(x: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor for one value per window."""
    images, channels, height, width = x.shape
    shape = (images, channels, -(-height // stride), -(-width // stride))
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)


def _scattered(dy: Tensor, taps: Tensor, kernel: int, stride: int, shape: torch.Size) -> Tensor:
    """The gradient of x, from differentiable operations."""
    down, across = (torch.arange(size, device=dy.device) * stride - kernel // 2 for size in dy.shape[2:])
    row = down[:, None] + taps.long() // kernel
    place = (row * shape[3] + across + taps.long() % kernel).flatten(2)
    return dy.new_zeros(shape).flatten(2).scatter_add(2, place, dy.flatten(2)).view(shape)


def _launch(
    function: Any, source: Tensor, target: Tensor, x: Tensor, y: Tensor, kernel: int, stride: int, *others: Tensor
) -> None:
    """Launch one program per tile of the target; `x` and `y` give the sizes before and after the pool."""
    images, channels, height, width = target.shape
    block_c, align = columns_of(channels)
    source, step = in_steps(source, align)
    pixels = images * height * width
    block_p = TILE_BYTES // target.element_size() // block_c
    grid = (-(-pixels // block_p), -(-channels // block_c))
    with on_device_of(source):
        launch(
            function, grid,
            source, target, *others,
            pixels, channels // align, step // align, x.shape[2], x.shape[3], y.shape[2], y.shape[3],
            kernel, stride, align, block_p, block_c, **OPTIONS,
        )  # fmt: skip


@triton.jit
def _inside(place, size, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """Number of pixels of a window that are inside the image, along one side."""
    begin = place * STRIDE - KERNEL // 2
    return tl.minimum(begin + KERNEL, size) - tl.maximum(begin, 0)


@triton.jit
def _row(start, mask, image, row, across, height, width, step, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """Sums over the part of each window that is in one row of x."""
    inside = (row >= 0) & (row < height)
    total = tl.zeros(mask.shape, dtype=tl.float32)
    for j in tl.static_range(KERNEL):
        place = across * STRIDE + (j - KERNEL // 2)
        valid = inside & (place >= 0) & (place < width)
        offset = ((image * height + row) * width + place) * step
        total += tl.load(start + offset[:, None], mask=mask & valid[:, None], other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["pixels", "columns", "steps", "height", "width", "height_out", "width_out"])
def _pool(
    x, y,
    pixels, columns, steps, height, width, height_out, width_out,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y: each pixel is the mean of its window in x."""
    channels = columns * ALIGN
    step = steps * ALIGN  # from one pixel of the source to the next
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (pixel < pixels)[:, None] & (column < channels)[None, :]
    across = pixel % width_out
    down = (pixel // width_out) % height_out
    image = pixel // (width_out * height_out)
    start = x + column[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    if KERNEL <= UNROLLED:
        for i in tl.static_range(KERNEL):
            row = down * STRIDE + (i - KERNEL // 2)
            total += _row(start, mask, image, row, across, height, width, step, KERNEL, STRIDE)
    else:
        for i in range(KERNEL):
            row = down * STRIDE + (i - KERNEL // 2)
            total += _row(start, mask, image, row, across, height, width, step, KERNEL, STRIDE)
    count = _inside(down, height, KERNEL, STRIDE) * _inside(across, width, KERNEL, STRIDE)
    mean = total * (1.0 / tl.maximum(count, 1).to(tl.float32))[:, None]
    tl.store(y + pixel[:, None] * channels + column[None, :], mean.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _row_back(
    start, mask, image, row, down, across,
    height, width, height_out, width_out, step,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of each pixel from the windows of one row of the output."""
    inside = (row >= 0) & (row < height_out) & (row * STRIDE + KERNEL // 2 >= down)
    share = 1.0 / tl.maximum(_inside(row, height, KERNEL, STRIDE), 1).to(tl.float32)
    total = tl.zeros(mask.shape, dtype=tl.float32)
    for j in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
        place = (across + KERNEL // 2) // STRIDE - j  # of windows that start at or before this pixel
        valid = inside & (place >= 0) & (place < width_out) & (place * STRIDE + KERNEL // 2 >= across)
        part = share / tl.maximum(_inside(place, width, KERNEL, STRIDE), 1).to(tl.float32)
        offset = ((image * height_out + row) * width_out + place) * step
        value = tl.load(start + offset[:, None], mask=mask & valid[:, None], other=0.0)
        total += value.to(tl.float32) * part[:, None]
    return total


@triton.jit(do_not_specialize=["pixels", "columns", "steps", "height", "width", "height_out", "width_out"])
def _pool_back(
    dy, dx,
    pixels, columns, steps, height, width, height_out, width_out,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx: each pixel sums the gradients of the windows it is in, divided by their sizes."""
    channels = columns * ALIGN
    step = steps * ALIGN  # from one pixel of the source to the next
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (pixel < pixels)[:, None] & (column < channels)[None, :]
    across = pixel % width
    down = (pixel // width) % height
    image = pixel // (width * height)
    start = dy + column[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    if KERNEL <= UNROLLED:
        for i in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
            row = (down + KERNEL // 2) // STRIDE - i  # of windows that start at or above this pixel
            total += _row_back(
                start, mask, image, row, down, across, height, width, height_out, width_out, step, KERNEL, STRIDE
            )
    else:
        for i in range((KERNEL + STRIDE - 1) // STRIDE):
            row = (down + KERNEL // 2) // STRIDE - i
            total += _row_back(
                start, mask, image, row, down, across, height, width, height_out, width_out, step, KERNEL, STRIDE
            )
    tl.store(dx + pixel[:, None] * channels + column[None, :], total.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def _max_row(
    best, found, start, mask, image,
    i, down, across, height, width, step,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Update the maximum and its index in the window with one row of each window."""
    row = down * STRIDE + (i - KERNEL // 2)
    inside = (row >= 0) & (row < height)
    for j in tl.static_range(KERNEL):
        place = across * STRIDE + (j - KERNEL // 2)
        valid = inside & (place >= 0) & (place < width)
        offset = ((image * height + row) * width + place) * step
        value = tl.load(start + offset[:, None], mask=mask & valid[:, None], other=float("-inf")).to(tl.float32)
        better = (value > best) | (value != value)  # propagate NaN
        best = tl.where(better, value, best)
        found = tl.where(better, i * KERNEL + j, found)
    return best, found


@triton.jit(do_not_specialize=["pixels", "columns", "steps", "height", "width", "height_out", "width_out"])
def _max_pool(
    x, y, taps,
    pixels, columns, steps, height, width, height_out, width_out,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y: each pixel is the maximum of its window in x; taps: the index of the maximum in the window."""
    channels = columns * ALIGN
    step = steps * ALIGN  # from one pixel of the source to the next
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (pixel < pixels)[:, None] & (column < channels)[None, :]
    across = pixel % width_out
    down = (pixel // width_out) % height_out
    image = pixel // (width_out * height_out)
    start = x + column[None, :]
    best = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    found = tl.full((BLOCK_P, BLOCK_C), KERNEL * KERNEL // 2, dtype=tl.int32)  # the center is always inside
    if KERNEL <= UNROLLED:
        for i in tl.static_range(KERNEL):
            best, found = _max_row(
                best, found, start, mask, image, i, down, across, height, width, step, KERNEL, STRIDE
            )
    else:
        for i in range(KERNEL):
            best, found = _max_row(
                best, found, start, mask, image, i, down, across, height, width, step, KERNEL, STRIDE
            )
    place = pixel[:, None] * channels + column[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), mask=mask)
    tl.store(taps + place, found.to(tl.uint8), mask=mask)


@triton.jit
def _max_row_back(
    total, start, start_taps, mask, image,
    i, down, across, height_out, width_out, channels, step,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Add the gradients of those windows in one row of the output whose maximum is this pixel."""
    row = (down + KERNEL // 2) // STRIDE - i  # of windows that start at or above this pixel
    inside = (row >= 0) & (row < height_out) & (row * STRIDE + KERNEL // 2 >= down)
    first = (down - row * STRIDE + KERNEL // 2) * KERNEL
    for j in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
        place = (across + KERNEL // 2) // STRIDE - j
        valid = inside & (place >= 0) & (place < width_out) & (place * STRIDE + KERNEL // 2 >= across)
        tap = first + across - place * STRIDE + KERNEL // 2
        window = ((image * height_out + row) * width_out + place)[:, None]
        hit = mask & valid[:, None]
        found = tl.load(start_taps + window * channels, mask=hit, other=255).to(tl.int32)
        value = tl.load(start + window * step, mask=hit, other=0.0).to(tl.float32)
        total += tl.where(found == tap[:, None], value, 0.0)
    return total


@triton.jit(do_not_specialize=["pixels", "columns", "steps", "height", "width", "height_out", "width_out"])
def _max_pool_back(
    dy, dx, taps,
    pixels, columns, steps, height, width, height_out, width_out,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx: each pixel sums the gradients of the windows whose maximum it is."""
    channels = columns * ALIGN
    step = steps * ALIGN  # from one pixel of the source to the next
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (pixel < pixels)[:, None] & (column < channels)[None, :]
    across = pixel % width
    down = (pixel // width) % height
    image = pixel // (width * height)
    start = dy + column[None, :]
    start_taps = taps + column[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    if KERNEL <= UNROLLED:
        for i in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
            total = _max_row_back(
                total, start, start_taps, mask, image,
                i, down, across, height_out, width_out, channels, step,
                KERNEL, STRIDE,
            )  # fmt: skip
    else:
        for i in range((KERNEL + STRIDE - 1) // STRIDE):
            total = _max_row_back(
                total, start, start_taps, mask, image,
                i, down, across, height_out, width_out, channels, step,
                KERNEL, STRIDE,
            )  # fmt: skip
    tl.store(dx + pixel[:, None] * channels + column[None, :], total.to(dx.dtype.element_ty), mask=mask)
