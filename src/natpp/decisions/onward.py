"""Changed modules, run side by side with the original from the first change on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Node, map_arg

from natpp.decisions.running import Run
from natpp.fx.rewrite import STANDS
from natpp.nets.measure import evaluating


class Onward:
    """The original on some batches, run up to where the changed modules given so far begin to differ."""

    def __init__(self, original: fx.GraphModule, batches: Sequence[tuple[Any, ...]]):
        self.original, self.batches = original, batches
        self.by_name = {original.meta[STANDS].get(node.name, ""): node for node in original.graph.nodes}
        self.ahead = Run(original, batches)

    @functools.cached_property
    def wanted(self) -> list[Any]:
        """The original's outputs."""
        return _outputs(Run(self.original, self.batches))

    def outputs(self, made: fx.GraphModule) -> list[Any]:
        """A changed module's outputs."""
        return _outputs(self.runs(made)[0])

    @torch.no_grad()
    def runs(self, made: fx.GraphModule) -> tuple[Run, Run]:
        """Runs of a changed module and of the original that begin where the two differ."""
        run, same = Run(made, self.batches), dict[Node, Node]()
        for node in run.order:
            old = self.by_name.get(made.meta[STANDS].get(node.name, ""))
            if old is not None and self._alike(node, old, run, same):
                same[node] = old
        kept = set(same.values())
        first = next(place for place, node in enumerate(self.ahead.order) if node not in kept)
        if first < self.ahead.place:
            self.ahead = Run(self.original, self.batches)
        ahead = self.ahead
        with evaluating(self.original):
            while ahead.place < first:
                ahead.step(ahead.order[ahead.place])
        run.values.update({node: ahead.values[old] for node, old in same.items() if old in ahead.values})
        run.done = {node for node, old in same.items() if ahead.at[old] < first}
        before = Run(self.original, self.batches)
        before.values.update(ahead.values)
        before.place = first
        return run, before

    def _alike(self, node: Node, old: Node, run: Run, same: Mapping[Node, Node]) -> bool:
        """Whether a node computes what it does in the original, from the same inputs."""
        reads, before = node.all_input_nodes, old.all_input_nodes
        if len(reads) != len(before) or any(same.get(one) is not two for one, two in zip(reads, before, strict=True)):
            return False
        if node.op == "call_module":
            return not run.replaced(node, self.ahead, old)
        if node.op == "get_attr":
            one, two = (_attribute(*some) for some in ((run.module, node), (self.original, old)))
            return one.shape == two.shape and torch.equal(one, two)
        return node.op == old.op != "output" and str(node.args) == str(old.args)


@torch.no_grad()
def _outputs(run: Run) -> list[Any]:
    """The outputs, after every node that is not done yet."""
    *nodes, output = run.order
    with evaluating(run.module):
        for node in nodes:
            run.step(node)
    given = output.args[0]
    return [
        map_arg(given, lambda one, number=number: run.values[one][number])  # type: ignore[misc]
        for number in range(len(run.batches))
    ]


def _attribute(module: fx.GraphModule, node: Node) -> Tensor:
    found: Tensor = functools.reduce(getattr, str(node.target).split("."), module)  # type: ignore[assignment]
    return found
