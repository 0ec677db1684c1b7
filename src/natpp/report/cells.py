"""A changed architecture for the report: its graphs, what every edge could become, what every change saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natpp.arch.blueprints import CellPart, alive_in
from natpp.arch.cost import counts
from natpp.arch.formats import FORMATS, from_dict, to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.arch.ops import Place
from natpp.arch.rules import same_graphs
from natpp.errors import NatppError
from natpp.registry import OPS
from natpp.report.draw import TITLES
from natpp.report.edges import Book, Change
from natpp.report.inline import cell_pair, cell_picture

Pair = tuple[int, int]  # parameters and multiply-adds


def copied_form(arch: Architecture) -> tuple[str, str]:
    """The shortest form an architecture has as text, and what that form is called."""
    for form in ("genotype", "nasbench201"):
        try:
            return FORMATS[form](arch), {"genotype": "genotype", "nasbench201": "NAS-Bench-201 string"}[form]
        except NatppError:
            continue
    return to_json(arch), "architecture"


def picture(arch: Architecture) -> list[dict[str, str]]:
    """The cells of one architecture."""
    found = []
    for kind, graph in arch.cells():
        names = [f"{edge.source} → {edge.target}" for edge in graph.edges]
        found.append({"title": TITLES[kind], "svg": cell_picture(graph, names)})
    return found


def cell_figures(data: Mapping[str, Any], where: Setting, book: Book) -> tuple[list[dict[str, Any]], list[Change]]:
    """Graphs before and after with what their edges could become, and the changes with what they save."""
    before, after = from_dict(data["before"]), from_dict(data["after"])
    if not same_graphs(before, after):
        raise NatppError("the architectures before and after are different graphs")
    greedy = data.get("mode") == "greedy"
    spent = {side: _edge_costs(arch, where) for side, arch in (("before", before), ("after", after))}
    figures, found = [], []
    for (kind, old), (_, new) in zip(before.cells(), after.cells(), strict=True):
        places = _places(before, kind, where)
        names = [f"{edge.source} → {edge.target}" for edge in old.edges]
        numbers = []
        for index, (was, now) in enumerate(zip(old.edges, new.edges, strict=True)):
            chances = dict(_at(data.get("probabilities"), kind, index))
            masked = dict(_at(data.get("masked"), kind, index))
            own = [place[was.source] for place in places]
            was_alive, now_alive = (spent[side][kind][index] is not None for side in ("before", "after"))
            old_cost, new_cost = (spent[side][kind][index] or (0, 0) for side in ("before", "after"))
            note = _note(chances, was.op, now.op, greedy=greedy, fixed=was.fixed)
            identity = book.add(
                name=f"{TITLES[kind]}, {names[index]}",
                before=was.op,
                after=now.op,
                alive=(was_alive, now_alive),
                place=_place_text(own),
                chances={} if was.fixed else chances,
                masked={} if was.fixed else masked,
                costs={op: _total(op, own) for op in {*chances, was.op, now.op}},
                note=note,
            )
            numbers.append(identity)
            if was.op != now.op or old_cost != new_cost:
                found.append(
                    Change(
                        edge=identity,
                        name=f"{TITLES[kind].removesuffix(' cell')} {names[index]}",
                        before=was.op,
                        after=now.op if was.op != now.op else "nothing reads it",
                        probability=chances.get(now.op) if was.op != now.op else None,
                        params=old_cost[0] - new_cost[0],
                        madds=old_cost[1] - new_cost[1],
                    )
                )
        left, right = cell_pair(old, new, tuple(names))
        changed = sum(was.op != now.op for was, now in zip(old.edges, new.edges, strict=True))
        free = sum(not edge.fixed for edge in old.edges)
        figures.append(
            {
                "title": TITLES[kind],
                "note": f"{changed} of {free} edges changed; stands {len(places)} times in the network",
                "before": left,
                "after": right,
                "edges": numbers,
            }
        )
    (*_, old_params, old_madds), (*_, new_params, new_madds) = counts(before, where), counts(after, where)
    rest = (
        old_params - new_params - sum(one.params or 0 for one in found),
        old_madds - new_madds - sum(one.madds or 0 for one in found),
    )
    if any(rest):
        found.append(Change(None, "around them", "input maps, widths", "", None, rest[0], rest[1]))
    return figures, found


def _edge_costs(arch: Architecture, where: Setting) -> dict[str, list[Pair | None]]:
    """What every edge costs alive, in all places of its cell together; None where it is alive nowhere."""
    found: dict[str, list[Pair | None]] = {kind: [None] * len(graph.edges) for kind, graph in arch.cells()}
    for part in alive_in(arch, where).parts:
        if not isinstance(part, CellPart):
            continue
        own = found[part.block.kind if part.block.kind in found else "normal"]
        for index, (edge, alive) in enumerate(zip(part.graph.edges, part.liveness.live, strict=True)):
            if alive:
                params, madds = OPS[edge.op].cost(part.block.place(edge.source))
                known = own[index] or (0, 0)
                own[index] = known[0] + params, known[1] + madds
    return found


def _places(arch: Architecture, kind: str, where: Setting) -> list[dict[int, Place]]:
    """For every cell of a kind in the network, where an edge from each node stands."""
    kinds = dict(arch.cells())
    return [
        {node: part.block.place(node) for node in range(part.graph.num_nodes)}
        for part in alive_in(arch, where).parts
        if isinstance(part, CellPart) and (part.block.kind if part.block.kind in kinds else "normal") == kind
    ]


def _total(op: str, places: list[Place]) -> Pair:
    costs = [OPS[op].cost(place) for place in places]
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)


def _place_text(places: list[Place]) -> str:
    if not places:
        return "this cell does not stand in the network"
    channels = sorted({place.channels_in for place in places})
    sizes = sorted({place.size[0] for place in places}, reverse=True)
    strides = sorted({place.stride for place in places})
    return (
        f"{'/'.join(map(str, channels))} channels, {'/'.join(map(str, sizes))} pixels a side, "
        f"stride {'/'.join(map(str, strides))}, {len(places)} cells"
    )


def _note(chances: Mapping[str, float], was: str, now: str, *, greedy: bool, fixed: bool) -> str:
    if fixed:
        return "part of the graph's form: no rule changes it"
    if not chances:
        return "how likely its transitions were is not in the file"
    likeliest = max(chances, key=lambda op: chances[op])
    if greedy and now != likeliest and now == was:
        return f"{likeliest} was taken back: the network would cost more or be cut"
    if now != likeliest:
        return "not the likeliest: drawn, or chosen by its score"
    return ""


def _at(table: Any, kind: str, index: int) -> Mapping[str, Any]:
    """What a result says of an edge; nothing where it does not."""
    try:
        found = table[kind][index]
    except (KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, Mapping) else {}
