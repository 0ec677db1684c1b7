"""Training mode and eval mode compared: what differs between the two becomes a `ByMode`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import Node

from natpp.fx.traced import CONSTANT, VALUE, TraceError

Difference = tuple[Node, tuple[Any, ...], Any, Any]  # node, path into its arguments, in training mode, in eval mode
CONSTANTS = (bool, int, float, str, type(None))


class ByMode(nn.Module):
    """A constant with one value in training mode and another in eval mode."""

    def __init__(self, training: Any, otherwise: Any):
        super().__init__()
        self.in_training = training
        self.otherwise = otherwise

    def forward(self) -> Any:
        return self.in_training if self.training else self.otherwise


class OtherWay(Exception):
    """The forward takes a different path in training mode than in eval mode."""


def by_mode(graph: fx.Graph, differences: Sequence[Difference]) -> dict[str, nn.Module]:
    """Put a `ByMode` wherever a constant differs; returns the new modules by name."""
    made: dict[str, nn.Module] = {}
    for number, (node, path, training, otherwise) in enumerate(differences):
        name = f"by_mode_{number}"
        made[name] = ByMode(training, otherwise)
        with graph.inserting_before(node):
            constant = graph.call_module(name)
        constant.meta |= {VALUE: otherwise, "nn_module_stack": node.meta.get("nn_module_stack")}
        slot, *rest = path
        setattr(node, slot, _replaced(getattr(node, slot), rest, constant))
    return made


def _differing(mine: Any, theirs: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """The constants that differ in two trees of arguments; anything else may not differ."""
    if isinstance(mine, Node) or isinstance(theirs, Node):
        if not (isinstance(mine, Node) and isinstance(theirs, Node) and mine.meta.get("twin") is theirs):
            raise OtherWay
    elif isinstance(mine, (tuple, list)) and isinstance(theirs, (tuple, list)) and len(mine) == len(theirs):
        for index, pair in enumerate(zip(mine, theirs, strict=True)):
            yield from _differing(*pair, (*path, index))
    elif isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for key in mine:
            yield from _differing(mine[key], theirs[key], (*path, key))
    elif isinstance(mine, slice) and isinstance(theirs, slice):
        for name in ("start", "stop", "step"):
            if getattr(mine, name) != getattr(theirs, name) and not isinstance(getattr(mine, name), Node):
                raise OtherWay
    elif isinstance(mine, CONSTANTS) and isinstance(theirs, CONSTANTS):
        if mine != theirs:
            yield path, mine, theirs
    elif type(mine) is not type(theirs) or not (mine is theirs or mine == theirs):
        raise OtherWay


def _replaced(tree: Any, path: list[Any], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(tree, dict):
        return {**tree, first: _replaced(tree[first], rest, new)}
    changed = [*tree[:first], _replaced(tree[first], rest, new), *tree[first + 1 :]]
    return tuple(changed) if isinstance(tree, tuple) else changed


def same_target(first: Any, second: Any) -> bool:
    if isinstance(first, str) and isinstance(second, str) and first.startswith(CONSTANT):
        return second.startswith(CONSTANT)  # numbered anew in every pass
    return bool(first is second or first == second)


@contextlib.contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The whole module in one mode; afterwards every part is restored, even attributes that the forward set."""
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    modes = {part: part.training for part in module.modules()}
    before = [(vars(part), dict(vars(part))) for part in parts]
    contents = [
        (held, dict(held) if isinstance(held, dict) else list(held))
        for _, kept in before
        for held in kept.values()
        if isinstance(held, dict | list | set)
    ]
    try:
        try:
            module.train(training)
        except NotImplementedError:
            told = "comes from torch.export and has no modes: give the module that was exported"
            raise TraceError(f"{type(module).__name__} {told}") from None
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for now, kept in before:
            now.clear()
            now.update(kept)
        for held, content in contents:
            held.clear()
            (held.extend if isinstance(held, list) else held.update)(content)


def switches_itself(module: nn.Module) -> bool:
    """Whether a part overrides `train()` or `training`, so its forward may know the mode without reading it."""
    return any(
        type(part).train is not nn.Module.train or "train" in vars(part) or hasattr(type(part), "training")
        for part in module.modules()
    )


def differences_of(graph: fx.Graph, twin: fx.Graph) -> list[Difference]:
    """Constants that differ between a graph and its twin in training mode."""
    if len(graph.nodes) != len(twin.nodes):
        raise OtherWay
    found: list[Difference] = []
    for node, other in zip(graph.nodes, twin.nodes, strict=True):
        if node.op != other.op or not same_target(node.target, other.target):
            raise OtherWay
        compare(other, node, found)
    return found


def compare(node: Node, twin: Node, found: list[Difference]) -> None:
    """Add the constants in which a node in training mode differs from its twin in eval mode."""
    node.meta["twin"] = twin
    for slot in ("args", "kwargs"):
        for path, mine, theirs in _differing(getattr(node, slot), getattr(twin, slot), (slot,)):
            found.append((twin, path, mine, theirs))
