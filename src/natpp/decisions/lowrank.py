"""Chains of smaller layers that stand for one convolution or linear layer: their weights, errors and costs.

A chain has one of three forms. `channel`: the same convolution to fewer channels, then 1x1. `tucker`: 1x1 to fewer
channels, the convolution on those, and 1x1. `spatial`: a vertical convolution to a few channels, then a horizontal one.
Linear layers and 1x1 convolutions have only the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from natpp.errors import SettingError

ROUNDS = 2  # how often the first factor of a Tucker or spatial form is improved
STEPS = 12  # of conjugate gradients each time
FLOOR = 1e-9  # smallest eigenvalue of a matrix that is inverted, relative to the largest
RIDGE = 1e-6  # pull towards the weights' own projection, relative to the mean of the diagonal


class Form(NamedTuple):
    """What a layer becomes, as `channel` with a rank, `tucker` with channels in and out, or `spatial` with a rank.

    Examples:
        >>> from natpp.decisions.lowrank import Form
        >>> print(Form("tucker", (8, 12)), Form.read("channel 4"))
        tucker 8 12 channel 4
    """

    kind: str
    ranks: tuple[int, ...]
    """channels between the layers of the chain"""

    def __str__(self) -> str:
        return " ".join([self.kind, *map(str, self.ranks)])

    @classmethod
    def read(cls, text: str) -> Form:
        """The form that `str` writes like this."""
        kind, *ranks = text.split()
        return cls(kind, tuple(map(int, ranks)))


def most(kind: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The largest ranks of a form for a weight of this shape; nothing if the layer cannot have this form."""
    outputs, inputs, *kernel = shape
    if kind == "channel":
        return (min(outputs, inputs * math.prod(kernel)),)
    if math.prod(kernel) == 1:
        return ()
    if kind == "tucker":
        return inputs, outputs
    return (min(inputs * kernel[0], outputs * kernel[1]),) if kind == "spatial" and min(kernel) > 1 else ()


def cost(
    form: Form,
    inputs: int,
    outputs: int,
    kernel: tuple[int, int],
    size_in: tuple[int, ...],
    size_out: tuple[int, ...],
    bias: bool = False,
) -> tuple[int, int]:
    """Parameters and multiply-adds of a chain, in closed form.

    Sizes are those of values without the channels: (height, width), or with the number of images before. For a linear
    layer the kernel is (1, 1), and both sizes are the number of rows.

    Examples:
        >>> from natpp.decisions.lowrank import Form, cost
        >>> cost(Form("channel", (4,)), 8, 16, (3, 3), (32, 32), (16, 16))
        (352, 90112)
    """
    positions, rank = math.prod(size_out), form.ranks[-1]
    if form.kind == "channel":
        params = rank * (inputs * kernel[0] * kernel[1] + outputs)
        madds = params * positions
    elif form.kind == "tucker":
        first, core = form.ranks[0] * inputs, form.ranks[0] * rank * kernel[0] * kernel[1]
        rest = core + (rank * outputs if rank < outputs else 0)
        params, madds = first + rest, first * math.prod(size_in) + rest * positions
    else:
        vertical, horizontal = rank * inputs * kernel[0], rank * outputs * kernel[1]
        params = vertical + horizontal
        madds = vertical * math.prod(size_out[:-1]) * size_in[-1] + horizontal * positions
    return params + (outputs if bias else 0), madds


def error(weight: Tensor, other: Tensor, second: Tensor | None = None, metric: Tensor | None = None) -> float:
    """The expected squared error of a layer's outputs if it had the other weight."""
    wrong = (weight - other).double().flatten(1)
    seen = wrong if second is None else wrong @ second
    felt = wrong if metric is None else metric @ wrong
    return float((seen * felt).sum())


def channel_errors(weight: Tensor, second: Tensor | None = None, metric: Tensor | None = None) -> Tensor:
    """The error of the best `channel` form by rank, from 0 to the number of outputs."""
    wanted = felt(weight, roots(metric)[0])
    values = torch.linalg.eigvalsh(_product(wanted, second)).clamp(min=0)
    return torch.cat([values.new_zeros(1), values.cumsum(dim=0)]).flip(0)


def factors(
    weight: Tensor, form: Form, second: Tensor | None = None, metric: Tensor | None = None, rounds: int = ROUNDS
) -> list[Tensor]:
    """The weights of the chain that is nearest to a layer, in float64.

    `second` is the centred second moment of the layer's inputs, unfolded for a convolution; `metric` is what errors of
    two outputs cost together. Both are identities by default. Without `second`, the weights alone decide.
    """
    _check(form, weight.shape)
    root, back = roots(metric)
    wanted = felt(weight, root)  # (inputs, outputs), in units of what errors cost
    outputs, inputs, *kernel = weight.shape
    if form.kind == "channel":
        (rank,) = form.ranks
        top = torch.linalg.eigh(_product(wanted, second))[1][:, -rank:]
        last = top if back is None else back @ top
        return _balanced(
            [(wanted @ top).T.reshape(rank, inputs, *kernel), last.reshape(outputs, rank, *(1 for _ in kernel))]
        )
    spatial = form.kind == "spatial"
    sides = (inputs * kernel[0], kernel[1]) if spatial else (inputs, math.prod(kernel))
    ranks = (form.ranks[0], outputs if spatial else form.ranks[1])
    first, core, last = _nested(wanted, second, sides, ranks, rounds)
    if ranks[1] == outputs:
        core = core @ last.T if back is None else core @ last.T @ back
    if spatial:
        own = core.reshape(ranks[0], kernel[1], outputs).permute(2, 0, 1)
        made = [first.reshape(ranks[0], inputs, kernel[0], 1), own.reshape(outputs, ranks[0], 1, kernel[1])]
    else:
        own = core.reshape(ranks[0], sides[1], ranks[1]).permute(2, 0, 1)
        made = [first.reshape(ranks[0], inputs, 1, 1), own.reshape(ranks[1], ranks[0], *kernel)]
        if ranks[1] < outputs:
            made.append((last if back is None else back @ last).reshape(outputs, ranks[1], 1, 1))
    made = _balanced(made)
    if second is None:
        return made
    plain = factors(weight, form, None, metric, rounds)  # another start, which is rarely better
    errors = [error(weight, composed(one), second, metric) for one in (made, plain)]
    return made if errors[0] <= errors[1] else plain


def composed(weights: Sequence[Tensor]) -> Tensor:
    """The weight of the one layer that a chain stands for."""
    found = weights[0]
    for after in weights[1:]:
        if found.dim() == 2:
            found = after @ found
            continue
        both = torch.einsum("orhw,riab->oihawb", after, found)
        found = both.reshape(
            len(after), found.shape[1], *(one * two for one, two in zip(after.shape[2:], found.shape[2:], strict=True))
        )
    return found


def chain(layer: nn.Conv2d | nn.Linear, form: Form) -> nn.Sequential:
    """The chain that stands for a layer, with weights by the layer's weights alone; the layer may be on meta."""
    weight = layer.weight
    if type(layer).forward not in (nn.Conv2d.forward, nn.Linear.forward):
        raise SettingError(
            f"{type(layer).__name__} computes its output in its own way: expected nn.Conv2d or nn.Linear"
        )
    _check(form, weight.shape)
    options: dict[str, Any] = {"device": "meta", "dtype": weight.dtype}
    bias, rank, made = layer.bias is not None, form.ranks[-1], list[nn.Conv2d | nn.Linear]()
    if isinstance(layer, nn.Linear):
        made += [nn.Linear(layer.in_features, rank, bias=False, **options)]
        made += [nn.Linear(rank, layer.out_features, bias=bias, **options)]
    else:
        if layer.groups > 1:
            raise SettingError(f"a convolution with {layer.groups} groups has no low-rank form: only one with 1 group")
        inputs, outputs, mode = layer.in_channels, layer.out_channels, layer.padding_mode
        whole: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        if form.kind == "spatial":
            for axis, (before, after) in enumerate([(inputs, rank), (rank, outputs)]):
                side = {key: _along(value, axis, key != "padding") for key, value in whole.items()}
                size = _along(layer.kernel_size, axis, True)
                last = bias and axis == 1
                made.append(nn.Conv2d(before, after, size, **side, bias=last, padding_mode=mode, **options))
        else:
            ranks = form.ranks[:-1] if rank == outputs and form.kind == "tucker" else form.ranks
            sizes, at = [inputs, *ranks, outputs], int(form.kind == "tucker")
            for place, (before, after) in enumerate(itertools.pairwise(sizes)):
                own: dict[str, Any] = {**whole, "padding_mode": mode} if place == at else {}
                own["kernel_size"] = layer.kernel_size if place == at else 1
                made.append(nn.Conv2d(before, after, **own, bias=bias and place == len(ranks), **options))
    if weight.is_meta:
        found: list[Tensor] = [one.weight for one in made]
    else:
        found = factors(weight.detach().double().cpu(), form)
    flipped = (
        weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    )
    for one, value in zip(made, found, strict=True):
        own_format = torch.channels_last if flipped else torch.contiguous_format
        value = value.to(weight.device, weight.dtype).contiguous(memory_format=own_format)
        one.weight = nn.Parameter(value, weight.requires_grad)
    if layer.bias is not None:
        made[-1].bias = nn.Parameter(layer.bias.detach().clone(), layer.bias.requires_grad)
    return nn.Sequential(*made).train(layer.training)


def form_of(parts: Sequence[nn.Module]) -> Form | None:
    """The form of layers that follow each other, if they are such a chain with zero padding."""
    layers = [one for one in parts if isinstance(one, nn.Conv2d | nn.Linear)]
    if len(parts) < 2 or len(layers) < len(parts) or any(one.bias is not None for one in layers[:-1]):
        return None
    *before, last = layers
    ranks, kind = tuple(len(one.weight) for one in before), "channel"
    convs = [one for one in layers if isinstance(one, nn.Conv2d) and _plain(one)]
    if len(convs) == len(layers):
        point = [one.kernel_size == one.stride == (1, 1) and one.padding == (0, 0) for one in convs]
        if point in ([True, False], [True, False, True]):
            kind, ranks = "tucker", (*ranks, len(last.weight))[:2]
        elif not point[1] and len(convs) == 2 and all(_flat(one, axis) for axis, one in enumerate(convs)):
            kind = "spatial"
        elif point[1:] != [True]:
            return None
    elif len(layers) > 2 or not all(isinstance(one, nn.Linear) for one in layers):
        return None
    limits = most(kind, (*whole(layers).weight.shape,))
    return Form(kind, ranks) if limits and all(one <= limit for one, limit in zip(ranks, limits, strict=True)) else None


def _plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _flat(layer: nn.Conv2d, axis: int) -> bool:
    """Whether a convolution leaves the other axis alone."""
    other = 1 - axis
    return layer.kernel_size[other] == layer.stride[other] == 1 and layer.padding[other] == 0


def whole(layers: Sequence[nn.Conv2d | nn.Linear]) -> nn.Conv2d | nn.Linear:
    """The one layer that a chain stands for, on the meta device."""
    first, last = layers[0], layers[-1]
    options: dict[str, Any] = {"bias": last.bias is not None, "device": "meta", "dtype": first.weight.dtype}
    if isinstance(first, nn.Linear):
        return nn.Linear(first.in_features, len(last.weight), **options)
    joins: dict[str, Any] = {"kernel_size": math.prod, "stride": math.prod, "padding": sum, "dilation": max}
    geometry: dict[str, Any] = {
        name: tuple(join([getattr(one, name)[axis] for one in layers]) for axis in range(2))
        for name, join in joins.items()
    }
    return nn.Conv2d(first.in_channels, len(last.weight), **geometry, **options)


def _along(value: Any, axis: int, ones: bool) -> Any:
    """A setting of a convolution along one axis only; names of paddings hold for both."""
    if isinstance(value, str):
        return value
    return tuple(one if place == axis else int(ones) for place, one in enumerate(value))


def _check(form: Form, shape: Sequence[int]) -> None:
    """Stop if a layer cannot have a form."""
    limits = most(form.kind, shape)
    if not limits:
        raise SettingError(f"a layer with a weight of {tuple(shape)} has no form {form.kind!r}")
    if len(form.ranks) != len(limits) or not all(
        1 <= rank <= limit for rank, limit in zip(form.ranks, limits, strict=True)
    ):
        expected = " and ".join(map(str, limits))
        raise SettingError(f"ranks of '{form}' for a weight of {tuple(shape)}: expected from 1 to {expected}")


def roots(matrix: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The symmetric root of a matrix, and its inverse; small eigenvalues are raised."""
    if matrix is None:
        return None, None
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp(min=max(float(values[-1]) * FLOOR, 1e-300)).sqrt()
    return (vectors * values) @ vectors.T, (vectors / values) @ vectors.T


def felt(weight: Tensor, root: Tensor | None) -> Tensor:
    """A weight as (inputs, outputs), in units of what errors cost."""
    flat = weight.double().flatten(1)
    return flat.T if root is None else (root @ flat).T


def _product(wanted: Tensor, second: Tensor | None) -> Tensor:
    """Second moments of what a weight computes."""
    found = wanted.T @ (wanted if second is None else second @ wanted)
    return (found + found.T) / 2


def _nested(
    wanted: Tensor, second: Tensor | None, sides: tuple[int, int], ranks: tuple[int, int], rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """First factor (rank, rows), core (rank * taps, rank) and last factor (outputs, rank) of a weight.

    Inputs are (rows, taps). The first factor mixes the rows of each tap alike.
    """
    rows, taps = sides
    table = wanted.reshape(rows, -1)  # (rows, taps * outputs)
    reduced = None if second is None else second.reshape(rows, taps, rows, taps).diagonal(dim1=1, dim2=3).mean(dim=-1)
    root, back = roots(reduced)
    seen = table if root is None else root @ table
    top = torch.linalg.eigh(seen @ seen.T)[1][:, -ranks[0] :]
    first = (top if back is None else back @ top).T
    for turn in range(rounds + 1):
        first = torch.linalg.qr(first.T)[0].T  # only what its rows span matters
        core, last = _core(wanted, second, first, sides, ranks[1])
        if turn < rounds:
            first = _improved(first, core, wanted @ last, second, sides)
    return first, core, last


def _core(
    wanted: Tensor, second: Tensor | None, first: Tensor, sides: tuple[int, int], rank: int
) -> tuple[Tensor, Tensor]:
    """The best core and last factor for a first factor with orthonormal rows."""
    (rows, taps), (few, outputs) = sides, (len(first), wanted.shape[1])
    core = (first @ wanted.reshape(rows, -1)).reshape(few * taps, outputs)
    gram = None
    if second is not None:  # what the projection leaves out is partly made up for
        left = wanted - _spread(first, core, taps)
        half = (first @ second.reshape(rows, -1)).reshape(few * taps, rows * taps)
        gram = (first @ half.reshape(few * taps, rows, taps)).reshape(few * taps, few * taps)
        gram = (gram + gram.T) / 2
        gram.diagonal().add_(RIDGE * gram.diagonal().mean().clamp(min=1e-300))
        core = core + torch.cholesky_solve(half @ left, torch.linalg.cholesky(gram))
    if rank == outputs:
        return core, torch.eye(outputs, dtype=core.dtype)
    last = torch.linalg.eigh(_product(core, gram))[1][:, -rank:]
    return core @ last, last


def _spread(first: Tensor, core: Tensor, taps: int) -> Tensor:
    """The weight (rows * taps, outputs) of a first factor and a core."""
    return (first.T @ core.reshape(len(first), -1)).reshape(first.shape[1] * taps, -1)


def _improved(first: Tensor, core: Tensor, goal: Tensor, second: Tensor | None, sides: tuple[int, int]) -> Tensor:
    """A better first factor for a core, by conjugate gradients."""
    rows, taps = sides
    flat = core.reshape(len(first), -1)

    def slope(weight: Tensor) -> Tensor:
        return flat @ (weight if second is None else second @ weight).reshape(rows, -1).T

    left = slope(goal - _spread(first, core, taps))
    step, size = left, left.square().sum()
    least = 1e-20 * size
    for _ in range(STEPS):
        if size <= least:
            break
        moved = slope(_spread(step, core, taps))
        length = size / (step * moved).sum().clamp(min=1e-300)
        first, left = first + length * step, left - length * moved
        before, size = size, left.square().sum()
        step = left + size / before * step
    return first


def _balanced(weights: list[Tensor]) -> list[Tensor]:
    """The same chain with weights of equal norm on both sides of every channel between two layers."""
    found = [weights[0].contiguous()]
    for after in weights[1:]:
        before, shape = found[-1], (-1, *(1 for _ in after.shape[1:]))
        norms = before.flatten(1).norm(dim=1), after.transpose(0, 1).flatten(1).norm(dim=1)
        alive = (norms[0] > 0) & (norms[1] > 0)
        scale = torch.where(alive, norms[1] / norms[0], torch.ones_like(norms[0])).sqrt()
        found[-1] = before * scale.reshape(shape)
        found.append((after / scale.reshape(1, *shape[:-1])).contiguous())
    return found
