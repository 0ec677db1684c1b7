"""What a term of a sum keeps alive outside of the blocks: it goes when the term goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.fx.node import Node
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from natpp.fx.trace import value


def upstream_cost(given: Node, sites: set[Node], parts: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters and multiply-adds of the modules that only feed a value, itself among them.

    Nodes of sites are passed over: they are counted where they stand. Multiply-adds are those of convolutions and
    linear layers.
    """
    dead: set[Node] = set()
    waiting = [given]
    params = madds = 0
    while waiting:
        node = waiting.pop()
        if node in dead or node.op == "placeholder" or (node is not given and not set(node.users) <= dead):
            continue
        dead.add(node)
        waiting += node.all_input_nodes
        if node.op == "call_module" and node not in sites:
            module = parts[str(node.target)]
            params += sum(parameter.numel() for parameter in module.parameters())
            madds += _madds(module, node)
    return params, madds


def _madds(module: nn.Module, node: Node) -> int:
    made, read = value(node), value(node.all_input_nodes[0]) if node.all_input_nodes else None
    if not isinstance(made, Tensor) or not isinstance(read, Tensor):
        return 0
    if isinstance(module, _ConvTransposeNd):
        return int(module.weight.numel() * math.prod(read.shape[2:]) * read.shape[0])
    if isinstance(module, _ConvNd):
        return int(module.weight.numel() * math.prod(made.shape[2:]) * made.shape[0])
    if isinstance(module, nn.Linear):
        return int(module.weight.numel() * math.prod(made.shape[:-1]))
    return 0
