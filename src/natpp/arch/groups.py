"""The cells of an architecture before and after a change, edge by edge, with what each costs: for JSON and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from natpp.arch.blueprints import CellPart, alive_in
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture, Graph
from natpp.arch.networks import Setting
from natpp.arch.ops import Place
from natpp.arch.rules import edge_names, same_graphs
from natpp.errors import GraphError
from natpp.registry import OPS

Pair = list[int]  # parameters and multiply-adds


def cell_groups(
    before: Architecture, after: Architecture, where: Setting, ops: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Per cell both graphs, and for every free edge where it is, what it costs before and after, and with `ops`."""
    if not same_graphs(before, after):
        raise GraphError("the architectures before and after are different graphs")
    names, found = edge_names(before), []
    for (kind, old), (_, new) in zip(before.cells(), after.cells(), strict=True):
        copies = [_copies(arch, kind, where) for arch in (before, after)]
        decisions = []
        for index, (was, now) in enumerate(zip(old.edges, new.edges, strict=True)):
            if was.fixed:
                continue
            places = [part.block.place(was.source) for part in copies[0]]
            sides: list[Pair | None] = []
            for op, parts in zip((was.op, now.op), copies, strict=True):
                alive = [place for place, part in zip(places, parts, strict=True) if part.liveness.live[index]]
                sides.append(_total(op, alive) if alive else None)
            costs = {op: _total(op, places) for op in dict.fromkeys((*ops, was.op, now.op))}
            data = told_place(names[kind][index], (was.source, was.target), (was.op, now.op), sides)
            decisions.append(data | {"places": [told_where(place) for place in places], "costs": costs})
        found.append(told_group(f"{kind} cell", kind, len(copies[0]), (old, new)) | {"decisions": decisions})
    return found


def told_group(name: str, kind: str, copies: int, graphs: tuple[Graph, Graph]) -> dict[str, Any]:
    """A cell or block: how many times it is in the network, and its graph before and after, as an architecture each."""
    before, after = (to_dict(Architecture(graph)) for graph in graphs)
    return {"name": name, "kind": kind, "copies": copies, "before": before, "after": after}


def told_place(
    name: str, ends: tuple[int, int], ops: tuple[str, str], spent: Sequence[Sequence[int] | None]
) -> dict[str, Any]:
    """A place in a cell or block: nodes, operation before and after, [params, madds] spent (None: output not used)."""
    sides = [None if side is None else list(side) for side in spent]
    return {"name": name, "from": ends[0], "to": ends[1], "before": ops[0], "after": ops[1], "spent": sides}


def told_where(place: Place) -> dict[str, Any]:
    """The channels, stride and size of a place in the network."""
    channels = [place.channels_in, place.channels_out]
    return {"channels": channels, "stride": place.stride, "size": list(place.size)}


def _copies(arch: Architecture, kind: str, where: Setting) -> list[CellPart]:
    """Every copy of a cell in the network; without a reduction cell, all are copies of the normal one."""
    cells = [part for part in alive_in(arch, where).parts if isinstance(part, CellPart)]
    return [part for part in cells if arch.reduce is None or part.block.kind == kind]


def _total(op: str, places: Sequence[Place]) -> Pair:
    costs = [OPS[op].cost(place) for place in places]
    return [sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)]
