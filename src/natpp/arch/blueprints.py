"""An architecture in a network as a blueprint: what it may become, what of it is alive and what that costs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from natpp.arch.graph import NULL, NUM_INPUTS, Architecture, Graph, Liveness, node_step
from natpp.arch.layers import FLOAT_BYTES, chain_room
from natpp.arch.networks import IMAGE_CHANNELS, Block, CellBlock, Layout, Setting, Skeleton, Widths, layout_of
from natpp.arch.ops import Op, Place
from natpp.core.blueprint import Blueprint, Price, Room, Step
from natpp.core.decision import Plan
from natpp.errors import SettingError
from natpp.registry import NETWORKS, OPS

T = TypeVar("T")


class Drawing(NamedTuple):
    """An architecture's graphs in a network as a blueprint whose decisions are the free edges, cell by cell."""

    layout: Layout
    blueprint: Blueprint
    starts: tuple[int, ...]  # per block, and last for the head: its first step
    plan: Plan


def drawing(arch: Architecture, where: Setting, options: Sequence[Sequence[str]] | None = None) -> Drawing:
    """The blueprint of all that an architecture may become with `options` (default: all operations) on free edges."""
    widths = len(arch.normal.outputs), len(arch.graph("reduce").outputs)
    topology = tuple((kind, graph.topology, graph.outputs) for kind, graph in arch.cells())
    numbers = {name: number for number, name in enumerate(OPS)}
    picked = None if options is None else tuple([tuple([numbers[op] for op in some]) for some in options])
    skeleton = NETWORKS[where.network]
    layout, blueprint, starts = _drawn(skeleton, where, widths, topology, tuple(OPS.values()), picked)
    plan = tuple([numbers[edge.op] for _, graph in arch.cells() for edge in graph.edges if not edge.fixed])
    if picked is not None:
        plan = tuple([some.index(op) for some, op in zip(picked, plan, strict=True)])
    return Drawing(layout, blueprint, starts, plan)


Topology = tuple[tuple[str, tuple[tuple[int, int, str | None], ...], tuple[int, ...]], ...]
Picked = tuple[tuple[int, ...], ...]  # per decision: the numbers of its operations


class _Edge(NamedTuple):
    name: str
    source: int
    target: int
    by: tuple[int, ...]  # its decision, if it is free
    ops: tuple[Op, ...]  # what that may pick, or the one operation of a fixed edge


@functools.lru_cache(maxsize=1 << 9)  # about 0.1 MB each
def _drawn(
    skeleton: Skeleton, where: Setting, widths: Widths, topology: Topology, ops: tuple[Op, ...], picked: Picked | None
) -> tuple[Layout, Blueprint, tuple[int, ...]]:
    layout, count = layout_of(where, widths), itertools.count()
    cells: dict[str, tuple[list[_Edge], tuple[int, ...]]] = {}
    for kind, given, outputs in topology:
        edges = []
        for source, target, fixed in given:
            by: tuple[int, ...] = () if fixed else (next(count),)
            options = (OPS[fixed],) if fixed else ops
            if by and picked is not None:
                options = tuple([ops[one] for one in picked[by[0]]])
            edges.append(_Edge(f"{source} → {target}", source, target, by, options))
        cells[kind] = edges, outputs
    image = FLOAT_BYTES * IMAGE_CHANNELS * where.size**2
    steps, starts = [Step("image", room=_always((image, image)))], []
    values = [0]  # per value of the layout: the step that makes it
    for block in layout.blocks:
        starts.append(len(steps))
        reads = [values[value] for value in block.reads]
        if isinstance(block, CellBlock):
            values.append(_draw_cell(steps, block, reads, *cells.get(block.kind, cells["normal"])))
        else:
            values.append(len(steps))
            steps.append(_standing(block.name, reads[0], block.cost, *block.rooms))
    starts.append(len(steps))
    steps.append(_standing("head", values[-1], layout.head_cost, *layout.head_rooms))
    return layout, Blueprint(tuple(steps)), tuple(starts)


def _standing(name: str, read: int, cost: tuple[int, int], room: Room, silent: Room) -> Step:
    """A stem, residual block or head, which is there whatever the cells are."""
    return Step(name, (read,), _always(cost), fixed=True, room=_always(room), silent=silent)


def _draw_cell(
    steps: list[Step], block: CellBlock, reads: Sequence[int], edges: Sequence[_Edge], outputs: Sequence[int]
) -> int:
    """Add the steps of a cell: its inputs, then node by node two edges and their sum; the step of its output."""
    start, num_nodes = len(steps), NUM_INPUTS + len(edges) // 2
    nodes = [start + node_step(node) for node in range(num_nodes)]
    last = nodes[-1] + (len(outputs) > 1)
    for read, cost, room in zip(reads, block.input_costs, block.input_rooms, strict=True):
        steps.append(Step("input", (read,), _always(cost), room=_always(room), until=last))
    node_room = _always((block.node_bytes, block.node_bytes))
    for number, (name, source, target, by, ops) in enumerate(edges):
        prices, rooms = _priced(block.place(source), ops)
        if not by:
            prices, rooms = _always(prices[0,]), _always(rooms[0,])
        steps.append(Step(name, (nodes[source],), prices, by, room=rooms, until=nodes[target]))
        if number % 2:
            steps.append(Step("node", (nodes[target] - 2, nodes[target] - 1), join="sum", room=node_room))
    if len(outputs) == 1:
        return nodes[outputs[0]]
    made = block.node_bytes * len(outputs)
    terms = tuple([nodes[node] for node in outputs])
    steps.append(Step("output", terms, join="concat", room=_always((made, made + block.node_bytes))))
    return last


@functools.lru_cache(maxsize=1 << 12)
def _always(value: T) -> Mapping[Plan, T]:
    """A price or room that no decision changes."""
    return {(): value}


class _Table(dict[Plan, T]):
    """Something for every operation at a place by its number, worked out when it is asked for."""

    def __init__(self, ops: tuple[Op, ...], of: Callable[[Op], T]):
        self.ops, self.of = ops, of

    def __missing__(self, key: Plan) -> T:
        self[key] = self.of(self.ops[key[0]])
        return self[key]


@functools.lru_cache(maxsize=1 << 12)
def _priced(place: Place, ops: tuple[Op, ...]) -> tuple[Mapping[Plan, Price | None], Mapping[Plan, Room]]:
    """Prices and rooms of all operations at a place."""
    prices = _Table[Price | None](ops, lambda op: None if op.name == NULL else op.cost(place))
    for number in range(len(ops)):
        with contextlib.suppress(SettingError):  # one that cannot stand there says so when a plan picks it
            prices[(number,)]
    return prices, _Table(ops, lambda op: chain_room(op.layers(place), place.channels_in, place.size))


class Part(NamedTuple):
    """A stem or residual block. It belongs to the network and not to the architecture: it is always there."""

    block: Block

    @property
    def live(self) -> bool:
        return True


class CellPart(NamedTuple):
    """A cell, whether it is alive, and what of it is."""

    block: CellBlock
    live: bool
    graph: Graph
    liveness: Liveness


class Placed(NamedTuple):
    """An architecture in a network, block by block: what is built and drawn."""

    layout: Layout
    parts: tuple[Part | CellPart, ...]
    reached: tuple[bool, ...]  # per value: something of the image reaches it; else it is zero


def alive_in(arch: Architecture, where: Setting) -> Placed:
    """What is alive of an architecture in a network, block by block."""
    layout, blueprint, starts, plan = drawing(arch, where)
    flow = blueprint.flow(plan)
    alike: dict[object, Liveness] = {}
    parts: list[Part | CellPart] = []
    reached = [True]
    for block, start, end in zip(layout.blocks, starts, starts[1:], strict=False):
        output = end - 1
        if isinstance(block, CellBlock):
            graph = arch.graph(block.kind)
            if len(graph.outputs) == 1:
                output = start + node_step(graph.outputs[0])
            key = block.kind, *flow.reached[start:end], *flow.alive[start:end]
            if (liveness := alike.get(key)) is None:
                liveness = alike[key] = graph.liveness_in(flow.reached, flow.alive, start, output=output)
            parts.append(CellPart(block, bool(flow.alive[output]), graph, liveness))
        else:
            parts.append(Part(block))
        reached.append(bool(flow.reached[output]))
    return Placed(layout, tuple(parts), tuple(reached))
