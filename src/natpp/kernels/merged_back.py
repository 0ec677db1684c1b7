"""Gradients of convolutions merged into matrix products, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from natpp.kernels.norm import ends_last, joined_sums, keep_two, kept_two
from natpp.kernels.strips import (
    dot,
    first_columns,
    folded_early,
    folded_late,
    multiplied,
    offset_of,
    pixels_at,
    pixels_of_strips,
    place_of_weight,
    places_at,
    quotient,
    read,
    rectified,
    share_of,
    within,
    write,
)

SUMS = {"num_warps": 8, "enable_fp_fusion": True}  # of the last kernel


@triton.jit(
    do_not_specialize=[
        "sums", "statistics", "weight", "images", "height", "width", "rows", "columns", "lead", "numbered", "stride",
        "wide", "wide_dz", "share",
    ]
)  # fmt: skip
def through_norm(
    y, dz, buffer, sums, gradients, statistics, weight,
    images, height, width, rows, columns, lead, numbered, stride, wide, wide_dz, share, eps,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of a norm's input, at the positions of the conv's input; with stride 2, zeros in between.

    The first program stores its group's gradients of the norm's weight and bias.
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
    odd = stride - 1  # 0 or 1
    first, last = share_of(block, group, images * rows * columns, lead, numbered, share)
    for begin in range(first, last, BLOCK_R):
        pixel = begin + tl.arange(0, BLOCK_R)
        image, down, across = pixels_at(begin, rows, columns, lead, BLOCK_R)
        there = within(image, images * groups) & (((down | across) & odd) == 0)
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
    program, buffer, gradient, partial,
    pixels, columns, lead, corner, channels, channels_out, kernel, dilation, strip, tall, beside, share,
    RECTIFIED: tl.constexpr, ALIGN: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block of the gradient of the merged weights, over a share of the strips: partial (shares, depth, breadth).

    Both buffers have all pixels at the same positions; in the padding, the gradient is zero.
    """
    blocks = tall * beside
    part = program // blocks
    program = program % blocks
    k = program // beside * BLOCK_K + tl.arange(0, BLOCK_K)
    n = program % beside * BLOCK_N + tl.arange(0, BLOCK_N)
    run = (strip + (kernel - 1) * dilation) * channels
    offset = offset_of(k, run, dilation * columns * channels, ALIGN)
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
            window = rectified(window.to(tl.float32)).to(some.dtype)
        total = dot(tl.trans(window), some, total)
    target = partial + part * (tall * BLOCK_K * beside * BLOCK_N)
    tl.store(target + k[:, None] * (beside * BLOCK_N) + n[None, :], total)


@triton.jit
def _of_input(
    program, programs, gradient, weights, dx, partial, sums, counters, buffer, before, mean,
    groups, strips, height, width, rows, columns, lead, corner, channels, channels_in, kernel, dilation, strip, across,
    beside, share,
    NORMED: tl.constexpr, EVEN: tl.constexpr, PERIOD: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """dx through conv and ReLU for a share of the strips, and its sums for the preceding norm, if any."""
    part = program % programs
    group = program // (programs * beside)
    column_block = program // programs % beside
    n = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    first = part * share
    last = tl.minimum(first + share, strips)
    column = first_columns(column_block, BLOCK_N, PERIOD)
    plain = tl.zeros_like(column).to(tl.float32)
    weighted = tl.zeros_like(plain)
    for begin in range(first, last, BLOCK_M):
        image, down, right = places_at(group * strips + begin, height, across, BLOCK_M)
        right = right * strip
        pixel = (image * rows + down) * columns + right
        place = (((image * height + down) * width + right) * channels_in)[:, None] + n[None, :]
        at = ((lead + pixel) * channels_in)[:, None] + n[None, :]
        pixels = pixels_of_strips(begin, last, right, width, strip, BLOCK_M)
        mask = n[None, :] < (pixels * channels_in)[:, None]
        start = corner + pixel
        if not EVEN:
            start = tl.where(pixels > 0, start, 0)
        total = multiplied(
            gradient, weights, start, n, columns, channels, kernel, 1, dilation, strip, beside, False, ALIGN, BLOCK_M,
            BLOCK_K, BLOCK_N,
        )  # fmt: skip
        value = tl.where(read(buffer + at, mask, EVEN) <= 0.0, 0.0, total)  # zero outside the strip
        write(dx + place, value, mask, EVEN)
        if NORMED:
            raw = read(before + place, mask, EVEN)
            plain += folded_early(tl.sum(value, axis=0), BLOCK_N, PERIOD)
            weighted += folded_early(tl.sum(value * raw, axis=0), BLOCK_N, PERIOD)
    if NORMED:
        plain = folded_late(plain, n, channels_in, PERIOD)
        weighted = folded_late(weighted, n, channels_in, PERIOD)
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
    buffer, gradient, weights, before, mean, dx, partial_sums, sums, counters, partial,
    images, groups, height, width, rows, columns, lead, corner, corner_back, wide, wide_out, kernel, dilation, strip,
    beside, tall, share, shares,
    strip_back, across_back, beside_back, share_back, programs_back,
    RECTIFIED: tl.constexpr, NORMED: tl.constexpr, EVEN: tl.constexpr, PERIOD: tl.constexpr, ALIGN: tl.constexpr,
    ALIGN_OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Backward through conv and ReLU: the first programs compute the gradient of the merged weights, the others dx.

    The window of the first pixel starts at `corner` in the buffer of x, and at `corner_back` in that of the gradient.
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
    channel, partial, depthwise, pointwise, shifted, found,
    at, separable, step_in, step_tap, kernel, dilation, channels_in, channels_out, first_out, strip, depth, beside,
    shares,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """The gradients of all weights of an input channel: those of depthwise convs, then the others."""
    tap = tl.arange(0, BLOCK_T)
    taps = kernel * kernel
    i = quotient(tap, kernel)
    j = tap - i * kernel
    span = strip + (kernel - 1) * dilation
    weight = tl.load(depthwise + channel * taps + tap, mask=tap < taps * separable, other=1.0).to(tl.float32)
    of_taps = tl.zeros((BLOCK_T,), dtype=tl.float32)
    at_pointwise = found + at + separable * channels_in * taps
    for begin in range(0, beside * BLOCK_N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        pixel = quotient(n, channels_out)
        out = n - pixel * channels_out
        inside = n < strip * channels_out
        row = (i * span + j * dilation)[:, None] + pixel[None, :]
        place = (row * channels_in + channel) * (beside * BLOCK_N) + n[None, :]
        mask = (tap < taps)[:, None] & inside[None, :]
        of_first = (out < first_out)[None, :] & (tl.where(first_out == channels_out, 0, tap) == 0)[:, None]
        mask = mask & (of_first | ((out >= first_out)[None, :] & (tap == taps - 1)[:, None]))
        total = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.float32)
        for share in range(0, shares, TOGETHER):
            for one in tl.static_range(TOGETHER):  # loads that run concurrently
                here = partial + (share + one) * (depth * beside * BLOCK_N) + place
                left = tap < (shares - share - one) * taps
                total += tl.load(here, mask=mask & left[:, None], other=0.0)
        if step_tap > 0:  # a k x k conv
            same = (out[:, None] == n[None, :]).to(tl.float32)
            folded = tl.dot(total, same, input_precision="ieee")
            tap_of_n = place_of_weight(n[None, :], channel, tap[:, None], step_in, step_tap, channels_in, kernel)
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
                folded_late(of_out, n, channels_out, 0).to(found.dtype.element_ty),
                mask=n < channels_out,
            )
    tl.store(found + at + channel * taps + tap, of_taps.to(found.dtype.element_ty), mask=tap < taps * separable)


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
    """The gradients of the weights of two halves, summed over all shares of the gradients of merged weights."""
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
