"""Which architectures of a supernet's step go through which of its parts.

`needed` leaves out what is dead in an architecture. `Dealt` has the same shapes for all architectures of one graph
among which its operations are dealt out evenly: what is dead is computed and does not count, so that one captured step
serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.layout import CellPart, Plan, Setting, plan
from natpp.arch.space import GraphSpace, Space

EdgeKey = tuple[int, int, str]  # target, source, operation


class Members(NamedTuple):
    """Some architectures of a step."""

    numbers: Tensor | None  # None: all, in order
    counting: Tensor | None = None  # 1 where a member's value counts, 0 where it hears nothing; None: all count


EVERYONE = Members(None)


@dataclass
class Route:
    """Which architectures of a step use which part of a block."""

    count: int  # architectures of the step
    hearing: Members  # of a stem or residual block: those with something to read
    inputs: tuple[Members | None, ...]  # None: nobody
    edges: dict[EdgeKey, Members] = field(default_factory=dict)
    outputs: dict[int, Members] = field(default_factory=dict)  # per node: those that concatenate it


def needed(archs: Sequence[Architecture], where: Setting, device: torch.device) -> list[Route]:
    """Per block, the architectures that need each of its parts."""
    plans = [plan(arch, where) for arch in archs]

    def some(numbers: list[int]) -> Members:
        return Members(None if numbers == list(range(len(archs))) else torch.tensor(numbers, device=device))

    routes: list[Route] = []
    for place in range(len(plans[0].parts)):
        parts = [planned.parts[place] for planned in plans]
        hearing = [number for number, planned in enumerate(plans) if planned.hears[parts[0].block.reads[0]]]
        inputs: tuple[list[int], list[int]] = [], []
        edges: dict[EdgeKey, list[int]] = {}
        outputs: dict[int, list[int]] = {}
        for number, part in enumerate(parts):
            if not isinstance(part, CellPart):
                continue
            names = part.graph.names
            for node, live in enumerate(part.liveness.inputs):
                if live:
                    inputs[node].append(number)
            for edge, live in zip(part.graph.edges, part.liveness.live, strict=True):
                if live and not edge.fixed:
                    edges.setdefault((names[edge.target], names[edge.source], edge.op), []).append(number)
            for node in part.graph.outputs if part.live else ():
                outputs.setdefault(names[node], []).append(number)
        routes.append(
            Route(
                len(archs),
                some(hearing),
                tuple(some(numbers) if numbers else None for numbers in inputs),
                {edge: some(numbers) for edge, numbers in sorted(edges.items())},
                {node: some(numbers) for node, numbers in outputs.items()},
            )
        )
    return routes


class Dealt:
    """Routes of the same shapes for every step; `set` makes them those of other architectures."""

    def __init__(self, archs: Sequence[Architecture], where: Setting, device: torch.device):
        self.where = where
        self.shape, *packed = self._found(archs)
        self.numbers, self.counting = (values.to(device) for values in packed)
        self.routes = self._made(len(archs))

    @staticmethod
    def suits(space: Space, count: int, *, fair: bool) -> bool:
        """Whether all draws of so many architectures have the same shapes."""
        return (
            fair
            and isinstance(space, GraphSpace)
            and not any(count % len(options) for edges in space.options.values() for options in edges)
        )

    def set(self, archs: Sequence[Architecture]) -> None:
        """Route other architectures from now on."""
        shape, numbers, counting = self._found(archs)
        assert shape == self.shape
        self.numbers.copy_(numbers, non_blocking=True)
        self.counting.copy_(counting, non_blocking=True)

    def _found(self, archs: Sequence[Architecture]) -> tuple[list[dict[EdgeKey | int, int]], Tensor, Tensor]:
        """Per block, how many architectures have each edge, or may concatenate a node; all their numbers; who counts.

        The key -1 stands for the whole of a stem or residual block.
        """
        plans = [plan(arch, self.where) for arch in archs]
        shape: list[dict[EdgeKey | int, int]] = []
        numbers: list[int] = []
        counting: list[bool] = []
        for place in range(len(plans[0].parts)):
            found = _block(plans, place)
            shape.append({key: len(members) for key, members in found.items()})
            for members in found.values():
                numbers += [number for number, _ in members]
                counting += [counts for _, counts in members]
        return shape, torch.tensor(numbers), torch.tensor(counting, dtype=torch.float32)

    def _made(self, count: int) -> list[Route]:
        """Routes that read `numbers` and `counting`."""
        routes: list[Route] = []
        at = 0
        for block in self.shape:
            sources = {key[1] for key in block if isinstance(key, tuple)}
            inputs = tuple(EVERYONE if node in sources else None for node in range(NUM_INPUTS))
            route = Route(count, EVERYONE, inputs)
            for key, size in block.items():
                members = Members(self.numbers[at : at + size], self.counting[at : at + size])
                at += size
                if isinstance(key, tuple):
                    route.edges[key] = members
                elif key < 0:
                    route.hearing = Members(None, members.counting)
                else:
                    route.outputs[key] = Members(None, members.counting)
            routes.append(route)
        return routes


def _block(plans: Sequence[Plan], place: int) -> dict[EdgeKey | int, list[tuple[int, bool]]]:
    """Per part of a block its architectures, and whether their values count."""
    edges: dict[EdgeKey, list[tuple[int, bool]]] = {}
    nodes: dict[EdgeKey | int, list[tuple[int, bool]]] = {}
    for number, planned in enumerate(plans):
        part = planned.parts[place]
        if not isinstance(part, CellPart):
            nodes.setdefault(-1, []).append((number, planned.hears[part.block.reads[0]]))
            continue
        names, hears = part.graph.names, part.liveness.hears
        for edge in part.graph.edges:
            if not (edge.fixed or edge.is_null):
                key = names[edge.target], names[edge.source], edge.op
                edges.setdefault(key, []).append((number, hears[edge.source]))
        outputs = {names[node]: hears[node] for node in part.graph.outputs}
        for node in sorted(set(names[NUM_INPUTS:])):
            nodes.setdefault(node, []).append((number, outputs.get(node, False)))
    return {**dict(sorted(edges.items())), **nodes}
