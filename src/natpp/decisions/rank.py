"""A convolution or linear layer as a chain of smaller ones, with ranks in eighths of its channels.

`channel 3/8` has that share of the outputs between the two layers of the chain, `tucker 4/8 6/8` that share of the
inputs and of the outputs, and `spatial 5/8` again a share of the outputs. Where a width takes channels away, the shares
are of what stays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator

import torch
from torch import nn

from natpp.core.decision import Decision
from natpp.decisions.layer import LayerKind
from natpp.decisions.lowrank import Form, chain, cost, most
from natpp.registry import KINDS

EIGHTHS = range(7, 0, -1)
FEWEST = 2  # eighths of the channels between the layers of a Tucker form; fewer lose too much


class Rank(LayerKind):
    """A chain of two or three smaller layers in place of one."""

    used = "asked"
    follows = True

    def options(self, layer: nn.Module) -> Iterator[str]:
        """The ranks that a layer may have, the largest first in each form; only those that make it cheaper."""
        if type(layer) not in (nn.Conv2d, nn.Linear) or getattr(layer, "groups", 1) > 1:
            return
        shape = _shape(layer)
        found = dict[Form, str]()
        for option in shares():
            form = form_of(option, shape)
            if form is not None and _weights(form, shape) < math.prod(shape):
                found.setdefault(form, option)
        yield from found.values()

    def build(self, layer: nn.Module, option: Hashable) -> nn.Module:
        """The chain, with weights from the layer's."""
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        form = form_of(str(option), _shape(layer))
        assert form is not None
        return chain(layer, form)

    def form(self, layer: nn.Module, option: Hashable) -> Form | None:
        """The form, without building it."""
        return form_of(str(option), _shape(layer))

    def cost(self, layer: nn.Module, option: Hashable, shape: torch.Size) -> tuple[int, int]:
        """Parameters and multiply-adds, without building anything."""
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        own = _shape(layer)
        bias, form = layer.bias is not None, form_of(str(option), own)
        if isinstance(layer, nn.Linear):
            size_in = size_out = tuple(shape[:-1])
        else:
            size_in, size_out = (shape[0], *shape[2:]), (shape[0], *_size_out(layer, tuple(shape[2:])))
        if form is None:
            params = math.prod(own)
            return params + own[0] * bias, params * math.prod(size_out)
        return cost(form, own[1], own[0], _kernel(own), size_in, size_out, bias)

    def harm(self, decision: Decision) -> list[float]:
        """The share of the channels that go, as halvings."""
        return [0.0, *(-math.log2(min(_eighths(str(one.value))) / 8) + 0.5 for one in decision.options[1:])]


KINDS.add("rank", Rank())


@functools.cache
def shares() -> tuple[str, ...]:
    """Every option of a layer that has all forms."""
    channel = [f"channel {one}/8" for one in EIGHTHS]
    some = range(7, FEWEST - 1, -1)
    tucker = [f"tucker {one}/8 {other}/8" for one in some for other in range(8, FEWEST - 1, -1)]
    spatial = [f"spatial {one}/8" for one in range(12, 0, -1)]
    return *channel, *tucker, *spatial


@functools.lru_cache(maxsize=1 << 16)
def form_of(option: str, shape: tuple[int, ...]) -> Form | None:
    """The form of an option for a weight of this shape; None if it is not an option, or the layer has no such form."""
    kind, *_ = option.split()
    if kind not in ("channel", "tucker", "spatial") or not (limits := most(kind, shape)):
        return None
    counts = [shape[1], shape[0]] if kind == "tucker" else [min(shape[0], limits[0])]
    wanted = zip(_eighths(option), counts, limits, strict=True)
    return Form(kind, tuple(min(limit, max(1, round(share * count / 8))) for share, count, limit in wanted))


def _eighths(option: str) -> list[int]:
    return [int(one.partition("/")[0]) for one in option.split()[1:]]


def _weights(form: Form, shape: tuple[int, ...]) -> int:
    """The weights of a chain."""
    return cost(form, shape[1], shape[0], _kernel(shape), (1, 1), (1, 1))[0]


def _shape(layer: nn.Module) -> tuple[int, ...]:
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    return tuple(layer.weight.shape)


def _kernel(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[2], shape[3]) if len(shape) == 4 else (1, 1)


def _size_out(layer: nn.Conv2d, size: tuple[int, ...]) -> list[int]:
    """Height and width of what a convolution makes."""
    found = []
    for axis, side in enumerate(size):
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        if layer.padding == "same":
            padding = reach
        else:
            padding = 0 if isinstance(layer.padding, str) else 2 * layer.padding[axis]
        found.append((side + padding - reach - 1) // layer.stride[axis] + 1)
    return found
