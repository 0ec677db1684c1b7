"""Convolutions and linear layers that a forward computes with a function, as calls of plain layers.

A layer with a forward of its own, such as a convolution that pads as TensorFlow does, calls the function on its own
weight and bias. As a call of a plain layer with the same tensors it can be changed and fitted like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.fx.node import Node
from torch.nn import functional as F

from natpp.fx.forms import arguments_of
from natpp.fx.traced import part_at

CONVOLUTION = "input weight bias stride padding dilation groups", (None, None, None, 1, 0, 1, 1)
LINEAR = "input weight bias", (None, None, None)


def with_layers(module: nn.Module, graph: fx.Graph, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a graph, in which functions of a module's own weights became calls of plain layers, in place."""
    found = dict(parts)
    for node in list(graph.nodes):
        names, defaults = {F.conv2d: CONVOLUTION, F.linear: LINEAR}.get(node.target, ("", ()))
        if node.op != "call_function" or not names:
            continue
        given = arguments_of(node, names, defaults)
        path = _owner(module, given["weight"], given["bias"], found)
        source, options = given["input"], {name: given[name] for name in given.keys() - {"input", "weight", "bias"}}
        if path is None or not isinstance(source, Node) or not all(map(_constant, options.values())):
            continue
        found[path] = _layer(found, path, given["bias"] is not None, options)
        _move_parts(graph, found, path)
        with graph.inserting_before(node):
            made = graph.create_node("call_module", path, (source,), {})
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        for one in (given["weight"], given["bias"]):
            if one is not None:
                graph.erase_node(one)
                del found[str(one.target)]
    return found


def _move_parts(graph: fx.Graph, parts: dict[str, Any], path: str) -> None:
    """Call the parts of what became a plain layer, such as a padding, from beside it."""
    for inner in [one for one in parts if one.startswith(f"{path}.") and isinstance(parts[one], nn.Module)]:
        beside = f"{path}_{inner.removeprefix(path + '.').replace('.', '_')}"
        while any(f"{one}.".startswith(f"{beside}.") for one in parts):
            beside += "_"
        parts[beside] = parts.pop(inner)
        for node in graph.nodes:
            if node.op == "call_module" and node.target == inner:
                node.target = beside


def _owner(module: nn.Module, weight: Any, bias: Any, parts: Mapping[str, Any]) -> str | None:
    """The path of the module whose `weight` and `bias` these are, if nothing else in the graph reads it."""
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    if not all(isinstance(one, Node) and one.op == "get_attr" and len(one.users) == 1 for one in tensors.values()):
        return None
    path = str(weight.target).removesuffix(".weight")
    if any(str(one.target) != f"{path}.{name}" for name, one in tensors.items()) or path in parts:
        return None
    owner = part_at(module, path)
    own = {name for name, held in owner.named_parameters() if held is not None} | dict(owner.named_buffers()).keys()
    alone = isinstance(owner, nn.Conv2d | nn.Linear) and own == tensors.keys()
    return path if alone and not _called_often(weight) else None


def _called_often(weight: Node) -> bool:
    """Whether another node of the graph reads the same tensor."""
    readers = [node for node in weight.graph.nodes if node.op == "get_attr" and node.target == weight.target]
    return len(readers) > 1


def _constant(value: Any) -> bool:
    """Whether an argument is the same in every call."""
    return isinstance(value, int | str) or (
        isinstance(value, tuple | list) and all(isinstance(one, int) for one in value)
    )


def _layer(parts: Mapping[str, Any], path: str, bias: bool, options: Mapping[str, Any]) -> nn.Module:
    """A plain layer with the weight and bias at a path."""
    weight, sizes = parts[f"{path}.weight"], {name: _pair(value) for name, value in options.items()}
    made: nn.Module
    if weight.dim() == 2:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, device="meta")
    else:
        groups = options["groups"]
        channels = weight.shape[1] * groups, weight.shape[0]
        geometry = tuple(weight.shape[2:]), sizes["stride"], sizes["padding"], sizes["dilation"]
        made = nn.Conv2d(*channels, *geometry, groups, bias, device="meta")
    made.weight = weight
    if bias:
        made.bias = parts[f"{path}.bias"]
    return made


def _pair(value: Any) -> Any:
    """A setting of a convolution as its constructor takes it."""
    return tuple(value) * (3 - len(value)) if isinstance(value, tuple | list) else value
