"""A traced module that runs node by node on several batches, so that values can be read on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Node, map_arg

from natpp.errors import SettingError
from natpp.fx.aliasing import mutated

AT_ONCE, PARTS = 128, 8  # most inputs in a batch, and fewest batches, whatever batches were given


class Run:
    """A module that runs node by node on several batches; a value is freed after its last reader."""

    def __init__(self, module: fx.GraphModule, batches: Sequence[tuple[Any, ...]]):
        self.module, self.order = module, list(module.graph.nodes)
        self.at = {node: number for number, node in enumerate(self.order)}
        self.names = [node for node in self.order if node.op == "placeholder"]
        self.parts = dict(module.named_modules())
        self.values: dict[Node, list[Any]] = {}
        self.waiting = {node: set(node.users) for node in self.order}
        self.batches, self.place = batches, 0
        self.done: Collection[Node] = ()  # nodes that are not run: their values were given, or nothing reads them here

    def until(self, node: Node) -> None:
        """Run everything up to a node."""
        while self.place <= self.at[node]:
            self.step(self.order[self.place])

    def need(self, node: Node) -> list[Any]:
        """The values of a node, which is run out of order if it has not run yet; they are kept."""
        if node not in self.values:
            for one in node.all_input_nodes:
                self.need(one)
            self._run(node)
        return self.values[node]

    def step(self, node: Node) -> None:
        """Run one node, and free what nothing reads any more."""
        if node in self.done:
            return
        self.need(node)
        self.place = max(self.place, self.at[node] + 1)
        for one in node.all_input_nodes:
            self.waiting[one].discard(node)
            if not self.waiting[one]:
                self.values.pop(one, None)

    def _run(self, node: Node) -> None:
        touched, found = mutated(node, self.parts), list[Any]()
        for number, batch in enumerate(self.batches):
            if node.op == "placeholder":
                place = self.names.index(node)
                found.append(batch[place] if place < len(batch) else node.args[0])
            elif node.op == "output":
                found.append(None)
            else:  # values that are changed in place may be read again
                found.append(self._call(node, *map_arg((node.args, node.kwargs), self._reader(number, touched))))
        self.values[node] = found

    def _reader(self, number: int, touched: Node | None) -> Callable[[Node], Any]:
        return lambda one: self.values[one][number].clone() if one is touched else self.values[one][number]

    def _call(self, node: Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            return self.parts[str(node.target)](*args, **kwargs)
        if node.op == "get_attr":
            holder: Any = self.module
            for part in str(node.target).split("."):
                holder = getattr(holder, part)
            return holder
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def replaced(self, node: Node, other: Run, old: Node) -> bool:
        """Whether the layer is not the original's."""
        own, theirs = self.parts[str(node.target)], other.parts.get(str(old.target))
        if theirs is None or type(own) is not type(theirs):
            return True
        state, before = own.state_dict(), theirs.state_dict()
        return state.keys() != before.keys() or any(not torch.equal(one, before[key]) for key, one in state.items())

    def reads_other(self, node: Node, other: Run, old: Node) -> bool:
        """Whether the layer's input differs from the original's."""
        values = self.need(node.all_input_nodes[0]), other.need(old.all_input_nodes[0])
        return not all(torch.equal(one, two) for one, two in zip(*values, strict=True))


def joined(batches: Iterable[Any], at_once: int = AT_ONCE) -> list[tuple[Any, ...]]:
    """Inputs as tuples of arguments, in batches small enough that some can be held out."""
    given, sizes = list[tuple[Any, ...]](), list[int]()
    for number, batch in enumerate(batches):
        if isinstance(batch, Mapping):
            raise SettingError(
                "layers cannot be fitted on inputs given by name: give a tuple, in the order of the arguments"
            )
        given.append(tuple(batch) if isinstance(batch, tuple | list) else (batch,))
        tensors = [one for one in given[-1] if isinstance(one, Tensor) and one.dim()]
        if not all(one.isfinite().all() for one in tensors if one.is_floating_point()):
            raise SettingError(f"batch {number} of the inputs has NaN or infinite values: give finite inputs")
        sizes.append(max((len(one) for one in tensors), default=1))
    step = max(1, min(at_once, sum(sizes) // PARTS))
    return [
        tuple([_part(one, size, slice(start, start + step)) for one in some])
        for some, size in zip(given, sizes, strict=True)
        for start in range(0, size, step)
    ]


def _part(value: Any, size: int, which: slice) -> Any:
    """Some rows of a tensor that has one for each input; anything else as it is."""
    many = isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
    return value[which] if many else value
