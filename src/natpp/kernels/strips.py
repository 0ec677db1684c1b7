"""What the kernels of merged convolutions share: where strips lie, and reading, writing and multiplying them."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def quotient(number, divisor):
    """Of whole numbers, of which the first is small, below 2^20: in float32, half a step from the next it is exact."""
    return ((number.to(tl.float32) + 0.5) * (1.0 / divisor.to(tl.float32))).to(tl.int32)


@triton.jit
def places_at(begin, height, width, BLOCK: tl.constexpr):
    """Image, row and place in the row of so many pixels (or strips) from `begin` on."""
    first = begin // width
    first_image = first // height
    place = begin - first * width + tl.arange(0, BLOCK)
    rows = quotient(place, width)
    across = place - rows * width
    down = first - first_image * height + rows
    images = quotient(down, height)
    return first_image + images, down - images * height, across


@triton.jit
def pixels_at(begin, rows, columns, lead, BLOCK: tl.constexpr):
    """Image, row and column of pixels of a buffer; before its first image they are in image -1."""
    image, down, across = places_at(begin - lead + rows * columns, rows, columns, BLOCK)
    return image - 1, down, across


@triton.jit
def share_of(block, group, size, lead, numbered, share):
    """The first pixel of a buffer that a program fills, and the one after its last: `size` of them are a group's.

    The first group also has what leads, the last one what is behind.
    """
    first = tl.where(group == 0, 0, lead + group * size)
    last = tl.where(group == tl.num_programs(2) - 1, numbered, lead + (group + 1) * size)
    first += block * share
    return first, tl.minimum(first + share, last)


@triton.jit
def dot(first, second, added):
    """A matrix product, added to something."""
    if INTERPRETED:  # where bf16 is held as integers, which would be multiplied
        first = first.to(tl.float32)
        second = second.to(tl.float32)
    return tl.dot(first, second, added, input_precision="ieee")


@triton.jit
def rectified(value):
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def within(place, size):
    """Whether a place is from 0 up and below the size."""
    return place.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def pixels_of_strips(begin, last, right, width, strip, BLOCK_M: tl.constexpr):
    """How many pixels strips have: fewer at the end of a row, none from `last` on."""
    return tl.where(begin + tl.arange(0, BLOCK_M) < last, tl.minimum(width - right, strip), 0)


@triton.jit
def read(pointer, mask, EVEN: tl.constexpr):
    """Numbers in float32, zeros where the mask has none; EVEN: it has all, and is not asked."""
    if EVEN:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=mask, other=0.0)
    return value.to(tl.float32)


@triton.jit
def write(pointer, value, mask, EVEN: tl.constexpr):
    """Numbers in the type of the pointer, where the mask has some; EVEN: it has all, and is not asked."""
    value = value.to(pointer.dtype.element_ty)
    if EVEN:
        tl.store(pointer, value)
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def folded_early(value, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """Of something for every (pixel of the strip, channel) the sums over the pixels, where channels have a period.

    That is cheap, and so few numbers are held while tiles are multiplied.
    """
    if PERIOD > 0:
        value = tl.sum(tl.reshape(value, (BLOCK_N // PERIOD, PERIOD)), axis=0)
    return value


@triton.jit
def folded_late(value, n, channels, PERIOD: tl.constexpr):
    """The same where they have none: the sums are in the first places."""
    if PERIOD == 0:
        channel = n - quotient(n, channels) * channels
        value = tl.sum(tl.where(channel[:, None] == n[None, :], value[:, None], 0.0), axis=0)
    return value


@triton.jit
def first_columns(block, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """The columns that folded sums are of."""
    if PERIOD > 0:
        column = tl.arange(0, PERIOD)
    else:
        column = tl.arange(0, BLOCK_N)
    return block * BLOCK_N + column


@triton.jit
def place_of_weight(out, channel, tap, step_in, step_tap, channels_in, kernel):
    """Where a weight of a 1x1 conv is, or of one with windows, which has steps between taps."""
    whole = channels_in * tl.where(step_tap > 0, kernel * kernel, 1)
    return out * whole + channel * step_in + tap * step_tap


@triton.jit
def offset_of(k, run, further, ALIGN: tl.constexpr):
    """Where numbers of a window are: runs of them that are `further` apart, both whole times ALIGN."""
    offset = k + quotient(k, run) * (further - run)
    return tl.max_contiguous(tl.multiple_of(offset, ALIGN), ALIGN)


@triton.jit
def multiplied(
    buffer,
    weights,
    place,
    n,
    columns,
    channels,
    kernel,
    stride,
    dilation,
    strip,
    beside,
    RECTIFIED: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The windows of some strips, which start at these pixels, times some columns of the merged weights."""
    run = ((strip - 1) * stride + (kernel - 1) * dilation + 1) * channels
    depth = kernel * run
    start = buffer + (place * channels)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, depth, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        offset = offset_of(k, run, dilation * columns * channels, ALIGN)
        # Most of it was read by the strips beside and above: it may be in the first cache.
        window = tl.load(start + offset[None, :], mask=(k < depth)[None, :], other=0.0, cache_modifier=".ca")
        some = tl.load(weights + k[:, None] * (beside * BLOCK_N) + n[None, :])
        if RECTIFIED:
            window = rectified(window.to(tl.float32)).to(some.dtype)
        total = dot(window, some, total)
    return total
