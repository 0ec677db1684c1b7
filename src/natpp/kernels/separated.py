"""ReLU, depthwise conv, 1x1 conv and batch norm of a channels-last tensor, once or several times in a row.

A half is one such sequence. Forward, it is two launches. The first normalizes the input (if there is a half before
it), applies ReLU and copies it with zero padding, while other programs merge the weights; the second multiplies and
computes the statistics. Only the last half is followed by a normalizing kernel. Backward, it is two launches as well:
through its norm into a zero-padded buffer, then through conv and ReLU. A last launch computes the gradients of the
weights. No two programs add to the same value, so results are reproducible.

A half without a depthwise conv reads x directly. A factorized reduction has windows of 2 x 2 pixels with weights in
two corners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from natpp.kernels import geometry, merged_back, reference
from natpp.kernels.conv_block import Half
from natpp.kernels.norm import gradient_sums, normalize
from natpp.kernels.precompile import launch
from natpp.kernels.steps import Step
from natpp.kernels.tiles import columns_of, in_steps, on_device_of

FINISHED = 256  # partial gradients of weights that a column of threads reads at once
KEPT = 5  # tensors that a half saves for the backward pass


class Separated(torch.autograd.Function):
    """Images after some halves; updates running statistics if given."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, halves: Sequence[Half], groups: int, dtype: torch.dtype, added: Tensor | None, *_: Tensor
    ) -> Tensor:
        steps: list[Step] = []
        kept: list[Tensor] = []  # per half: the conv's input, the backward weights, the conv's output, …
        y, statistics, norm = x, None, None
        with on_device_of(x):
            for half in halves:
                step = Step(y.shape, half, groups, first=norm is None)
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
    steps: Sequence[Step], x: Tensor, kept: Sequence[Sequence[Tensor]], last_counters: Tensor, dz: Tensor
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


def _finish(steps: Sequence[Step], partial: Sequence[Tensor]) -> Any:
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
            found, *rows[begin], *rows[min(begin + 1, len(rows) - 1)],
            taps, geometry.BREADTH, FINISHED // taps, **merged_back.SUMS,
        )  # fmt: skip
    return iter(torch.split(found, [number for some in numbers for number in some]))
