"""What must go on being read, so that nothing that was learned outside of blocks is computed in vain or goes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch import fx, nn
from torch.fx.node import Node

from natpp.fx.sites import mutated

LOOKS = ("shape", "size", "ndim", "dim", "dtype", "device")


def idle(graph: fx.Graph, parts: Mapping[str, Any]) -> set[Node]:
    """Nodes that lead nowhere, such as checks of a size: they keep nothing alive."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        calls = node.op.startswith("call_") and mutated(node, parts) is None
        if calls and set(node.users) <= found:
            found.add(node)
    return found


def way_out(graph: fx.Graph, sites: Set[Node], parts: Mapping[str, Any]) -> dict[Node, Node]:
    """For all that is learned outside of sites one way from it to the output: per value, the reader it goes on by.

    Ways also begin where somebody looks at the shape of a value: it would be computed for its shape alone.
    """
    nowhere = idle(graph, parts)
    readers = {node: [one for one in node.users if one not in nowhere and not _looks(one)] for node in graph.nodes}
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        looked_at = node.op != "placeholder" and any(_looks(one) for one in node.users if one not in nowhere)
        begins = looked_at or (node not in sites and _learned(node, parts))
        while begins and node not in found and readers[node]:
            found[node] = min(readers[node])
            node = found[node]
    return found


def _looks(node: Node) -> bool:
    """Whether a node looks at the shape or kind of a value, not at what is in it."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in LOOKS
    return node.op == "call_method" and node.target in LOOKS


def _learned(node: Node, parts: Mapping[str, Any]) -> bool:
    part = parts[str(node.target)] if node.op in ("call_module", "get_attr") else None
    return isinstance(part, nn.Parameter) or (isinstance(part, nn.Module) and any(True for _ in part.parameters()))
