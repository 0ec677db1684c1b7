"""Which values and tensors are shared or changed in place, and which values must be read."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import Node

from natpp.fx.traced import Traced

LOOKS = ("shape", "size", "ndim", "dim", "dtype", "device")
IN_PLACE = {getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ipow", "setitem")}


def mutated(node: Node, parts: Any) -> Node | None:
    """The value that a node changes in place, if any."""
    first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if node.op == "call_module":
        return first if getattr(parts.get(node.target), "inplace", False) is True else None
    if node.op not in ("call_function", "call_method"):
        return None
    out = node.kwargs.get("out")
    if isinstance(out, Node):
        return out
    if isinstance(node.target, torch._ops.OpOverload):
        return first if node.target._schema.is_mutable else None
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.target in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or name == "__iadd__"
    return first if in_place or node.kwargs.get("inplace") is True else None


def changed_values(graph: fx.Graph, parts: Mapping[str, Any]) -> set[Node]:
    """Values that are changed in place and read afterwards: rewriting must not touch them."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    found = set()
    for node in graph.nodes:
        given = mutated(node, parts)
        if given is not None and any(position[reader] > position[node] for reader in given.users):
            found |= {given, node}
    return found


def shared_tensors(traced: Traced) -> set[int]:
    """Tensors that more than one module holds, or that the forward also reads by itself."""
    holders = Counter(
        id(tensor)
        for module in traced.module.modules()
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    )
    shared = {key for key, count in holders.items() if count > 1}
    called = {node.target for node in traced.graph.nodes if node.op == "call_module"}
    for node in traced.graph.nodes:
        if node.op == "get_attr" and str(node.target).rpartition(".")[0] in called:
            shared.add(id(traced.parts[node.target]))
    return shared


def idle(graph: fx.Graph, parts: Mapping[str, Any]) -> set[Node]:
    """Nodes whose output is unused, such as checks of a size: they keep nothing alive."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        calls = node.op.startswith("call_") and mutated(node, parts) is None
        if calls and set(node.users) <= found:
            found.add(node)
    return found


def must_be_read(graph: fx.Graph, sites: Set[Node], parts: Mapping[str, Any]) -> set[Node]:
    """Outputs of learned layers outside of sites, and values whose shape is read: none is computed for that alone."""
    nowhere = idle(graph, parts)
    found: set[Node] = set()
    for node in graph.nodes:
        readers = [one for one in node.users if one not in nowhere]
        looks = [looks_at(one) for one in readers]
        outside = node not in sites and not (node.op == "get_attr" and set(readers) <= sites)
        begins = (outside and _learned(node, parts)) or (node.op != "placeholder" and any(looks))
        if begins and not all(looks):
            found.add(node)
    return found


def looks_at(node: Node) -> bool:
    """Whether a node reads only the shape, dtype or device of a value, not its data."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in LOOKS
    return node.op == "call_method" and node.target in LOOKS


def _learned(node: Node, parts: Mapping[str, Any]) -> bool:
    part = parts[str(node.target)] if node.op in ("call_module", "get_attr") else None
    return isinstance(part, nn.Parameter) or (isinstance(part, nn.Module) and any(True for _ in part.parameters()))
