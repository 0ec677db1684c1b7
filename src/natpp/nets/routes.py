"""Which architectures of a supernet's step use which parts of the supernet.

Values are (architectures * images, channels, height, width). `needed` skips what is dead in an architecture. `Dealt`
keeps the same shapes for all architectures of one graph whose operations are dealt from the same set: dead parts are
computed but masked out, so that one captured step works for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natpp.arch.blueprints import CellPart, Placed, alive_in
from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.networks import Setting
from natpp.arch.space import GraphSpace
from natpp.registry import OPS

EdgeKey = tuple[int, int, str]  # target, source, operation
Apply = Callable[[int, int, str, Tensor, int], Tensor]  # source, target, op, input, number of architectures


class Members(NamedTuple):
    """A subset of the architectures of a step."""

    numbers: Tensor | None  # None: all, in order
    size: int
    counting: Tensor | None = None  # per member: 1 if its value counts, 0 if its input is all zeros; None: all count


@dataclass
class Route:
    """Which architectures of a step use which parts of a block."""

    count: int  # number of architectures of the step
    hearing: Members  # of a stem or residual block: those with an input that is not all zeros
    inputs: tuple[Members | None, ...]  # None: no architecture reads it
    edges: Mapping[EdgeKey, Members] = field(default_factory=dict)  # in order of target, source and operation
    outputs: dict[int, Members] = field(default_factory=dict)  # per node: the architectures that concatenate it

    def states(self, inputs: Mapping[int, Tensor], apply: Apply) -> dict[int, Tensor]:
        """The value of each node of a cell for all architectures: the sum over its edges."""
        states = dict(inputs)
        for target, edges in groupby(self.edges.items(), key=lambda edge: edge[0][0]):
            terms = []
            for (_, source, op), members in edges:
                some = chosen(states[source], members, self.count)
                terms.append((apply(source, target, op, some, members.size), members))
            states[target] = summed(terms, self.count)
        return states


class FixedRoute(Route):
    """A route in which each edge deals out its operations: architectures are sorted by operation and sorted back."""

    def states(self, inputs: Mapping[int, Tensor], apply: Apply) -> dict[int, Tensor]:
        states = dict(inputs)
        for (target, source), group in groupby(self.edges.items(), key=lambda edge: edge[0][:2]):
            dealt = {op: members for (_, _, op), members in group}
            order = torch.cat([members.numbers for members in dealt.values() if members.numbers is not None])
            back = order.argsort()
            sizes = [members.size for members in dealt.values()]
            images = len(states[source]) // self.count
            ordered = sorted_by(states[source], order, back, self.count)
            parts = torch.split(ordered, [size * images for size in sizes])
            terms = [
                None if OPS[op].family == "null" else _counting(apply(source, target, op, part, members.size), members)
                for (op, members), part in zip(dealt.items(), parts, strict=True)
            ]
            shape = next(term for term in terms if term is not None)
            whole = [
                zeros((size * images, *shape.shape[1:]), shape) if term is None else term
                for term, size in zip(terms, sizes, strict=True)
            ]
            value = sorted_by(torch.cat(whole), back, order, self.count)
            states[target] = states[target] + value if target in states else value
        return states


def apart(value: Tensor, count: int) -> Tensor:
    """A value reshaped to (architectures, images, …)."""
    return value.view(count, len(value) // count, *value.shape[1:])


def chosen(value: Tensor, members: Members, count: int) -> Tensor:
    """The values of some of the architectures."""
    if members.numbers is None:
        return value
    return _whole(_rows(value, count).index_select(0, members.numbers), value)


def summed(terms: list[tuple[Tensor, Members]], count: int) -> Tensor:
    """Sum the terms of each architecture; architectures that are missing from a term add zero."""
    whole = [term for term, members in terms if members.numbers is None]
    parts = [(term, members) for term, members in terms if members.numbers is not None]
    if not parts:
        return functools.reduce(torch.add, whole)
    first, some = parts[0]
    rows = _rows(first, some.size)
    dtype = functools.reduce(torch.promote_types, (term.dtype for term, _ in parts))
    total = rows.new_zeros(count, rows.shape[1], dtype=dtype)
    for term, members in parts:
        assert members.numbers is not None
        alike = term.contiguous(memory_format=_format(first))
        total.index_add_(0, members.numbers, _rows(alike, members.size).to(dtype))
    return functools.reduce(torch.add, whole, _whole(total, first))


def only(value: Tensor, members: Members, count: int) -> Tensor:
    """The value of these architectures where it counts, zero for the others."""
    if members.numbers is None:
        return _counting(value, members)
    kept = torch.zeros(count, dtype=value.dtype, device=value.device).index_fill_(0, members.numbers, 1)
    return value * kept.repeat_interleave(len(value) // count).view(-1, 1, 1, 1)


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zero images in the memory format of `like`, so that they need not be copied when they are combined."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=_format(like)).zero_()


def sorted_by(value: Tensor, order: Tensor, back: Tensor, count: int) -> Tensor:
    """A value with its architectures in another order; `back` is the inverse permutation."""
    found = _Sorted.apply(value, order, back, count)  # type: ignore[no-untyped-call]
    assert isinstance(found, Tensor)
    return found


class _Sorted(torch.autograd.Function):
    """A permutation whose gradient is the inverse permutation; torch would accumulate it element by element."""

    @staticmethod
    def forward(context: Any, value: Tensor, order: Tensor, back: Tensor, count: int) -> Tensor:
        context.save_for_backward(order, back)
        context.count = count
        return _permuted(value, order, count)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        _, back = context.saved_tensors
        return _permuted(gradients[0], back, context.count), None, None, None


def _permuted(value: Tensor, order: Tensor, count: int) -> Tensor:
    return _whole(_rows(value, count).index_select(0, order), value)


def _rows(value: Tensor, count: int) -> Tensor:
    """A value as one row per architecture, in the order of its memory."""
    last = _format(value) == torch.channels_last
    return (value.permute(0, 2, 3, 1) if last else value).reshape(count, -1)


def _whole(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_rows`: images in the memory format of `like`."""
    channels, *size = like.shape[1:]
    if _format(like) == torch.channels_last:
        return rows.view(-1, *size, channels).permute(0, 3, 1, 2)
    return rows.view(-1, channels, *size)


def _format(value: Tensor) -> torch.memory_format:
    last = value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def _counting(value: Tensor, members: Members) -> Tensor:
    if members.counting is None:
        return value
    images = len(value) // members.size
    return value * members.counting.to(value.dtype).repeat_interleave(images, output_size=len(value)).view(-1, 1, 1, 1)


def needed(archs: Sequence[Architecture], where: Setting, device: torch.device) -> list[Route]:
    """Per block, which architectures need which of its parts."""
    networks = [alive_in(arch, where) for arch in archs]

    def some(numbers: list[int]) -> Members:
        everyone = numbers == list(range(len(archs)))
        return Members(None if everyone else torch.tensor(numbers, dtype=torch.int64, device=device), len(numbers))

    routes: list[Route] = []
    for block in range(len(networks[0].parts)):
        parts = [network.parts[block] for network in networks]
        reached = [number for number, network in enumerate(networks) if network.reached[parts[0].block.reads[0]]]
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
                some(reached),
                tuple(some(numbers) if numbers else None for numbers in inputs),
                {edge: some(numbers) for edge, numbers in sorted(edges.items())},
                {node: some(numbers) for node, numbers in outputs.items()},
            )
        )
    return routes


class Routed:
    """Routes of the architectures of a step, on a device. Not a dataclass, since module wrappers copy dataclasses."""

    def __init__(self, routes: list[Route]):
        self.routes = routes


class Dealt(Routed):
    """Routes with the same shapes for many steps; `set` switches to other architectures."""

    def __init__(self, archs: Sequence[Architecture], where: Setting, device: torch.device):
        self.where = where
        self.shape, *packed = self._found(archs)
        self.numbers, self.counting = (values.to(device) for values in packed)
        super().__init__(self._made(len(archs)))

    @staticmethod
    def suits(space: GraphSpace, count: int) -> bool:
        """Whether `count` architectures of a graph can be routed so: enough to use all operations of each edge."""
        for kind, graph in space.arch.cells():
            free = [(edge.source, edge.target) for edge in graph.edges if not edge.fixed]
            if len(set(free)) < len(free):  # two edges between the same nodes
                return False
            if any(count < len(options) for options in space.options[kind]):
                return False
        return True

    def set(self, archs: Sequence[Architecture]) -> bool:
        """Switch to other architectures; returns False and changes nothing if their shapes differ."""
        shape, numbers, counting = self._found(archs)
        if shape != self.shape:
            return False
        self.numbers.copy_(numbers, non_blocking=True)
        self.counting.copy_(counting, non_blocking=True)
        return True

    def _found(self, archs: Sequence[Architecture]) -> tuple[list[dict[EdgeKey | int, int]], Tensor, Tensor]:
        """Per block, how many use each edge or node (-1: the block); all their indices; which of them count."""
        networks = [alive_in(arch, self.where) for arch in archs]
        shape: list[dict[EdgeKey | int, int]] = []
        numbers: list[int] = []
        counting: list[bool] = []
        for block in range(len(networks[0].parts)):
            found = _block(networks, block)
            shape.append({key: len(members) for key, members in found.items()})
            for members in found.values():
                numbers += [number for number, _ in members]
                counting += [counts for _, counts in members]
        return shape, torch.tensor(numbers, dtype=torch.int64), torch.tensor(counting, dtype=torch.float32)

    def _made(self, count: int) -> list[Route]:
        """Routes that are views of `numbers` and `counting`."""
        routes: list[Route] = []
        everyone = Members(None, count)
        at = 0
        for block in self.shape:
            edges: dict[EdgeKey, Members] = {}
            outputs: dict[int, Members] = {}
            hearing = everyone
            for key, size in block.items():
                numbers, counting = self.numbers[at : at + size], self.counting[at : at + size]
                at += size
                if isinstance(key, tuple):
                    edges[key] = Members(numbers, size, counting)
                elif key < 0:
                    hearing = Members(None, count, counting)
                else:
                    outputs[key] = Members(None, count, counting)
            sources = {source for _, source, _ in edges}
            inputs = tuple(everyone if node in sources else None for node in range(NUM_INPUTS))
            routes.append(FixedRoute(count, hearing, inputs, edges, outputs))
        return routes


def _block(networks: Sequence[Placed], block: int) -> dict[EdgeKey | int, list[tuple[int, bool]]]:
    """For each part of a block, its architectures and whether their values count."""
    edges: dict[EdgeKey, list[tuple[int, bool]]] = {}
    nodes: dict[EdgeKey | int, list[tuple[int, bool]]] = {}
    for number, network in enumerate(networks):
        part = network.parts[block]
        if not isinstance(part, CellPart):
            nodes.setdefault(-1, []).append((number, network.reached[part.block.reads[0]]))
            continue
        names, reached = part.graph.names, part.liveness.reached
        for edge in part.graph.edges:
            if not edge.fixed:
                key = names[edge.target], names[edge.source], edge.op
                edges.setdefault(key, []).append((number, reached[edge.source]))
        outputs = {names[node]: reached[node] for node in part.graph.outputs}
        for node in sorted(set(names[NUM_INPUTS:])):
            nodes.setdefault(node, []).append((number, outputs.get(node, False)))
    return {**dict(sorted(edges.items())), **nodes}
