"""Device functions of the merged-convolution kernels: positions of strips; reading, writing and multiplying them."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def quotient(number, divisor):
    """Integer quotient, exact for numbers below 2^20: in float32, adding a half keeps it away from rounding errors."""
    return ((number.to(tl.float32) + 0.5) * (1.0 / divisor.to(tl.float32))).to(tl.int32)


@triton.jit
def places_at(begin, height, width, BLOCK: tl.constexpr):
    """Image, row and column of BLOCK pixels (or strips), starting at `begin`."""
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
    """Image, row and column of BLOCK pixels of a buffer; those before the first image are in image -1."""
    image, down, across = places_at(begin - lead + rows * columns, rows, columns, BLOCK)
    return image - 1, down, across


@triton.jit
def share_of(block, group, size, lead, numbered, share):
    """First and end pixel of the part of a buffer that a program fills, with the zeros before and after all groups."""
    first = tl.where(group == 0, 0, lead + group * size)
    last = tl.where(group == tl.num_programs(2) - 1, numbered, lead + (group + 1) * size)
    first += block * share
    return first, tl.minimum(first + share, last)


@triton.jit
def dot(first, second, added):
    """A matrix product plus `added`."""
    if INTERPRETED:  # the interpreter stores bf16 as integers, which it would multiply
        first = first.to(tl.float32)
        second = second.to(tl.float32)
    return tl.dot(first, second, added, input_precision="ieee")


@triton.jit
def rectified(value):
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def within(place, size):
    """Whether 0 <= place < size."""
    return place.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def pixels_of_strips(begin, last, right, width, strip, BLOCK_M: tl.constexpr):
    """Number of pixels in each strip: fewer at the end of a row, none from `last` on."""
    return tl.where(begin + tl.arange(0, BLOCK_M) < last, tl.minimum(width - right, strip), 0)


@triton.jit
def read(pointer, mask, EVEN: tl.constexpr):
    """Load as float32, with zeros where masked; with EVEN, the mask is known to be all true and is ignored."""
    if EVEN:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=mask, other=0.0)
    return value.to(tl.float32)


@triton.jit
def write(pointer, value, mask, EVEN: tl.constexpr):
    """Store in the type of the pointer where not masked; with EVEN, the mask is known to be all true and is ignored."""
    value = value.to(pointer.dtype.element_ty)
    if EVEN:
        tl.store(pointer, value)
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def folded_early(value, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """Sum over the pixels of a strip for columns (pixel, channel), if channels repeat with a PERIOD."""
    if PERIOD > 0:
        value = tl.sum(tl.reshape(value, (BLOCK_N // PERIOD, PERIOD)), axis=0)
    return value


@triton.jit
def folded_late(value, n, channels, PERIOD: tl.constexpr):
    """The same sum if channels have no period; the results are in the first columns."""
    if PERIOD == 0:
        channel = n - quotient(n, channels) * channels
        value = tl.sum(tl.where(channel[:, None] == n[None, :], value[:, None], 0.0), axis=0)
    return value


@triton.jit
def first_columns(block, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """The columns that the folded sums belong to."""
    if PERIOD > 0:
        column = tl.arange(0, PERIOD)
    else:
        column = tl.arange(0, BLOCK_N)
    return block * BLOCK_N + column


@triton.jit
def place_of_weight(out, channel, tap, step_in, step_tap, channels_in, kernel):
    """Offset of a weight of a 1x1 conv, or of a k x k conv, which has steps between taps."""
    whole = channels_in * tl.where(step_tap > 0, kernel * kernel, 1)
    return out * whole + channel * step_in + tap * step_tap


@triton.jit
def offset_of(k, run, further, ALIGN: tl.constexpr):
    """Offsets of a window's numbers: runs that are `further` apart; both are multiples of ALIGN."""
    offset = k + quotient(k, run) * (further - run)
    return tl.max_contiguous(tl.multiple_of(offset, ALIGN), ALIGN)


@triton.jit
def multiplied(
    buffer, weights, place, n,
    columns, channels, kernel, stride, dilation, strip, beside,
    RECTIFIED: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The windows of some strips, starting at the pixels `place`, times columns `n` of the merged weights."""
    run = ((strip - 1) * stride + (kernel - 1) * dilation + 1) * channels
    depth = kernel * run
    start = buffer + (place * channels)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, depth, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        offset = offset_of(k, run, dilation * columns * channels, ALIGN)
        # Strips next to and above this one read most of it, so it may be in the L1 cache.
        window = tl.load(start + offset[None, :], mask=(k < depth)[None, :], other=0.0, cache_modifier=".ca")
        some = tl.load(weights + k[:, None] * (beside * BLOCK_N) + n[None, :])
        if RECTIFIED:
            window = rectified(window.to(tl.float32)).to(some.dtype)
        total = dot(window, some, total)
    return total
