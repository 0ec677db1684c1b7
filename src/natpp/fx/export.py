"""The second way to trace: `torch.export`, for a forward that `torch.fx` cannot follow.

The exported graph is flat: nodes from one layer of `torch.nn` become a call of that layer again.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from natpp.fx.fake import Values
from natpp.fx.traced import VALUE, part_at


def exported(module: nn.Module, arguments: inspect.BoundArguments) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of a module in its current mode, and the parts it names; the batch size may change later."""
    given = _named(arguments)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # export prints its failures here
        warnings.simplefilter("ignore")  # torch's internal warnings
        try:
            program = torch.export.export(module, (), given, dynamic_shapes=tree_map(_any_batch, given), strict=False)
        except Exception:  # probably a fixed batch size; any other cause raises again below
            program = torch.export.export(module, (), given, strict=False)
        flat: Any = program.module()
    graph = _Layers(module, flat.graph, program.call_spec.out_spec).graph(given)
    paths = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
    return graph, {path: _found(module, flat, path) for path in paths}


def evaluate(graph: fx.Graph, parts: dict[str, Any], arguments: inspect.BoundArguments) -> None:
    """Put the fake value of every node into its meta."""
    values = Values(parts.__getitem__)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta[VALUE] = values.fake(arguments.arguments[str(node.target)])
        elif node.op != "output":
            node.meta[VALUE] = values.of(node)


class _Layers:
    """A flat graph in which the operations of a layer are replaced by a call of the layer."""

    def __init__(self, module: nn.Module, flat: fx.Graph, out_spec: Any):
        self.module, self.flat, self.out_spec = module, flat, out_spec
        self.groups: dict[Node, tuple[str, list[Node]]] = {}  # per node: the layer it came from, with all of its nodes
        calls = [node for node in flat.nodes if node.op not in ("get_attr", "placeholder", "output")]
        for layer, nodes in itertools.groupby(calls, key=self._layer):
            group = list(nodes)
            if layer is not None:
                self.groups.update(dict.fromkeys(group, (layer[1], group)))

    def graph(self, given: Mapping[str, Any]) -> fx.Graph:
        """The graph, with the arguments and the outputs of the module itself."""
        made, new = fx.Graph(), dict[Node, Node]()
        tops = {}
        for name, parameter in inspect.signature(self.module.forward).parameters.items():
            if name in given:
                tops[name] = made.placeholder(name)
                continue
            default = made.placeholder(name, default_value=parameter.default)
            held = made.call_function(operator.is_, (default, parameter.default))
            said = f"{name} was {parameter.default!r} when this module was traced: give the same"
            made.call_function(torch._assert, (held, said))
        read = [leaf for name, top in tops.items() for leaf in _leaves(made, top, given[name])]
        places = [node for node in self.flat.nodes if node.op == "placeholder"]
        new.update(zip(places, read, strict=True))
        for node in self.flat.nodes:
            if node.op in ("placeholder", "call_module"):
                continue  # given above; the guards of the export
            if node.op == "output":
                flat: Any = node.args[0]
                leaves = [new[leaf] if isinstance(leaf, Node) else leaf for leaf in flat]
                made.output(tree_unflatten(leaves, self.out_spec))
                continue
            path, group = self.groups.get(node, ("", []))
            ends = self._ends(group) if group else None
            if ends is None:
                new[node] = made.node_copy(node, new.__getitem__)
            elif node is ends[1]:
                new[node] = made.call_module(path, (new[ends[0]],))
            else:
                continue
            stack = node.meta.get("nn_module_stack") or {}
            new[node].meta = {"nn_module_stack": {key: one for key, one in stack.items() if one[0]}}
        for node in reversed(made.nodes):
            if node.op == "get_attr" and not node.users:
                made.erase_node(node)
        return made

    def _layer(self, node: Node) -> tuple[str, str] | None:
        """The call and the path of the layer of `torch.nn` that a node came from, if it did."""
        stack = list((node.meta.get("nn_module_stack") or {}).items())
        if not stack or not stack[-1][1][0]:
            return None
        key, (path, _) = stack[-1]
        try:
            part = self.module.get_submodule(path)
        except AttributeError:
            return None
        home = getattr(type(part).forward, "__module__", "") or ""
        own = home.startswith("torch.nn.") and not isinstance(part, nn.Sequential | nn.ModuleList)
        return (key, path) if own else None

    def _ends(self, group: list[Node]) -> tuple[Node, Node] | None:
        """The input and the output of a layer, if it has one of each."""
        inside = set(group)
        read = {other for node in group for other in node.all_input_nodes if other not in inside}
        read = {other for other in read if other.op != "get_attr"}
        given = [node for node in group if not set(node.users) <= inside]
        return (read.pop(), given[0]) if len(read) == 1 and len(given) == 1 and given[0] is group[-1] else None


def _named(arguments: inspect.BoundArguments) -> dict[str, Any]:
    """The tensors among the arguments, by name; all others must have their defaults."""
    given = {}
    for name, parameter in arguments.signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError("its forward takes any number of arguments")
        value = arguments.arguments[name]
        if all(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            given[name] = value
        elif value is not parameter.default:
            raise ValueError(f"its argument {name} is not a tensor and differs from its default")
    return given


def _leaves(graph: fx.Graph, node: Node, given: Any) -> list[Node]:
    """Nodes of the tensors of an argument."""
    if isinstance(given, Tensor):
        return [node]
    keys = list(given) if isinstance(given, dict) else range(len(given))
    parts = ((graph.call_function(operator.getitem, (node, key)), given[key]) for key in keys)
    return [leaf for part, inside in parts for leaf in _leaves(graph, part, inside)]


def _any_batch(leaf: Any) -> Any:
    """The first dimension of a tensor may differ from call to call."""
    return {0: Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] > 1 else None


def _found(module: nn.Module, flat: nn.Module, path: str) -> Any:
    try:
        return part_at(module, path)
    except AttributeError:
        return part_at(flat, path)
