"""Batch norm in training for a channels-last tensor: two kernels forward and two backward.

The pixels of a group are rows, divided into blocks. In each direction, the first kernel writes partial results of each
block to a small buffer, and the second kernel processes the rows. Blocks are combined in a fixed order, so results are
bitwise reproducible: forward, each program of the second kernel combines them itself; backward, the last program of
the first kernel to finish does, found by a counter that the forward pass set to zero. In each tile, the mean is
subtracted before squaring, and tiles and blocks are combined by their counts, so a large mean costs no precision.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from natpp.kernels import reference
from natpp.kernels.precompile import launch
from natpp.kernels.tiles import columns_of, divided, in_steps, on_device_of

TILE_BYTES = 16 * 1024  # bytes of a tensor that a program loads at once
PARTS = 4096  # numbers of one kind that a program combines at once: blocks times columns
TILES = 2  # minimum per program: concurrent trainings fill the GPU anyway, and fewer programs cost it less
PROGRAMS = 1024  # maximum of a second kernel: each combines all blocks, so it should have several rows to process
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


class Normalized(torch.autograd.Function):
    """Normalized images, and mean and variance (groups, channels); updates running statistics if given."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        groups: int,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cut = _Cut(x, groups)
        partial = cut.partial(x, 3)
        statistics = torch.empty(2, groups, cut.channels, dtype=torch.float32, device=x.device)
        running = running_mean, running_var, momentum
        with on_device_of(x):
            launch(
                _partial_statistics, cut.first,
                x, partial,
                cut.rows, cut.columns, cut.share,
                cut.align, cut.block_r, cut.block_c, **OPTIONS,
            )  # fmt: skip
            y, counters = normalize(x, statistics, partial, weight, bias, eps, groups, *running)
        mean, var = statistics
        ctx.save_for_backward(x, weight, bias, statistics, counters)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.groups = eps, groups
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dy = gradients[0]
        if dy is None:
            return (None,) * 8
        x, weight, bias, statistics, counters = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is needed
            y = reference.batch_norm(x, weight, bias, ctx.eps, ctx.groups)[0]
            inputs = [one for one, wanted in zip((x, weight, bias), ctx.needs_input_grad, strict=False) if wanted]
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
            return (*(next(found) if wanted else None for wanted in ctx.needs_input_grad[:3]), *(None,) * 5)
        dx, dweight, dbias = _backward(x, dy, weight, statistics, counters, ctx.eps, ctx.groups)
        return (
            dx,
            None if weight is None else dweight.to(weight.dtype),
            None if bias is None else dbias.to(bias.dtype),
            *(None,) * 5,
        )


def normalize(
    x: Tensor,
    statistics: Tensor,
    partial: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    groups: int,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.0,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Images normalized by mean and variance (2, groups, channels), plus `added`, and counters for `gradient_sums`.

    Partial statistics of blocks of rows (3, groups, blocks, channels: mean, squared deviations and count), if any, are
    combined into mean and variance, and into the running statistics.
    """
    cut = _Cut(x, groups)
    y = torch.empty_like(x, memory_format=torch.channels_last)
    counters = torch.empty(groups, cut.first[1], dtype=torch.int32, device=x.device)
    launch(  # where there is none, any pointer, which is not read
        _normalize, cut.second,
        x, y, x if added is None else added, statistics if partial is None else partial, statistics, counters,
        statistics if weight is None else weight, statistics if bias is None else bias,
        statistics if running_mean is None else running_mean, statistics if running_var is None else running_var,
        cut.rows, cut.columns, 0 if partial is None else partial.shape[2], cut.second_share, eps, momentum,
        partial is not None, weight is not None, bias is not None, running_mean is not None, added is not None,
        cut.align, cut.block_r, cut.block_c, PARTS // cut.block_c, **OPTIONS,
    )  # fmt: skip
    return y, counters


def gradient_sums(x: Tensor, dy: Tensor, step: int, mean: Tensor, counters: Tensor, groups: int) -> Tensor:
    """Sums of dy, and of dy times the deviation of x from its mean: (2, groups, channels).

    In dy, the next pixel is `step` numbers further. Counters must be zero, and are zero again afterwards.
    """
    cut = _Cut(x, groups)
    partial = cut.partial(x, 2)
    sums = torch.empty(2, groups, cut.channels, dtype=torch.float32, device=x.device)
    launch(
        _partial_gradients, cut.first,
        x, dy, partial, sums, counters, mean,
        cut.rows, cut.columns, step // cut.align, cut.share,
        cut.align, cut.block_r, cut.block_c, PARTS // cut.block_c, **OPTIONS,
    )  # fmt: skip
    return sums


def _backward(
    x: Tensor, dy: Tensor, weight: Tensor | None, statistics: Tensor, counters: Tensor, eps: float, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    cut = _Cut(x, groups)
    dy, step = in_steps(dy, cut.align)
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    gradients = torch.empty(2, groups, cut.channels, dtype=torch.float32, device=x.device)
    with on_device_of(x):
        sums = gradient_sums(x, dy, step, statistics[0], counters, groups)
        launch(
            _gradients, cut.second,
            x, dy, dx, sums, gradients, statistics, statistics if weight is None else weight,
            cut.rows, cut.columns, step // cut.align, cut.second_share, eps,
            weight is not None, cut.align, cut.block_r, cut.block_c, **OPTIONS,
        )  # fmt: skip
    dweight, dbias = gradients[:, 0] if groups == 1 else gradients.sum(1)
    return dx, dweight, dbias


class _Cut:
    """How the rows of a group are divided: `share` rows for each of `blocks` programs of a first kernel."""

    def __init__(self, x: Tensor, groups: int):
        self.channels = x.shape[1]
        self.groups = groups
        self.rows = x.shape[0] // groups * x.shape[2] * x.shape[3]  # of one group
        self.block_c, self.align = columns_of(self.channels)
        self.columns = self.channels // self.align
        self.block_r = TILE_BYTES // x.element_size() // self.block_c
        across = -(-self.channels // self.block_c)
        self.share, self.blocks = divided(self.rows, self.block_r, PARTS // self.block_c, TILES)
        self.second_share, second_blocks = divided(self.rows, self.block_r, PROGRAMS // (across * groups), TILES)
        self.first = (self.blocks, across, groups)
        self.second = (second_blocks, across, groups)

    def partial(self, x: Tensor, count: int) -> Tensor:
        """An uninitialized buffer for `count` numbers per block and channel."""
        return torch.empty(count, self.groups, self.blocks, self.channels, dtype=torch.float32, device=x.device)


@triton.jit
def _load(start, row, last, step, channels, column):
    """Rows from `row` on, `step` numbers apart; zeros from row `last` on and outside the channels."""
    mask = (row < last)[:, None] & (column < channels)[None, :]
    return tl.load(start + row[:, None] * step + column[None, :], mask=mask, other=0.0)


@triton.jit
def ends_last(counter, programs):
    """Whether all other programs have written their results, so that this one may read them; resets the counter.

    The results must be read from the L2 cache (.cg), where those of the other programs are.
    """
    tl.debug_barrier()  # wait until all threads have written
    last = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def _parts(start, part, blocks, channels, column):
    """Partial results of blocks, for some channels."""
    mask = (part < blocks)[:, None] & (column < channels)[None, :]
    return tl.load(start + part[:, None] * channels + column[None, :], mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def joined_statistics(partial, blocks, channels, group, groups, column, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr):
    """Mean and variance of some columns of a group, combined from its blocks."""
    mean = tl.zeros((BLOCK_C,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_C,), dtype=tl.float32)
    before = 0.0
    parts = partial + group * blocks * channels
    half = groups * blocks * channels
    for begin in range(0, blocks, BLOCK_P):
        part = begin + tl.arange(0, BLOCK_P)
        means = _parts(parts, part, blocks, channels, column)
        some_squares = _parts(parts + half, part, blocks, channels, column)
        counts = tl.load(  # the same for all channels
            parts + 2 * half + part * channels, mask=part < blocks, other=0.0, cache_modifier=".cg"
        )
        count = tl.sum(counts, axis=0)
        some_mean = tl.sum(means * counts[:, None], axis=0) / count
        deviation = means - some_mean[None, :]
        difference = some_mean - mean
        ratio = count / (before + count)
        squares += tl.sum(some_squares + deviation * deviation * counts[:, None], axis=0)
        squares += difference * difference * (before * ratio)
        mean += difference * ratio
        before += count
    return mean, squares / before


@triton.jit
def joined_sums(partial, blocks, channels, group, groups, column, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr):
    """Both sums over the blocks of a group."""
    plain = tl.zeros((BLOCK_C,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_C,), dtype=tl.float32)
    parts = partial + group * blocks * channels
    half = groups * blocks * channels
    for begin in range(0, blocks, BLOCK_P):
        part = begin + tl.arange(0, BLOCK_P)
        plain += tl.sum(_parts(parts, part, blocks, channels, column), axis=0)
        weighted += tl.sum(_parts(parts + half, part, blocks, channels, column), axis=0)
    return plain, weighted


@triton.jit
def keep_two(target, first, second, channels, group, groups, column):
    """Store two numbers per channel in (2, groups, channels)."""
    inside = column < channels
    tl.store(target + group * channels + column, first, mask=inside)
    tl.store(target + (groups + group) * channels + column, second, mask=inside)


@triton.jit
def kept_two(source, channels, group, groups, column):
    """Load what `keep_two` stored; zeros outside the channels."""
    inside = column < channels
    first = tl.load(source + group * channels + column, mask=inside, other=0.0)
    return first, tl.load(source + (groups + group) * channels + column, mask=inside, other=0.0)


@triton.jit
def move_running(running_mean, running_var, mean, var, total, momentum, column, inside):
    """Move running statistics towards those of a batch."""
    old = tl.load(running_mean + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(running_mean + column, old + (mean - old) * momentum, mask=inside)
    old = tl.load(running_var + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(running_var + column, old + (var * (total / (total - 1.0)) - old) * momentum, mask=inside)


@triton.jit(do_not_specialize=["rows", "columns", "share"])
def _partial_statistics(
    x, partial, rows, columns, share, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Mean, squared deviations and count of each block: partial (3, groups, blocks, channels)."""
    block = tl.program_id(0)
    group = tl.program_id(2)
    channels = columns * ALIGN
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    first = block * share
    last = tl.minimum(first + share, rows)
    start = x + group * rows * channels
    row = first + tl.arange(0, BLOCK_R)
    mean = tl.zeros((BLOCK_C,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_C,), dtype=tl.float32)
    tile = _load(start, row, last, channels, channels, column)
    for begin in range(first, last, BLOCK_R):
        # prefetched while the current tile is processed
        following = _load(start, row + BLOCK_R, last, channels, channels, column)
        value = tile.to(tl.float32)
        before = (begin - first).to(tl.float32)
        count = tl.minimum(last - begin, BLOCK_R).to(tl.float32)
        tile_mean = tl.sum(value, axis=0) / count
        deviation = tl.where((row < last)[:, None], value - tile_mean[None, :], 0.0)
        difference = tile_mean - mean
        part = count / (before + count)
        mean += difference * part
        squares += tl.sum(deviation * deviation, axis=0) + difference * difference * (before * part)
        row += BLOCK_R
        tile = following
    place = (group * tl.num_programs(0) + block) * channels + column
    half = tl.num_programs(2) * tl.num_programs(0) * channels
    tl.store(partial + place, mean, mask=inside)
    tl.store(partial + half + place, squares, mask=inside)
    tl.store(partial + 2 * half + place, tl.zeros_like(mean) + (last - first).to(tl.float32), mask=inside)


@triton.jit(
    do_not_specialize=[
        "statistics", "counters", "weight", "bias", "running_mean", "running_var", "rows", "columns", "blocks",
        "second_share",
    ]
)  # fmt: skip
def _normalize(
    x, y, added, partial, statistics, counters, weight, bias, running_mean, running_var,
    rows, columns, blocks, second_share, eps, momentum,
    JOINED: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RUNNING: tl.constexpr, ADDED: tl.constexpr,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Normalize; with JOINED, by the combined statistics of blocks, which the first program of a column also stores."""
    group = tl.program_id(2)
    groups = tl.num_programs(2)
    channels = columns * ALIGN
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    first = tl.program_id(0) * second_share
    last = tl.minimum(first + second_share, rows)
    start = x + group * rows * channels
    target = y + group * rows * channels
    start_added = added + group * rows * channels
    row = first + tl.arange(0, BLOCK_R)
    tile = _load(start, row, last, channels, channels, column)

    if JOINED:
        mean, var = joined_statistics(partial, blocks, channels, group, groups, column, BLOCK_C, BLOCK_P)
    else:
        mean, var = kept_two(statistics, channels, group, groups, column)
    if tl.program_id(0) == 0:
        tl.store(counters + group * tl.num_programs(1) + tl.program_id(1), 0)
        if JOINED:
            keep_two(statistics, mean, var, channels, group, groups, column)
            if RUNNING:
                move_running(running_mean, running_var, mean, var, rows.to(tl.float32), momentum, column, inside)

    scale = 1.0 / tl.sqrt(var + eps)
    if WEIGHT:
        scale *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.zeros((BLOCK_C,), dtype=tl.float32)
    if BIAS:
        shift += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for _begin in range(first, last, BLOCK_R):
        following = _load(start, row + BLOCK_R, last, channels, channels, column)
        value = (tile.to(tl.float32) - mean[None, :]) * scale[None, :] + shift[None, :]
        if ADDED:
            value += _load(start_added, row, last, channels, channels, column).to(tl.float32)
        mask = (row < last)[:, None] & inside[None, :]
        tl.store(target + row[:, None] * channels + column[None, :], value.to(y.dtype.element_ty), mask=mask)
        row += BLOCK_R
        tile = following


@triton.jit(do_not_specialize=["sums", "counters", "mean", "rows", "columns", "dy_columns", "share"])
def _partial_gradients(
    x, dy, partial, sums, counters, mean,
    rows, columns, dy_columns, share,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Sums of dy and of dy times the deviation of x: (2, groups, channels), combined from blocks."""
    block = tl.program_id(0)
    group = tl.program_id(2)
    channels = columns * ALIGN
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    first = block * share
    last = tl.minimum(first + share, rows)
    start = x + group * rows * channels
    step = dy_columns * ALIGN
    start_dy = dy + group * rows * step
    row = first + tl.arange(0, BLOCK_R)
    tile = _load(start, row, last, channels, channels, column)
    tile_dy = _load(start_dy, row, last, step, channels, column)
    center = tl.load(mean + group * channels + column, mask=inside, other=0.0)
    plain = tl.zeros((BLOCK_C,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for _begin in range(first, last, BLOCK_R):
        following = _load(start, row + BLOCK_R, last, channels, channels, column)
        following_dy = _load(start_dy, row + BLOCK_R, last, step, channels, column)
        gradient = tile_dy.to(tl.float32)  # zero outside, so x may be anything there
        plain += tl.sum(gradient, axis=0)
        weighted += tl.sum(gradient * (tile.to(tl.float32) - center[None, :]), axis=0)
        row += BLOCK_R
        tile = following
        tile_dy = following_dy
    place = (group * tl.num_programs(0) + block) * channels + column
    half = tl.num_programs(2) * tl.num_programs(0) * channels
    tl.store(partial + place, plain, mask=inside)
    tl.store(partial + half + place, weighted, mask=inside)
    if ends_last(counters + group * tl.num_programs(1) + tl.program_id(1), tl.num_programs(0)):
        groups = tl.num_programs(2)
        plain, weighted = joined_sums(partial, tl.num_programs(0), channels, group, groups, column, BLOCK_C, BLOCK_P)
        keep_two(sums, plain, weighted, channels, group, groups, column)


@triton.jit(do_not_specialize=["sums", "statistics", "weight", "rows", "columns", "dy_columns", "second_share"])
def _gradients(
    x, dy, dx, sums, gradients, statistics, weight,
    rows, columns, dy_columns, second_share, eps,
    WEIGHT: tl.constexpr, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx; the first program of a column also stores its group's gradients of weight and bias."""
    group = tl.program_id(2)
    groups = tl.num_programs(2)
    channels = columns * ALIGN
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    first = tl.program_id(0) * second_share
    last = tl.minimum(first + second_share, rows)
    start = x + group * rows * channels
    step = dy_columns * ALIGN
    start_dy = dy + group * rows * step
    target = dx + group * rows * channels
    row = first + tl.arange(0, BLOCK_R)
    tile = _load(start, row, last, channels, channels, column)
    tile_dy = _load(start_dy, row, last, step, channels, column)

    plain, weighted = kept_two(sums, channels, group, groups, column)
    center, var = kept_two(statistics, channels, group, groups, column)
    inverse = 1.0 / tl.sqrt(var + eps)
    if tl.program_id(0) == 0:
        keep_two(gradients, weighted * inverse, plain, channels, group, groups, column)

    total = rows.to(tl.float32)
    scale = inverse
    if WEIGHT:
        scale *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = plain / total
    slope = weighted / total * (inverse * inverse)
    for _begin in range(first, last, BLOCK_R):
        following = _load(start, row + BLOCK_R, last, channels, channels, column)
        following_dy = _load(start_dy, row + BLOCK_R, last, step, channels, column)
        deviation = tile.to(tl.float32) - center[None, :]
        value = (tile_dy.to(tl.float32) - shift[None, :] - deviation * slope[None, :]) * scale[None, :]
        mask = (row < last)[:, None] & inside[None, :]
        tl.store(target + row[:, None] * channels + column[None, :], value.to(dx.dtype.element_ty), mask=mask)
        row += BLOCK_R
        tile = following
        tile_dy = following_dy
