"""The layers of a module before and after a plan: what each one is and what it costs, as JSON data.

Costs are counted node by node while both modules run on the example input, so they add up to those of the result. A
norm counts with the layer before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._pytree import tree_map

from natpp.arch.modules import FactorizedConv2d
from natpp.core.result import Result
from natpp.fx.moves import name_of, operand
from natpp.fx.rewrite import STANDS
from natpp.fx.traced import Traced, parameters_of, part_at
from natpp.nets.measure import MultiplyAdds, unfused, untouched

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
POOLS = ((nn.MaxPool2d, "max pool"), (nn.AvgPool2d, "average pool"))
REST = "everything else"
Part = dict[str, Any]  # what one layer of a chain is: its `op`, and its `channels` in and out where they are known
Find = Callable[[str], Any]  # the module, parameter or buffer at a path


class Layer(NamedTuple):
    """A layer of one module."""

    parts: list[Part]
    cost: list[int]
    """parameters and multiply-adds"""


def layers_of(result: Result) -> list[dict[str, Any]]:
    """Per layer its name, and its parts, parameters and multiply-adds before and after, in network order."""
    subject: Any = result.subject
    homes, like = _homes(subject.traced), _like(subject.given)
    known = STANDS in getattr(result.after, "meta", {})  # or else another module has taken its place
    after = result.after if known else subject.rewritten(result.plan)
    modules = subject.rewritten((0,) * len(result.plan)), after
    sides = [_layers(one, _moved(subject.traced.example, like, _like(one)), homes) for one in modules]
    costs = [(cost.live_params, cost.live_madds) for cost in (result.cost_before, result.cost_after)]
    for side, whole in zip(sides, costs, strict=True):
        counted = (sum(layer.cost[figure] for layer in side.values()) for figure in (0, 1))
        side[REST] = Layer([], [one - other for one, other in zip(whole, counted, strict=True)])
    found, none = [], Layer([], [0, 0])
    for name in _in_order(*sides):
        before, after = (side.get(name, none) for side in sides)
        if before != after or any(before.cost):
            pairs = zip(("params", "madds"), zip(before.cost, after.cost, strict=True), strict=True)
            own = {"name": name, "before": before.parts, "after": after.parts}
            found.append(own | {figure: list(pair) for figure, pair in pairs})
    return found


def _in_order(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The names on both sides; new ones come after the layer that they follow."""
    found, place = list(before), 0
    for name in after:
        if name not in found:
            found.insert(place, name)
        place = found.index(name) + 1
    return found


def _layers(module: fx.GraphModule, example: Any, homes: Mapping[str, str]) -> dict[str, Layer]:
    """The layers of a module by name; a parameter counts where it is first used."""
    madds, stands, names = _madds(module, example), module.meta[STANDS], set(homes.values())
    find = functools.partial(part_at, module)
    found: dict[str, Layer] = {}
    counted: set[int] = set()  # parameters, by identity
    for node in module.graph.nodes:
        own, part = _own_name(node, find), _part(node, find)
        known = homes.get(stands.get(node.name, ""))
        name = known or next((one for one in _upwards(own) if one in names), own)
        layer = found.setdefault(name, Layer([], [0, 0]))
        held = {id(one): one.numel() for one in parameters_of(node, {str(node.target): part})}
        layer.cost[0] += sum(size for key, size in held.items() if key not in counted)
        layer.cost[1] += madds.get(node, 0)
        if not (isinstance(part, NORMS) and name != own) and (part is None or id(part) not in counted):
            layer.parts.extend(_parts(node, part, find))
        counted |= {*held, id(part)}
    return {name: layer for name, layer in found.items() if layer.parts or any(layer.cost)}


def _madds(module: fx.GraphModule, example: Any) -> dict[Node, int]:
    """Multiply-adds of every node that has some."""
    found: dict[Node, int] = {}

    class Counting(fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            with MultiplyAdds() as counter:
                made = super().run_node(n)
            if counter.total:
                found[n] = counter.total
            return made

    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    given = inspect.signature(module.forward).bind(*(args if isinstance(args, tuple | list) else (args,)), **kwargs)
    given.apply_defaults()
    with untouched(module), unfused(module):
        Counting(module).run(*given.args, *given.kwargs.values())
    return found


# Names.


def _homes(traced: Traced) -> dict[str, str]:
    """The layer that every node of a trace belongs to, both by name; a norm belongs to the layer that it reads."""
    found: dict[str, str] = {}
    weighted: set[str] = set()
    for node in traced.graph.nodes:
        part = traced.parts.get(str(node.target))
        read = found.get(node.all_input_nodes[0].name, "") if node.all_input_nodes else ""
        own = _own_name(node, traced.parts.get)
        found[node.name] = read if isinstance(part, NORMS) and read in weighted else own
        if isinstance(part, _ConvNd | nn.Linear):
            weighted.add(own)
    return found


def _own_name(node: Node, find: Find) -> str:
    """The path of a module, or of the one whose parameter a function reads; otherwise the name of the node."""
    if node.op == "call_module":
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[0] or str(node.target)
    weights = (one for one in node.all_input_nodes if isinstance(_part(one, find), nn.Parameter))
    return next((_own_name(one, find) for one in weights), node.name)


def _upwards(path: str) -> Iterator[str]:
    """A path and those of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _part(node: Node, find: Find) -> Any:
    """The module, parameter or buffer that a node names."""
    return find(str(node.target)) if node.op in ("call_module", "get_attr") else None


# What a layer is.


def _parts(node: Node, part: Any, find: Find) -> list[Part]:
    """The layers that a node computes."""
    if isinstance(part, nn.Module):
        return list(_of_module(part))
    name, weight = name_of(node), _part(node.all_input_nodes[1], find) if len(node.all_input_nodes) > 1 else None
    if not isinstance(weight, nn.Parameter) or name not in ("conv1d", "conv2d", "conv3d", "linear"):
        return []
    groups = operand(node, 6, "groups") or 1 if name != "linear" else 1
    return [_weighted(weight.shape[2:], weight.shape[1] * groups, weight.shape[0], groups)]


def _of_module(module: nn.Module) -> Iterator[Part]:
    """The layers in a module that have parameters or pool; an unknown module is one layer."""
    if isinstance(module, nn.Sequential):
        for one in module:
            yield from _of_module(one)
    elif isinstance(module, _ConvNd):
        channels, groups = (module.in_channels, module.out_channels), module.groups
        yield _weighted(module.kernel_size, *channels, groups, turned=isinstance(module, _ConvTransposeNd))
    elif isinstance(module, nn.Linear):
        yield _weighted((), module.in_features, module.out_features)
    elif isinstance(module, FactorizedConv2d):
        last = [one for one in (module.conv_1, module.conv_2) if one is not None]
        channels = last[0].in_channels, sum(one.out_channels for one in last)
        yield {"op": "factorized 1x1", "channels": list(channels)}
    elif (pool := next((name for kind, name in POOLS if isinstance(module, kind)), None)) is not None:
        size = module.kernel_size
        yield {"op": f"{pool} {'x'.join(map(str, size if isinstance(size, tuple) else (size, size)))}"}
    elif isinstance(module, NORMS):
        scale = module.weight
        yield {"op": "norm"} | ({} if scale is None else {"channels": [scale.numel()]})
    elif any(True for _ in module.parameters()):
        yield {"op": type(module).__name__}


def _weighted(kernel: Sequence[int], inputs: int, outputs: int, groups: int = 1, *, turned: bool = False) -> Part:
    """A convolution, or without a kernel a linear layer."""
    words = ["x".join(map(str, kernel)) if len(kernel) != 1 else f"width {kernel[0]}"] if kernel else ["linear"]
    words += ["transposed"] if turned else []
    words += ["depthwise"] if groups == inputs > 1 else [f"in {groups} groups"] if groups > 1 else []
    return {"op": " ".join(words), "channels": [inputs, outputs]}


# Inputs.


def _like(module: nn.Module) -> Tensor:
    """A tensor on the device and of the type that a module computes with."""
    return next((one for one in module.parameters() if one.is_floating_point()), torch.empty(0))


def _moved(example: Any, before: Tensor, after: Tensor) -> Any:
    """An example of a module as one for its result, which may have been moved or converted since."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        converts = leaf.is_floating_point() and before.dtype != after.dtype
        return leaf.to(after.device, after.dtype if converts else leaf.dtype, copy=True)

    return tree_map(moved, example)
