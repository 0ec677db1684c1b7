"""Kernels of separable convs: depthwise and 1x1 weights merged into those of one dense conv, a matrix product.

On tensor cores it is nearly free that the product has many times the multiplications; what costs is to bring windows
there. So what a conv reads is written before into a buffer, rectified, in the type of the products, with zeros behind
every row and every image as many as a window reaches beyond an edge (so they are also before the next one), and is then
only copied. A row of the product's first matrix is the window of a strip: a few pixels of the output beside each other.
What it covers of a row of the image is a run of numbers in memory, and neighbours share most of what they read. The
second matrix has the weights at their places for every pixel of the strip, zeros elsewhere: it is (window row, column,
channel in) x (pixel of the strip, channel out).

The gradient of the input is such a conv again, of the gradient of the output, with transposed and flipped weights. That
of the merged weights is a product over all strips of two buffers. Both are in one launch. What is summed up is in
float32.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from natpp.kernels.norm import ends_last, joined_statistics, joined_sums, keep_two, kept_two, move_running

STRIPS = 128  # that a program multiplies at once
DEPTH = 64  # of the sum of products, what is copied at once
BREADTH = 64  # columns of a product, of one or more programs beside each other
MERGED = 16  # rows of merged weights that a program makes
TALL = 128, 64  # of the gradient of merged weights: its rows in a program, and strips at once
WIDEST = 8  # pixels of a strip
PRODUCTS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}  # of kernels that multiply
if torch.version.hip is None:
    PRODUCTS["maxnreg"] = 168  # so that a processor has three programs at once
COPIES = {"num_warps": 4, "enable_fp_fusion": True}  # of those that copy
SUMS = {"num_warps": 8, "enable_fp_fusion": True}  # of the last one
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@dataclass(frozen=True)
class Conv:
    """The sizes of a dense conv, of its strips, and of its merged weights."""

    images: int
    height: int  # of what it gives
    width: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    dilation: int

    @functools.cached_property
    def strip(self) -> int:
        """Pixels of a strip: the least is read of each row, and a product has no more columns than it takes at once."""
        most = min(max(BREADTH // self.channels_out, 1), WIDEST)
        return min(range(1, most + 1), key=lambda strip: (-(-self.width // strip) * self._span(strip), -strip))

    def _span(self, strip: int) -> int:
        return (strip - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @functools.cached_property
    def span(self) -> int:
        """Columns of the buffer that a strip covers."""
        return self._span(self.strip)

    @functools.cached_property
    def across(self) -> int:
        """Strips of a row; the last may go beyond its end."""
        return -(-self.width // self.strip)

    @functools.cached_property
    def depth(self) -> int:
        """Rows of the merged weights, zeros below them included."""
        whole = max(DEPTH, TALL[0])
        return -(-self.kernel * self.span * self.channels_in // whole) * whole

    @functools.cached_property
    def tall(self) -> int:
        """Blocks of rows of the gradient of the merged weights."""
        return self.depth // TALL[0]

    @functools.cached_property
    def beside(self) -> int:
        """Blocks of columns of the merged weights, zeros beside them included."""
        return -(-self.strip * self.channels_out // BREADTH)

    def even(self, groups: int) -> bool:
        """Whether strips end with their rows, fill all columns, and those of a group fill all tiles."""
        strips = self.images // groups * self.height * self.across
        full = self.strip * self.channels_out == self.beside * BREADTH
        return full and self.width % self.strip == 0 and strips % STRIPS == 0

    @functools.cached_property
    def period(self) -> int:
        """After how many columns of a product a channel comes again, if blocks of columns are whole periods, or 0."""
        period = BREADTH if self.strip == 1 else self.channels_out
        return period if BREADTH % period == 0 else 0


@triton.jit
def _quotient(number, divisor):
    """Of whole numbers, of which the first is small, below 2^20: in float32, half a step from the next it is exact."""
    return ((number.to(tl.float32) + 0.5) * (1.0 / divisor.to(tl.float32))).to(tl.int32)


@triton.jit
def _places(begin, height, width, BLOCK: tl.constexpr):
    """Image, row and place in the row of so many pixels (or strips) from `begin` on."""
    first = begin // width
    first_image = first // height
    place = begin - first * width + tl.arange(0, BLOCK)
    rows = _quotient(place, width)
    across = place - rows * width
    down = first - first_image * height + rows
    images = _quotient(down, height)
    return first_image + images, down - images * height, across


@triton.jit
def _pixels(begin, rows, columns, lead, BLOCK: tl.constexpr):
    """Image, row and column of pixels of a buffer; before its first image they are in image -1."""
    image, down, across = _places(begin - lead + rows * columns, rows, columns, BLOCK)
    return image - 1, down, across


@triton.jit
def _share(block, group, size, lead, numbered, share):
    """The first pixel of a buffer that a program fills, and the one after its last: `size` of them are a group's.

    The first group also has what leads, the last one what is behind.
    """
    first = tl.where(group == 0, 0, lead + group * size)
    last = tl.where(group == tl.num_programs(2) - 1, numbered, lead + (group + 1) * size)
    first += block * share
    return first, tl.minimum(first + share, last)


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
def _within(place, size):
    """Whether a place is from 0 up and below the size."""
    return place.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def _pixels_of_strips(begin, last, right, width, strip, BLOCK_M: tl.constexpr):
    """How many pixels strips have: fewer at the end of a row, none from `last` on."""
    return tl.where(begin + tl.arange(0, BLOCK_M) < last, tl.minimum(width - right, strip), 0)


@triton.jit
def _read(pointer, mask, EVEN: tl.constexpr):
    """Numbers in float32, zeros where the mask has none; EVEN: it has all, and is not asked."""
    if EVEN:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=mask, other=0.0)
    return value.to(tl.float32)


@triton.jit
def _write(pointer, value, mask, EVEN: tl.constexpr):
    """Numbers in the type of the pointer, where the mask has some; EVEN: it has all, and is not asked."""
    value = value.to(pointer.dtype.element_ty)
    if EVEN:
        tl.store(pointer, value)
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def _folded_early(value, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """Of something for every (pixel of the strip, channel) the sums over the pixels, where channels have a period.

    That is cheap, and so few numbers are held while tiles are multiplied.
    """
    if PERIOD > 0:
        value = tl.sum(tl.reshape(value, (BLOCK_N // PERIOD, PERIOD)), axis=0)
    return value


@triton.jit
def _folded_late(value, n, channels, PERIOD: tl.constexpr):
    """The same where they have none: the sums are in the first places."""
    if PERIOD == 0:
        channel = n - _quotient(n, channels) * channels
        value = tl.sum(tl.where(channel[:, None] == n[None, :], value[:, None], 0.0), axis=0)
    return value


@triton.jit
def _first_columns(block, BLOCK_N: tl.constexpr, PERIOD: tl.constexpr):
    """The columns that folded sums are of."""
    if PERIOD > 0:
        column = tl.arange(0, PERIOD)
    else:
        column = tl.arange(0, BLOCK_N)
    return block * BLOCK_N + column


@triton.jit
def _place_of_weight(out, channel, tap, step_in, step_tap, channels_in, kernel):
    """Where a weight of a 1x1 conv is, or of one with windows, which has steps between taps."""
    whole = channels_in * tl.where(step_tap > 0, kernel * kernel, 1)
    return out * whole + channel * step_in + tap * step_tap


@triton.jit
def _merge(
    block,
    depthwise,
    pointwise,
    shifted,
    target,
    separable,
    step_in,
    step_tap,
    kernel,
    stride,
    dilation,
    channels_in,
    channels_out,
    first_out,
    strip,
    beside,
    BACK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A block of the merged weights, of the conv itself or (BACK) of that for the gradient of its input.

    Numbers of `pointwise` for the next channel in and the next tap are `step_in` and `step_tap` further on.
    """
    given = channels_in
    made = channels_out
    if BACK:
        given = channels_out
        made = channels_in
    row = block // beside * BLOCK_K + tl.arange(0, BLOCK_K)
    n = block % beside * BLOCK_N + tl.arange(0, BLOCK_N)
    run = ((strip - 1) * stride + (kernel - 1) * dilation + 1) * given
    i = _quotient(row, run)
    column = _quotient(row - i * run, given)
    pixel = _quotient(n, made)
    distance = column[:, None] - (pixel * stride)[None, :]
    j = distance >> (dilation - 1)  # which is 0 or 1
    inside = (i < kernel)[:, None] & (n < strip * made)[None, :]
    inside = inside & (distance >= 0) & ((distance & (dilation - 1)) == 0) & (j < kernel)
    tap = i[:, None] * kernel + j
    last = kernel * kernel - 1
    if BACK:
        tap = last - tap
        channel = (n - pixel * made)[None, :]
        out = (row - i * run - column * given)[:, None]
    else:
        channel = (row - i * run - column * given)[:, None]
        out = (n - pixel * made)[None, :]
    whole = first_out == channels_out  # one 1x1 conv, for all taps
    first = inside & (out < first_out) & (tl.where(whole, 0, tap) == 0)
    second = inside & (out >= first_out) & (tap == last)
    place = _place_of_weight(out, channel, tap, step_in, step_tap, channels_in, kernel)
    value = tl.load(pointwise + place, mask=first, other=0.0).to(tl.float32)
    value += tl.load(shifted + (out - first_out) * channels_in + channel, mask=second, other=0.0).to(tl.float32)
    taps = depthwise + channel * (kernel * kernel) + tap
    value *= tl.load(taps, mask=inside & (tap < kernel * kernel * separable), other=1.0).to(tl.float32)
    tl.store(target + row[:, None] * (beside * BLOCK_N) + n[None, :], value.to(target.dtype.element_ty))


@triton.jit(
    do_not_specialize=[
        "weight", "bias", "statistics", "counters", "depthwise", "pointwise", "shifted",
        "images", "height", "width", "rows", "columns", "lead", "numbered", "wide", "share", "programs", "groups",
        "separable", "step_in", "step_tap", "kernel", "stride", "dilation", "channels_out", "first_out",
        "strip", "beside", "merging", "strip_back", "beside_back",
    ]
)  # fmt: skip
def prepare(
    x,
    buffer,
    statistics,
    counters,
    weight,
    bias,
    depthwise,
    pointwise,
    shifted,
    merged,
    merged_back,
    images,
    height,
    width,
    rows,
    columns,
    lead,
    numbered,
    wide,
    share,
    programs,
    groups,
    separable,
    step_in,
    step_tap,
    kernel,
    stride,
    dilation,
    channels_out,
    first_out,
    strip,
    beside,
    merging,
    strip_back,
    beside_back,
    eps,
    NORMED: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """What a half needs: x with zeros around it, normalized if it has a norm, and rectified; and the merged weights.

    The first programs copy, the others merge; one of them sets the counters (2, groups) of what follows to zero.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    channels = wide * ALIGN
    if block < programs:
        column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = column < channels
        scale = tl.zeros((BLOCK_C,), dtype=tl.float32)
        shift = tl.zeros((BLOCK_C,), dtype=tl.float32)
        if NORMED:
            mean, var = kept_two(statistics, channels, group, groups, column)
            scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) * tl.rsqrt(var + eps)
            shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32) - mean * scale
        first, last = _share(block, group, images * rows * columns, lead, numbered, share)
        for begin in range(first, last, BLOCK_R):
            pixel = begin + tl.arange(0, BLOCK_R)
            image, down, across = _pixels(begin, rows, columns, lead, BLOCK_R)
            there = _within(image, images * groups) & (down < height) & (across < width)
            place = ((image * height + down) * width + across) * channels
            mask = there[:, None] & inside[None, :]
            value = tl.load(x + place[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
            if NORMED:
                value = tl.where(there[:, None], value * scale[None, :] + shift[None, :], 0.0)
            tl.store(
                buffer + (pixel * channels)[:, None] + column[None, :],
                _rectified(value).to(buffer.dtype.element_ty),
                mask=(pixel < last)[:, None] & inside[None, :],
            )
    elif (tl.program_id(1) == 0) & (group == 0):
        if block == programs:
            for begin in range(0, 2 * groups, BLOCK_N):
                counter = begin + tl.arange(0, BLOCK_N)
                tl.store(counters + counter, tl.zeros((BLOCK_N,), dtype=tl.int32), mask=counter < 2 * groups)
        if block < programs + merging:
            _merge(
                block - programs, depthwise, pointwise, shifted, merged, separable, step_in, step_tap, kernel, stride,
                dilation, channels, channels_out, first_out, strip, beside, False, BLOCK_K, BLOCK_N,
            )  # fmt: skip
        else:
            _merge(
                block - programs - merging, depthwise, pointwise, shifted, merged_back, separable, step_in, step_tap,
                kernel, 1, dilation, channels, channels_out, first_out, strip_back, beside_back, True, BLOCK_K, BLOCK_N,
            )  # fmt: skip


@triton.jit
def _offset(k, run, further, ALIGN: tl.constexpr):
    """Where numbers of a window are: runs of them that are `further` apart, both whole times ALIGN."""
    offset = k + _quotient(k, run) * (further - run)
    return tl.max_contiguous(tl.multiple_of(offset, ALIGN), ALIGN)


@triton.jit
def _multiplied(
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
        offset = _offset(k, run, dilation * columns * channels, ALIGN)
        # Most of it was read by the strips beside and above: it may be in the first cache.
        window = tl.load(start + offset[None, :], mask=(k < depth)[None, :], other=0.0, cache_modifier=".ca")
        some = tl.load(weights + k[:, None] * (beside * BLOCK_N) + n[None, :])
        if RECTIFIED:
            window = _rectified(window.to(tl.float32)).to(some.dtype)
        total = _product(window, some, total)
    return total


@triton.jit(
    do_not_specialize=[
        "statistics", "counters", "running_mean", "running_var", "strips", "height", "width", "rows", "columns",
        "corner", "wide", "wide_out", "kernel", "stride", "dilation", "strip", "across", "beside", "share",
    ]
)  # fmt: skip
def forward(
    buffer,
    weights,
    y,
    partial,
    statistics,
    counters,
    running_mean,
    running_var,
    strips,
    height,
    width,
    rows,
    columns,
    corner,
    wide,
    wide_out,
    kernel,
    stride,
    dilation,
    strip,
    across,
    beside,
    share,
    momentum,
    RECTIFIED: tl.constexpr,
    RUNNING: tl.constexpr,
    EVEN: tl.constexpr,
    PERIOD: tl.constexpr,
    ALIGN: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """y, and its mean and variance (2, groups, channels), from what every block knows of them.

    The strips of a group are shared by the blocks; the first window starts at the buffer's pixel `corner`. Sums are of
    y before it is rounded, and of its squares: where the mean is a hundred deviations, the variance is right to a
    thousandth, and y in half precision has no more digits. RECTIFIED: the buffer is x itself, still to be rectified.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    channels_out = wide_out * ALIGN_OUT
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = block * share
    last = tl.minimum(first + share, strips)
    count = (last - first) * strip  # pixels
    column = _first_columns(tl.program_id(1), BLOCK_N, PERIOD)
    plain = tl.zeros_like(column).to(tl.float32)
    squares = tl.zeros_like(plain)
    for begin in range(first, last, BLOCK_M):
        image, down, right = _places(group * strips + begin, height, across, BLOCK_M)
        right = right * strip
        place = corner + (image * rows + down * stride) * columns + right * stride
        target = y + (((image * height + down) * width + right) * channels_out)[:, None] + n[None, :]
        pixels = _pixels_of_strips(begin, last, right, width, strip, BLOCK_M)
        mask = n[None, :] < (pixels * channels_out)[:, None]
        if not EVEN:
            place = tl.where(pixels > 0, place, 0)
        total = _multiplied(
            buffer, weights, place, n, columns, wide * ALIGN, kernel, stride, dilation, strip, beside, RECTIFIED, ALIGN,
            BLOCK_M, BLOCK_K, BLOCK_N,
        )  # fmt: skip
        _write(target, total, mask, EVEN)
        if not EVEN:
            total = tl.where(mask, total, 0.0)
            count += tl.sum(pixels, axis=0) - tl.minimum(last - begin, BLOCK_M) * strip
        plain += _folded_early(tl.sum(total, axis=0), BLOCK_N, PERIOD)
        squares += _folded_early(tl.sum(total * total, axis=0), BLOCK_N, PERIOD)
    plain = _folded_late(plain, n, channels_out, PERIOD)
    squares = _folded_late(squares, n, channels_out, PERIOD)
    inside = column < channels_out
    counted = count.to(tl.float32)
    mean = plain / counted
    squares = tl.maximum(squares - plain * mean, 0.0)
    groups = tl.num_programs(2)
    blocks = tl.num_programs(0)
    place = partial + (group * blocks + block) * channels_out + column
    plane = groups * blocks * channels_out
    tl.store(place, mean, mask=inside)
    tl.store(place + plane, squares, mask=inside)
    tl.store(place + 2 * plane, tl.zeros_like(mean) + counted, mask=inside)
    if ends_last(counters + group, blocks * tl.num_programs(1)):
        size = (strips // across).to(tl.float32) * width.to(tl.float32)
        for begin in range(0, channels_out, BLOCK_C):
            channel = begin + tl.arange(0, BLOCK_C)
            found = joined_statistics(partial, blocks, channels_out, group, groups, channel, BLOCK_C, BLOCK_P)
            keep_two(statistics, found[0], found[1], channels_out, group, groups, channel)
            if RUNNING:
                inner = channel < channels_out
                move_running(running_mean, running_var, found[0], found[1], size, momentum, channel, inner)


@triton.jit(
    do_not_specialize=[
        "sums", "statistics", "weight", "images", "height", "width", "rows", "columns", "lead", "numbered", "stride",
        "wide", "wide_dz", "share",
    ]
)  # fmt: skip
def through_norm(
    y,
    dz,
    buffer,
    sums,
    gradients,
    statistics,
    weight,
    images,
    height,
    width,
    rows,
    columns,
    lead,
    numbered,
    stride,
    wide,
    wide_dz,
    share,
    eps,
    ALIGN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of what a norm read, in a buffer at the places of the conv's input, with zeros between if stride 2.

    The first program keeps what its group adds to the gradients of the norm's weight and bias.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    groups = tl.num_programs(2)
    channels = wide * ALIGN
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    plain, weighted = kept_two(sums, channels, group, groups, column)
    center, var = kept_two(statistics, channels, group, groups, column)
    inverse = tl.rsqrt(var + eps)
    if block == 0:
        keep_two(gradients, weighted * inverse, plain, channels, group, groups, column)
    scale = inverse * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    part = scale / (images * height * width).to(tl.float32)
    slope = weighted * (inverse * inverse) * part
    shift = center * slope - plain * part
    odd = stride - 1  # which is 0 or 1
    first, last = _share(block, group, images * rows * columns, lead, numbered, share)
    for begin in range(first, last, BLOCK_R):
        pixel = begin + tl.arange(0, BLOCK_R)
        image, down, across = _pixels(begin, rows, columns, lead, BLOCK_R)
        there = _within(image, images * groups) & (((down | across) & odd) == 0)
        down = down >> odd
        across = across >> odd
        there = there & (down < height) & (across < width)
        place = (image * height + down) * width + across
        mask = there[:, None] & inside[None, :]
        raw = tl.load(y + (place * channels)[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
        some = tl.load(dz + (place * (wide_dz * ALIGN))[:, None] + column[None, :], mask=mask, other=0.0)
        value = some.to(tl.float32) * scale[None, :] + (shift[None, :] - raw * slope[None, :])
        value = tl.where(there[:, None], value, 0.0)
        tl.store(
            buffer + (pixel * channels)[:, None] + column[None, :],
            value.to(buffer.dtype.element_ty),
            mask=(pixel < last)[:, None] & inside[None, :],
        )


@triton.jit
def _of_weights(
    program,
    buffer,
    gradient,
    partial,
    pixels,
    columns,
    lead,
    corner,
    channels,
    channels_out,
    kernel,
    dilation,
    strip,
    tall,
    beside,
    share,
    RECTIFIED: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A block of the gradient of the merged weights, over a share of the strips: partial (shares, depth, breadth).

    Strips are here of all pixels of the buffers, in which both tensors are at the same places: where nothing is, the
    gradient is zero.
    """
    blocks = tall * beside
    part = program // blocks
    program = program % blocks
    k = program // beside * BLOCK_K + tl.arange(0, BLOCK_K)
    n = program % beside * BLOCK_N + tl.arange(0, BLOCK_N)
    run = (strip + (kernel - 1) * dilation) * channels
    offset = _offset(k, run, dilation * columns * channels, ALIGN)
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    first = part * share
    last = tl.minimum(first + share, (pixels + strip - 1) // strip)
    for begin in range(first, last, BLOCK_S):
        one = begin + tl.arange(0, BLOCK_S)
        place = tl.where(one < last, one, first) * strip
        window = tl.load(
            buffer + ((corner + place) * channels)[:, None] + offset[None, :],
            mask=(k < kernel * run)[None, :],
            other=0.0,
            cache_modifier=".ca",
        )
        some = tl.load(
            gradient + ((lead + place) * channels_out)[:, None] + n[None, :],
            mask=(one < last)[:, None] & (n < strip * channels_out)[None, :],
            other=0.0,
        )
        if RECTIFIED:
            window = _rectified(window.to(tl.float32)).to(some.dtype)
        total = _product(tl.trans(window), some, total)
    target = partial + part * (tall * BLOCK_K * beside * BLOCK_N)
    tl.store(target + k[:, None] * (beside * BLOCK_N) + n[None, :], total)


@triton.jit
def _of_input(
    program,
    programs,
    gradient,
    weights,
    dx,
    partial,
    sums,
    counters,
    buffer,
    before,
    mean,
    groups,
    strips,
    height,
    width,
    rows,
    columns,
    lead,
    corner,
    channels,
    channels_in,
    kernel,
    dilation,
    strip,
    across,
    beside,
    share,
    NORMED: tl.constexpr,
    EVEN: tl.constexpr,
    PERIOD: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """dx through conv and ReLU for a share of the strips; the sums over it that the norm before x needs, if any."""
    part = program % programs
    group = program // (programs * beside)
    column_block = program // programs % beside
    n = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    first = part * share
    last = tl.minimum(first + share, strips)
    column = _first_columns(column_block, BLOCK_N, PERIOD)
    plain = tl.zeros_like(column).to(tl.float32)
    weighted = tl.zeros_like(plain)
    for begin in range(first, last, BLOCK_M):
        image, down, right = _places(group * strips + begin, height, across, BLOCK_M)
        right = right * strip
        pixel = (image * rows + down) * columns + right
        place = (((image * height + down) * width + right) * channels_in)[:, None] + n[None, :]
        at = ((lead + pixel) * channels_in)[:, None] + n[None, :]
        pixels = _pixels_of_strips(begin, last, right, width, strip, BLOCK_M)
        mask = n[None, :] < (pixels * channels_in)[:, None]
        start = corner + pixel
        if not EVEN:
            start = tl.where(pixels > 0, start, 0)
        total = _multiplied(
            gradient, weights, start, n, columns, channels, kernel, 1, dilation, strip, beside, False, ALIGN, BLOCK_M,
            BLOCK_K, BLOCK_N,
        )  # fmt: skip
        value = tl.where(_read(buffer + at, mask, EVEN) <= 0.0, 0.0, total)  # zero beside the strip
        _write(dx + place, value, mask, EVEN)
        if NORMED:
            raw = _read(before + place, mask, EVEN)
            plain += _folded_early(tl.sum(value, axis=0), BLOCK_N, PERIOD)
            weighted += _folded_early(tl.sum(value * raw, axis=0), BLOCK_N, PERIOD)
    if NORMED:
        plain = _folded_late(plain, n, channels_in, PERIOD)
        weighted = _folded_late(weighted, n, channels_in, PERIOD)
        inside = column < channels_in
        weighted -= plain * tl.load(mean + group * channels_in + column, mask=inside, other=0.0)
        target = partial + (group * programs + part) * channels_in + column
        tl.store(target, plain, mask=inside)
        tl.store(target + groups * programs * channels_in, weighted, mask=inside)
        if ends_last(counters + groups + group, programs * beside):
            for begin in range(0, channels_in, BLOCK_C):
                channel = begin + tl.arange(0, BLOCK_C)
                found = joined_sums(partial, programs, channels_in, group, groups, channel, BLOCK_C, BLOCK_P)
                keep_two(sums, found[0], found[1], channels_in, group, groups, channel)


@triton.jit(
    do_not_specialize=[
        "sums", "counters", "mean", "images", "groups", "height", "width", "rows", "columns", "lead", "corner",
        "corner_back", "wide", "wide_out", "kernel", "dilation", "strip", "beside", "tall", "share", "shares",
        "strip_back", "across_back", "beside_back", "share_back", "programs_back",
    ]
)  # fmt: skip
def backward(
    buffer,
    gradient,
    weights,
    before,
    mean,
    dx,
    partial_sums,
    sums,
    counters,
    partial,
    images,
    groups,
    height,
    width,
    rows,
    columns,
    lead,
    corner,
    corner_back,
    wide,
    wide_out,
    kernel,
    dilation,
    strip,
    beside,
    tall,
    share,
    shares,
    strip_back,
    across_back,
    beside_back,
    share_back,
    programs_back,
    RECTIFIED: tl.constexpr,
    NORMED: tl.constexpr,
    EVEN: tl.constexpr,
    PERIOD: tl.constexpr,
    ALIGN: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Through conv and ReLU: the first programs find the gradient of the merged weights, the others that of x.

    The windows of the first pixel start at `corner` of the buffer of x, and at `corner_back` of that of the gradient.
    """
    program = tl.program_id(0)
    first = tall * beside * shares
    if program < first:
        _of_weights(
            program, buffer, gradient, partial, images * rows * columns, columns, lead, corner, wide * ALIGN,
            wide_out * ALIGN_OUT, kernel, dilation, strip, tall, beside, share, RECTIFIED, ALIGN, BLOCK_T, BLOCK_S,
            BLOCK_N,
        )  # fmt: skip
    else:
        _of_input(
            program - first, programs_back, gradient, weights, dx, partial_sums, sums, counters, buffer, before, mean,
            groups, images // groups * height * across_back, height, width, rows, columns, lead, corner_back,
            wide_out * ALIGN_OUT, wide * ALIGN, kernel, dilation, strip_back, across_back, beside_back, share_back,
            NORMED, EVEN, PERIOD, ALIGN_OUT, BLOCK_M, BLOCK_K, BLOCK_N, BLOCK_C, BLOCK_P,
        )  # fmt: skip


@triton.jit
def _finished(
    channel,
    partial,
    depthwise,
    pointwise,
    shifted,
    found,
    at,
    separable,
    step_in,
    step_tap,
    kernel,
    dilation,
    channels_in,
    channels_out,
    first_out,
    strip,
    depth,
    beside,
    shares,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """The gradients of all weights of a channel that goes in: those of depthwise convs, then the others."""
    tap = tl.arange(0, BLOCK_T)
    taps = kernel * kernel
    i = _quotient(tap, kernel)
    j = tap - i * kernel
    span = strip + (kernel - 1) * dilation
    weight = tl.load(depthwise + channel * taps + tap, mask=tap < taps * separable, other=1.0).to(tl.float32)
    of_taps = tl.zeros((BLOCK_T,), dtype=tl.float32)
    at_pointwise = found + at + separable * channels_in * taps
    for begin in range(0, beside * BLOCK_N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        pixel = _quotient(n, channels_out)
        out = n - pixel * channels_out
        inside = n < strip * channels_out
        row = (i * span + j * dilation)[:, None] + pixel[None, :]
        place = (row * channels_in + channel) * (beside * BLOCK_N) + n[None, :]
        mask = (tap < taps)[:, None] & inside[None, :]
        of_first = (out < first_out)[None, :] & (tl.where(first_out == channels_out, 0, tap) == 0)[:, None]
        mask = mask & (of_first | ((out >= first_out)[None, :] & (tap == taps - 1)[:, None]))
        total = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.float32)
        for share in range(0, shares, TOGETHER):
            for one in tl.static_range(TOGETHER):  # on their way at once
                here = partial + (share + one) * (depth * beside * BLOCK_N) + place
                left = tap < (shares - share - one) * taps
                total += tl.load(here, mask=mask & left[:, None], other=0.0)
        if step_tap > 0:  # a conv with windows
            same = (out[:, None] == n[None, :]).to(tl.float32)
            folded = tl.dot(total, same, input_precision="ieee")
            tap_of_n = _place_of_weight(n[None, :], channel, tap[:, None], step_in, step_tap, channels_in, kernel)
            mask = (tap < taps)[:, None] & (n < channels_out)[None, :]
            tl.store(at_pointwise + tap_of_n, folded.to(found.dtype.element_ty), mask=mask)
        else:
            mixing = tl.load(pointwise + out * channels_in + channel, mask=out < first_out, other=0.0).to(tl.float32)
            second = shifted + (out - first_out) * channels_in + channel
            mixing += tl.load(second, mask=out >= first_out, other=0.0).to(tl.float32)
            of_taps += tl.sum(total * mixing[None, :], axis=1)
            of_out = tl.sum(tl.where((tap < taps)[:, None], total * weight[:, None], 0.0), axis=0)
            tl.store(
                at_pointwise + n * channels_in + channel,
                _folded_late(of_out, n, channels_out, 0).to(found.dtype.element_ty),
                mask=n < channels_out,
            )
    tl.store(
        found + at + channel * taps + tap,
        of_taps.to(found.dtype.element_ty),
        mask=tap < taps * separable,
    )


@triton.jit(
    do_not_specialize=[
        "depthwise_0", "pointwise_0", "shifted_0", "at_0", "separable_0", "step_in_0", "step_tap_0",
        "kernel_0", "dilation_0", "in_0", "out_0", "first_0", "strip_0", "depth_0", "beside_0", "shares_0",
        "depthwise_1", "pointwise_1", "shifted_1", "at_1", "separable_1", "step_in_1", "step_tap_1",
        "kernel_1", "dilation_1", "in_1", "out_1", "first_1", "strip_1", "depth_1", "beside_1", "shares_1",
    ]
)  # fmt: skip
def finish(
    found,
    partial_0, depthwise_0, pointwise_0, shifted_0, at_0, separable_0, step_in_0, step_tap_0,
    kernel_0, dilation_0, in_0, out_0, first_0, strip_0, depth_0, beside_0, shares_0,
    partial_1, depthwise_1, pointwise_1, shifted_1, at_1, separable_1, step_in_1, step_tap_1,
    kernel_1, dilation_1, in_1, out_1, first_1, strip_1, depth_1, beside_1, shares_1,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """The gradients of the weights of two halves, from what all shares of strips add to those of the merged ones."""
    channel = tl.program_id(0)
    if tl.program_id(1) == 0:
        if channel < in_0:
            _finished(
                channel, partial_0, depthwise_0, pointwise_0, shifted_0, found, at_0, separable_0, step_in_0,
                step_tap_0, kernel_0, dilation_0, in_0, out_0, first_0, strip_0, depth_0, beside_0, shares_0,
                BLOCK_T, BLOCK_N, TOGETHER,
            )  # fmt: skip
    else:
        if channel < in_1:
            _finished(
                channel, partial_1, depthwise_1, pointwise_1, shifted_1, found, at_1, separable_1, step_in_1,
                step_tap_1, kernel_1, dilation_1, in_1, out_1, first_1, strip_1, depth_1, beside_1, shares_1,
                BLOCK_T, BLOCK_N, TOGETHER,
            )  # fmt: skip
