"""A fit of a changed module in stages: the later its layers, the smaller the values, the more inputs fit in memory.

A layer at a high resolution sees many positions of every input, so a few inputs are enough for it. A later one sees
few, and needs more inputs. Every stage runs what is already fitted on all of its inputs, a few at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from natpp.decisions.refit import Fitted, Refit, refit
from natpp.decisions.running import AT_ONCE, PARTS, Run, joined
from natpp.decisions.sensitivity import Sensitivity
from natpp.fx.rewrite import STANDS
from natpp.nets.measure import evaluating

MORE = 1.25  # times as many inputs start a stage


class Stage(NamedTuple):
    """Where the layers of a stage begin in the changed module, and how many inputs they are fitted on."""

    first: int
    inputs: int


@torch.no_grad()
def refit_in_stages(
    module: fx.GraphModule,
    original: fx.GraphModule,
    batches: Iterable[Any],
    memory: float,
    fewest: int,
    config: Refit = Refit(),
    kept: Collection[str] = (),
) -> tuple[list[Fitted], list[int]]:
    """Fit as `refit` does; also the number of inputs of each stage.

    As many inputs are used as keep the values of the original within `memory` bytes, but at least the `fewest`.
    """
    given = joined(batches)
    with evaluating(module), evaluating(original):
        reached, count = _reached(module, original), sum(map(_length, given))
        stages = stages_of(_needed(original, given[0]), reached, count, memory, fewest)
        given = joined(given, max(1, min(AT_ONCE, stages[0].inputs // PARTS)))
        sizes, found, counts = [_length(one) for one in given], list[Fitted](), list[int]()
        ends = [*(stage.first for stage in stages[1:]), len(reached)]
        sensitivity: Sensitivity | None = None
        for stage, end in zip(stages, ends, strict=True):
            some = [one for number, one in enumerate(given) if sum(sizes[:number]) < stage.inputs]
            sensitivity = sensitivity or Sensitivity(original, some)
            runs = _begun(module, some, stage.first), _begun(original, some, reached[stage.first])
            others = _layers(module, [*range(stage.first), *range(end, len(reached))])
            found += refit(module, original, (), config, [*kept, *others], sensitivity, runs)
            counts.append(sum(map(_length, some)))
    return found, counts


def stages_of(needed: Sequence[float], reached: Sequence[int], inputs: int, memory: float, fewest: int) -> list[Stage]:
    """The stages, given the bytes that the rest of the original needs for an input from each of its nodes on.

    `reached`: for each node of the changed module, how much of the original has run before it.
    """
    found = list[Stage]()
    for first, place in enumerate(reached):
        count = min(inputs, max(fewest, int(memory / max(needed[min(place, len(needed) - 1)], 1.0))))
        if not found or count >= MORE * found[-1].inputs:
            found.append(Stage(first, count))
    return found


def _reached(module: fx.GraphModule, original: fx.GraphModule) -> list[int]:
    """For each node of a changed module, how many nodes of the original have run before it."""
    known = {original.meta[STANDS].get(node.name, ""): place for place, node in enumerate(original.graph.nodes)}
    found = [0]
    for node in module.graph.nodes:
        found.append(max(found[-1], 1 + known.get(module.meta[STANDS].get(node.name, ""), -1)))
    return found[:-1]


def _needed(original: fx.GraphModule, batch: tuple[Any, ...]) -> list[float]:
    """The most bytes of values that exist at a time for one input, from each node of a module on."""
    run, found = Run(original, [batch]), list[float]()
    for node in run.order:
        if node.op != "output":
            run.need(node)
            tensors = [one for one in tree_leaves(list(run.values.values())) if isinstance(one, Tensor)]
            found.append(sum(one.numel() * one.element_size() for one in tensors) / _length(batch))
        run.step(node)
    for place in reversed(range(len(found) - 1)):
        found[place] = max(found[place], found[place + 1])
    return found


def _begun(module: fx.GraphModule, batches: Sequence[tuple[Any, ...]], first: int) -> Run:
    """A run that begins at a node: everything before it was run on a batch at a time, and only what is read is kept."""
    found, values = Run(module, batches), dict[Node, list[Any]]()
    if first:
        for batch in batches:
            one = Run(module, [batch])
            for node in one.order[:first]:
                one.step(node)
            for node, (value,) in one.values.items():
                values.setdefault(node, []).append(value)
            found.waiting = one.waiting
        found.values, found.place, found.done = values, first, set(found.order[:first])
    return found


def _layers(module: fx.GraphModule, places: Sequence[int]) -> list[str]:
    """The paths of the layers at some places, without norms."""
    nodes = list(module.graph.nodes)
    calls = [str(nodes[place].target) for place in places if nodes[place].op == "call_module"]
    layers = (nn.Conv2d, nn.Linear, nn.Sequential)
    return [path for path in calls if isinstance(module.get_submodule(path), layers)]


def _length(batch: tuple[Any, ...]) -> int:
    """The number of inputs of a batch."""
    return max((len(one) for one in batch if isinstance(one, Tensor) and one.dim()), default=1)
