"""A module's forward as a graph in which every node knows its value."""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from natpp.errors import NatppError

VALUE = "natpp_value"  # the key of a node's fake value in its meta
CONSTANT = "_tensor_constant"  # how torch.fx names tensors that a forward computes without its inputs
EMPTY = (dict, OrderedDict, set)  # `copied` creates these anew if they are empty


class TraceError(NatppError):
    """A module whose forward cannot be traced."""


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
    """what could not be traced, and why"""
    found: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """what was found out about the graph, by what it is, so that nothing is found out twice"""


def part_at(module: nn.Module, path: str) -> Any:
    """The submodule, parameter, buffer or other attribute at a path."""
    return operator.attrgetter(path)(module)


def copied(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of modules, parameters and buffers; what they shared, the copies share."""
    known: dict[int, Any] = {}
    compiled = []
    for path, part in parts.items():
        for one in part.modules() if isinstance(part, nn.Module) else ():
            if isinstance(one, torch.jit.ScriptModule):
                compiled.append(path)
            for held in vars(one).values():
                if type(held) in EMPTY and not held:
                    known[id(held)] = type(held)()  # mostly a layer's empty hook dicts
                elif isinstance(held, Tensor) and not held.is_leaf:  # of a pass with gradients, as weight norm keeps
                    known[id(held)] = held.detach().clone()  # torch does not copy them
    with torch.no_grad():  # otherwise parameters of torch.jit modules stop being parameters
        copies: dict[str, Any] = copy.deepcopy(dict(parts), known)
    for path in compiled:  # torch.jit modules lose requires_grad under no_grad
        for old, new in zip(parts[path].parameters(), copies[path].parameters(), strict=True):
            new.requires_grad_(old.requires_grad)
    return copies


def some_of(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def value(node: Node) -> Any:
    """The fake value of a node: a tensor without data, or a plain value."""
    return node.meta.get(VALUE)


def parameters_of(node: Node, parts: Mapping[str, Any]) -> list[nn.Parameter]:
    """The parameters of a node: those of the module it calls, or the parameter it reads."""
    part = parts.get(str(node.target)) if node.op in ("call_module", "get_attr") else None
    return list(part.parameters()) if isinstance(part, nn.Module) else [part] if isinstance(part, nn.Parameter) else []


def batch_of(example: Any) -> int:
    """The batch size of an example input."""
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return int(tensors[0].shape[0]) if tensors else 1
