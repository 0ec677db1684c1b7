"""What a value keeps alive outside of the blocks: it would go with the value's last reader."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch import nn
from torch.fx.node import Node


def feeds_learned(given: Node, sites: Set[Node], parts: Mapping[str, Any]) -> bool:
    """Whether parameters outside of sites only serve to make a value."""
    dead: set[Node] = set()
    waiting = [given]
    while waiting:
        node = waiting.pop()
        if node in dead or node.op == "placeholder" or (node is not given and not set(node.users) <= dead):
            continue
        dead.add(node)
        waiting += node.all_input_nodes
        if node not in sites and _learned(node, parts):
            return True
    return False


def _learned(node: Node, parts: Mapping[str, Any]) -> bool:
    part = parts[str(node.target)] if node.op in ("call_module", "get_attr") else None
    return isinstance(part, nn.Parameter) or (isinstance(part, nn.Module) and any(True for _ in part.parameters()))
