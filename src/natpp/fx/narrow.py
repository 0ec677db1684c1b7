"""Layers and tensors with fewer channels."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Stays = NDArray[np.int64]  # the positions of a dimension that stay


def narrowed(layer: nn.Module, sides: Sequence[tuple[str, int, Stays]], *, bare: bool = False) -> nn.Module:
    """A layer with only some positions of some dimensions of its tensors, which are given by name.

    `bare`: without data, on the meta device.
    """
    if bare:
        layer = bare_copy(layer)
    made: Any = copy.deepcopy(layer, {id(one): one for one in (*layer.parameters(), *layer.buffers())})
    by_name: dict[str, list[tuple[int, Stays]]] = defaultdict(list)
    for name, dim, stays in sides:
        by_name[name].append((dim, stays))
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        home, _, own = name.rpartition(".")
        setattr(made.get_submodule(home), own, selected(tensor, by_name.get(name, [])))
    if isinstance(made, nn.Linear):
        made.out_features, made.in_features = made.weight.shape
    elif isinstance(made, nn.modules.conv._ConvNd):
        if made.groups > 1 and made.groups == made.in_channels:
            made.groups = made.weight.shape[0] * made.groups // made.out_channels
        made.out_channels, made.in_channels = made.weight.shape[0], made.weight.shape[1] * made.groups
    else:
        count = len(sides[0][2])
        for name in ("num_features", "num_channels", "num_parameters"):
            if hasattr(made, name):
                setattr(made, name, count)
        if isinstance(made, nn.LayerNorm):
            made.normalized_shape = (count,)
    return made  # type: ignore[no-any-return]


def bare_copy(layer: nn.Module) -> nn.Module:
    """A copy of a layer without data, on the meta device."""
    return copy.deepcopy(layer, {id(one): _bare(one) for one in (*layer.parameters(), *layer.buffers())})


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the meta device."""
    bare = tensor.detach().to("meta")
    return nn.Parameter(bare, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare


def selected(tensor: Tensor, cut: Sequence[tuple[int, Stays]]) -> Tensor:
    """A copy of a parameter or buffer with only some positions of some dimensions."""
    found = tensor.detach()
    for dim, stays in cut:
        found = found.index_select(dim, torch.from_numpy(stays).to(found.device))
    flipped = (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    )
    found = found.clone(memory_format=torch.channels_last if flipped else torch.contiguous_format)
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found
