"""Kernels of separable convs, with depthwise and 1x1 weights merged into one dense conv, as a matrix product.

On tensor cores, the many additional multiplications are almost free; loading the windows is what costs time. So the
input of a conv is first written to a buffer: after ReLU, in the dtype of the product, with enough zeros after each row
and each image for a window that crosses a border (they also precede the next row or image). A row of the first matrix
is the window of a strip, which is a few adjacent pixels of the output. In each row of the image, this window is a
contiguous run of memory. The second matrix holds the weights in their positions for each pixel of the strip, and zeros
elsewhere: it is (window row, column, channel in) x (pixel of the strip, channel out).

The gradient of the input is such a conv of the gradient of the output, with transposed and flipped weights. The
gradient of the merged weights is a product of two buffers over all strips. All sums are in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from natpp.kernels.norm import ends_last, joined_statistics, keep_two, kept_two, move_running
from natpp.kernels.strips import (
    first_columns,
    folded_early,
    folded_late,
    multiplied,
    pixels_at,
    pixels_of_strips,
    place_of_weight,
    places_at,
    quotient,
    rectified,
    share_of,
    within,
    write,
)

PRODUCTS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}  # of kernels that multiply
if torch.version.hip is None:
    PRODUCTS["maxnreg"] = 168  # so that three programs fit on a multiprocessor
COPIES = {"num_warps": 4, "enable_fp_fusion": True}  # of kernels that copy


@triton.jit
def _merge(
    block, depthwise, pointwise, shifted, target,
    separable, step_in, step_tap, kernel, stride, dilation, channels_in, channels_out, first_out, strip, beside,
    BACK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block of the merged weights, of the conv itself or (BACK) of the conv for the gradient of its input.

    In `pointwise`, the next input channel is `step_in` numbers further, the next tap `step_tap`.
    """
    given = channels_in
    made = channels_out
    if BACK:
        given = channels_out
        made = channels_in
    row = block // beside * BLOCK_K + tl.arange(0, BLOCK_K)
    n = block % beside * BLOCK_N + tl.arange(0, BLOCK_N)
    run = ((strip - 1) * stride + (kernel - 1) * dilation + 1) * given
    i = quotient(row, run)
    column = quotient(row - i * run, given)
    pixel = quotient(n, made)
    distance = column[:, None] - (pixel * stride)[None, :]
    j = distance >> (dilation - 1)  # 0 or 1
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
    whole = first_out == channels_out  # a single 1x1 conv for all taps
    first = inside & (out < first_out) & (tl.where(whole, 0, tap) == 0)
    second = inside & (out >= first_out) & (tap == last)
    place = place_of_weight(out, channel, tap, step_in, step_tap, channels_in, kernel)
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
    x, buffer, statistics, counters, weight, bias, depthwise, pointwise, shifted, merged, merged_back,
    images, height, width, rows, columns, lead, numbered, wide, share, programs, groups,
    separable, step_in, step_tap, kernel, stride, dilation, channels_out, first_out, strip, beside,
    merging, strip_back, beside_back, eps,
    NORMED: tl.constexpr, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The inputs of a half: x (normalized if it has a norm) after ReLU, padded with zeros; and the merged weights.

    The first programs copy, the others merge; one of them zeroes the counters (2, groups) for the next kernels.
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
        first, last = share_of(block, group, images * rows * columns, lead, numbered, share)
        for begin in range(first, last, BLOCK_R):
            pixel = begin + tl.arange(0, BLOCK_R)
            image, down, across = pixels_at(begin, rows, columns, lead, BLOCK_R)
            there = within(image, images * groups) & (down < height) & (across < width)
            place = ((image * height + down) * width + across) * channels
            mask = there[:, None] & inside[None, :]
            value = tl.load(x + place[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
            if NORMED:
                value = tl.where(there[:, None], value * scale[None, :] + shift[None, :], 0.0)
            tl.store(
                buffer + (pixel * channels)[:, None] + column[None, :],
                rectified(value).to(buffer.dtype.element_ty),
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


@triton.jit(
    do_not_specialize=[
        "statistics", "counters", "running_mean", "running_var", "strips", "height", "width", "rows", "columns",
        "corner", "wide", "wide_out", "kernel", "stride", "dilation", "strip", "across", "beside", "share",
    ]
)  # fmt: skip
def forward(
    buffer, weights, y, partial, statistics, counters, running_mean, running_var,
    strips, height, width, rows, columns, corner, wide, wide_out, kernel, stride, dilation, strip, across, beside,
    share, momentum,
    RECTIFIED: tl.constexpr, RUNNING: tl.constexpr, EVEN: tl.constexpr, PERIOD: tl.constexpr, ALIGN: tl.constexpr,
    ALIGN_OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """y, and its mean and variance (2, groups, channels), combined from the statistics of all blocks.

    The first window starts at pixel `corner` of the buffer. Statistics are sums of y before rounding, and of its
    squares: with a mean of a hundred deviations, the variance is accurate to a thousandth. RECTIFIED: the buffer is x.
    """
    block = tl.program_id(0)
    group = tl.program_id(2)
    channels_out = wide_out * ALIGN_OUT
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = block * share
    last = tl.minimum(first + share, strips)
    count = (last - first) * strip  # pixels
    column = first_columns(tl.program_id(1), BLOCK_N, PERIOD)
    plain = tl.zeros_like(column).to(tl.float32)
    squares = tl.zeros_like(plain)
    for begin in range(first, last, BLOCK_M):
        image, down, right = places_at(group * strips + begin, height, across, BLOCK_M)
        right = right * strip
        place = corner + (image * rows + down * stride) * columns + right * stride
        target = y + (((image * height + down) * width + right) * channels_out)[:, None] + n[None, :]
        pixels = pixels_of_strips(begin, last, right, width, strip, BLOCK_M)
        mask = n[None, :] < (pixels * channels_out)[:, None]
        if not EVEN:
            place = tl.where(pixels > 0, place, 0)
        total = multiplied(
            buffer, weights, place, n, columns, wide * ALIGN, kernel, stride, dilation, strip, beside, RECTIFIED, ALIGN,
            BLOCK_M, BLOCK_K, BLOCK_N,
        )  # fmt: skip
        write(target, total, mask, EVEN)
        if not EVEN:
            total = tl.where(mask, total, 0.0)
            count += tl.sum(pixels, axis=0) - tl.minimum(last - begin, BLOCK_M) * strip
        plain += folded_early(tl.sum(total, axis=0), BLOCK_N, PERIOD)
        squares += folded_early(tl.sum(total * total, axis=0), BLOCK_N, PERIOD)
    plain = folded_late(plain, n, channels_out, PERIOD)
    squares = folded_late(squares, n, channels_out, PERIOD)
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
