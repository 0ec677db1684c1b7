"""A module's forward as a graph in which every node knows its value."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from natpp.errors import NatppError

VALUE = "natpp_value"  # the key of a node's fake value in its meta


class TraceError(NatppError):
    """A module whose forward cannot be followed."""


@dataclass(frozen=True)
class Traced:
    """A module's forward as a graph; the module itself is not changed and not copied."""

    module: nn.Module
    graph: fx.Graph
    """every node's meta has its fake value"""
    parts: Mapping[str, Any]
    """the modules, parameters and buffers that the graph names"""
    example: Any
    notes: tuple[str, ...] = ()
    """what could not be looked into, and why"""


def copied(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of modules, parameters and buffers that share with each other what they shared before."""
    kept = [held for part in parts.values() if isinstance(part, nn.Module) for held in _kept_tensors(part)]
    known: dict[int, Any] = {id(held): held.detach().clone() for held in kept}  # torch does not copy them
    with torch.no_grad():  # else parameters of modules compiled by torch.jit are none any more
        copies: dict[str, Any] = copy.deepcopy(dict(parts), known)
    for path, part in parts.items():
        if isinstance(part, nn.Module):
            for old, new in zip(part.parameters(), copies[path].parameters(), strict=True):
                new.requires_grad_(old.requires_grad)
    return copies


def _kept_tensors(module: nn.Module) -> Iterator[Tensor]:
    """What modules keep of a pass with gradients, such as the weight of a weight norm."""
    for part in module.modules():
        yield from (held for held in vars(part).values() if isinstance(held, Tensor) and not held.is_leaf)


def value(node: Node) -> Any:
    """The fake value of a node: a tensor without data, or a plain value."""
    return node.meta.get(VALUE)


def parameters_of(node: Node, parts: Mapping[str, Any]) -> list[nn.Parameter]:
    """The parameters that a node brings along: those of the module it calls, or itself."""
    part = parts.get(str(node.target)) if node.op in ("call_module", "get_attr") else None
    return list(part.parameters()) if isinstance(part, nn.Module) else [part] if isinstance(part, nn.Parameter) else []


def batch_of(example: Any) -> int:
    """The size of the batch that an example input is."""
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return int(tensors[0].shape[0]) if tensors else 1
