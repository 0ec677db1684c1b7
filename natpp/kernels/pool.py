"""Average pools of a channels-last tensor; both directions gather, so nothing is added to from two sides."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from natpp.kernels import composed
from natpp.kernels.tiles import columns_of, in_rows, on_device_of

TILE_BYTES = 4096  # that a program makes
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
UNROLLED = tl.constexpr(3)  # larger windows are gone over row by row: there are not enough registers for all at once


class Pooled(torch.autograd.Function):
    """Means over windows of kernel x kernel pixels; what is outside is left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int) -> Tensor:
        images, channels, height, width = x.shape
        y = torch.empty(
            (images, channels, -(-height // stride), -(-width // stride)),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        _launch(_pool, x, y, x, y, kernel, stride)
        ctx.kernel, ctx.stride, ctx.shape = kernel, stride, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (dy,) = gradients
        if torch.is_grad_enabled():  # somebody wants the gradient of the gradient
            x = torch.zeros(ctx.shape, dtype=dy.dtype, device=dy.device, requires_grad=True)
            y = composed.average_pool(x, ctx.kernel, ctx.stride)
            return torch.autograd.grad(y, x, dy, create_graph=True)[0], None, None
        dy = in_rows(dy)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        _launch(_pool_back, dy, dx, dx, dy, ctx.kernel, ctx.stride)
        return dx, None, None


def _launch(function: Any, source: Tensor, target: Tensor, x: Tensor, y: Tensor, kernel: int, stride: int) -> None:
    """A program for every tile of the target; `x` and `y` give the sizes on both sides of the pool."""
    images, channels, height, width = target.shape
    block_c, align = columns_of(channels)
    pixels = images * height * width
    block_p = TILE_BYTES // target.element_size() // block_c
    grid = (-(-pixels // block_p), -(-channels // block_c))
    with on_device_of(source):
        function[grid](
            source,
            target,
            pixels,
            channels // align,
            x.shape[2],
            x.shape[3],
            y.shape[2],
            y.shape[3],
            kernel,
            stride,
            align,
            block_p,
            block_c,
            **OPTIONS,
        )


@triton.jit
def _inside(place, size, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """How many pixels of a window at this place of the output are inside, along one side."""
    begin = place * STRIDE - KERNEL // 2
    return tl.minimum(begin + KERNEL, size) - tl.maximum(begin, 0)


@triton.jit
def _row(start, mask, image, row, across, height, width, channels, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """Sums over the part of every window that is in one row of x."""
    inside = (row >= 0) & (row < height)
    total = tl.zeros(mask.shape, dtype=tl.float32)
    for j in tl.static_range(KERNEL):
        place = across * STRIDE + (j - KERNEL // 2)
        valid = inside & (place >= 0) & (place < width)
        offset = ((image * height + row) * width + place) * channels
        total += tl.load(start + offset[:, None], mask=mask & valid[:, None], other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["pixels", "columns", "height", "width", "height_out", "width_out"])
def _pool(
    x,
    y,
    pixels,
    columns,
    height,
    width,
    height_out,
    width_out,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """y: every pixel the mean of its window in x."""
    channels = columns * ALIGN
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
            total += _row(start, mask, image, row, across, height, width, channels, KERNEL, STRIDE)
    else:
        for i in range(KERNEL):
            row = down * STRIDE + (i - KERNEL // 2)
            total += _row(start, mask, image, row, across, height, width, channels, KERNEL, STRIDE)
    count = _inside(down, height, KERNEL, STRIDE) * _inside(across, width, KERNEL, STRIDE)
    mean = total * (1.0 / tl.maximum(count, 1).to(tl.float32))[:, None]
    tl.store(y + pixel[:, None] * channels + column[None, :], mean.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _row_back(
    start,
    mask,
    image,
    row,
    down,
    across,
    height,
    width,
    height_out,
    width_out,
    channels,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """What the windows of one row of the output pass on to every pixel that is in them."""
    inside = (row >= 0) & (row < height_out) & (row * STRIDE + KERNEL // 2 >= down)
    share = 1.0 / tl.maximum(_inside(row, height, KERNEL, STRIDE), 1).to(tl.float32)
    total = tl.zeros(mask.shape, dtype=tl.float32)
    for j in tl.static_range((KERNEL + STRIDE - 1) // STRIDE):
        place = (across + KERNEL // 2) // STRIDE - j  # of windows that begin at or before this pixel
        valid = inside & (place >= 0) & (place < width_out) & (place * STRIDE + KERNEL // 2 >= across)
        part = share / tl.maximum(_inside(place, width, KERNEL, STRIDE), 1).to(tl.float32)
        offset = ((image * height_out + row) * width_out + place) * channels
        value = tl.load(start + offset[:, None], mask=mask & valid[:, None], other=0.0)
        total += value.to(tl.float32) * part[:, None]
    return total


@triton.jit(do_not_specialize=["pixels", "columns", "height", "width", "height_out", "width_out"])
def _pool_back(
    dy,
    dx,
    pixels,
    columns,
    height,
    width,
    height_out,
    width_out,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dx: every pixel the sum of what the windows that it is in pass on, each its share."""
    channels = columns * ALIGN
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
            row = (down + KERNEL // 2) // STRIDE - i  # of windows that begin at or above this pixel
            total += _row_back(
                start, mask, image, row, down, across, height, width, height_out, width_out, channels, KERNEL, STRIDE
            )
    else:
        for i in range((KERNEL + STRIDE - 1) // STRIDE):
            row = (down + KERNEL // 2) // STRIDE - i
            total += _row_back(
                start, mask, image, row, down, across, height, width, height_out, width_out, channels, KERNEL, STRIDE
            )
    tl.store(dx + pixel[:, None] * channels + column[None, :], total.to(dx.dtype.element_ty), mask=mask)
