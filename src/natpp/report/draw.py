"""Figures of architectures: changed edges are red and labelled old → new, dead ones grey, null ones dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from natpp.arch.blueprints import CellPart, Placed, alive_in
from natpp.arch.cost import cost_of, counts_by_block
from natpp.arch.graph import NUM_INPUTS, Architecture, Graph
from natpp.arch.networks import Setting
from natpp.arch.rules import same_graphs
from natpp.core.measures import Cost
from natpp.errors import counted
from natpp.report.layered import Item, Vertex, layered
from natpp.report.scene import Box, Curve, Scene, Shape, Text, beside, stacked, text_width

GREEN, BLUE, YELLOW = ("#d9f2d9", "#4a9c4a"), ("#dbe9fb", "#4a7bc0"), ("#fdf3c4", "#c9a227")
RED, GREY, DARK, LINE = "#c62828", "#9a9a9a", "#222222", "#777777"
TITLES = {"normal": "normal cell", "reduce": "reduction cell"}
SAME_NODE = "same node"  # label of the fixed skip that joins the parts of a node with more than two inputs
LABEL_HEIGHT, NODE = 22, 34


def architecture_scene(arch: Architecture, name: str = "") -> Scene:
    """All cells of an architecture, below each other."""
    return _sheet(name, [_titled(TITLES[kind], cell_scene(graph)) for kind, graph in arch.cells()])


def pair_scene(before: Architecture, after: Architecture, names: tuple[str, str] = ("before", "after")) -> Scene:
    """Both architectures side by side, cell by cell; changed edges are red in the second one."""
    if not same_graphs(before, after):
        columns = [
            stacked(_titled(f"{name}: {TITLES[kind]}", cell_scene(graph)) for kind, graph in arch.cells())
            for name, arch in zip(names, (before, after), strict=True)
        ]
        return _sheet("The two graphs differ, so no changes are marked.", [beside(columns)])
    left, right = [], []
    for (kind, old), (_, new) in zip(before.cells(), after.cells(), strict=True):
        widths = {index: text_width(label) for index, label in enumerate(_labels(new, old))}
        left.append(_titled(f"{names[0]}: {TITLES[kind]}", cell_scene(old, widths=widths)))
        right.append(_titled(f"{names[1]}: {TITLES[kind]}", cell_scene(new, before=old)))
    return _sheet("", [beside([stacked(left), stacked(right)])])


def network_scene(arch: Architecture, where: Setting, name: str = "") -> Scene:
    """The network from image to logits with the cost of each part, and its cells without dead edges."""
    network = alive_in(arch, where)
    cells = []
    for kind, graph in arch.cells():
        standing = [part.liveness.live for part in network.parts if isinstance(part, CellPart) and part.graph == graph]
        if standing:
            live = tuple(map(any, zip(*standing, strict=True)))
            cells.append(_titled(f"{TITLES[kind]}, live parts", cell_scene(graph, dead=False, live=live)))
    title = f"{name}: {where.network} network" if name else f"{where.network} network"
    blocks = _blocks_scene(network, cost_of(arch, where), counts_by_block(arch, where))
    return _sheet(title, [beside([blocks, stacked(cells)], gap=48)])


def cell_scene(
    graph: Graph,
    *,
    before: Graph | None = None,
    dead: bool = True,
    live: tuple[bool, ...] | None = None,
    widths: Mapping[int, float] | None = None,
    labels: Sequence[str] | None = None,
    gap: float = 34,
) -> Scene:
    """One cell. `before` marks changes against another graph, `dead=False` leaves out dead edges.

    `live` says which edges are live in the cell's place; by default both inputs are assumed to carry data. `widths` are
    minimum widths of labels, so that two drawings align; `labels` replaces the labels, `gap` is between columns.
    """
    live = graph.liveness().live if live is None else live
    drawn = [i for i, edge in enumerate(graph.edges) if live[i] or (dead and not (edge.fixed and edge.is_null))]
    labels = _labels(graph, before) if labels is None else labels
    depth = [min(node // NUM_INPUTS, 1) for node in range(graph.num_nodes)]
    for index in drawn:
        edge = graph.edges[index]
        depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    reached = {graph.edges[index].target for index in drawn} | set(graph.outputs)
    shown = {*range(NUM_INPUTS, graph.num_nodes)} if dead else reached
    items: dict[Vertex, Item] = {}
    for node in [*range(NUM_INPUTS), *sorted(shown)]:
        text = _node_text(node)
        items["node", node] = Item(2 * depth[node], max(NODE, text_width(text) + 14), NODE - 6)
    for index in drawn:
        width = max(text_width(labels[index]), (widths or {}).get(index, 0)) + 14
        items["edge", index] = Item(2 * depth[graph.edges[index].target] - 1, width, LABEL_HEIGHT)
    items["output", 0] = Item(2 * max(depth) + 1, text_width("output") + 16, NODE - 6)
    lines: list[tuple[Vertex, Vertex]] = []
    for index in drawn:
        edge = graph.edges[index]
        lines += [(("node", edge.source), ("edge", index)), (("edge", index), ("node", edge.target))]
    lines += [(("node", node), ("output", 0)) for node in graph.outputs if node in shown]
    placed = layered(items, lines, column_gap=gap)

    shapes: list[Shape] = []
    for (start, end), line in zip(lines, placed.lines, strict=True):
        if end[0] == "output":
            shapes.append(Curve(line, LINE, arrow=True))
        else:
            index = end[1] if end[0] == "edge" else start[1]
            color = _color(graph, index, before, live)
            width, dashed = 2.0 if color == RED else 1.4, graph.edges[index].is_null
            shapes.append(Curve(line, color, width, dashed, arrow=end[0] == "node", edge=index))
    for (kind, number), (x, y) in placed.centres.items():
        item = items[kind, number]
        if kind == "output":
            shapes.append(Box(x, y, item.width, item.height, "output", *YELLOW))
        elif kind == "node":
            colors = GREEN if number < NUM_INPUTS else BLUE
            shapes.append(Box(x, y, item.width, item.height, _node_text(number), *colors))
        else:
            color, dashed = _color(graph, number, before, live), graph.edges[number].is_null
            width, text_color = text_width(labels[number]) + 14, DARK if color == LINE else color
            label = Box(x, y, width, item.height, labels[number], "#ffffff", color, text_color, radius=11, edge=number)
            shapes.append(label)
            if width < item.width:  # extend the line from the column's edge to the label
                for inner, outer in ((x - width / 2, x - item.width / 2), (x + width / 2, x + item.width / 2)):
                    ends = (min(inner, outer), y), (max(inner, outer), y)
                    shapes.append(Curve(ends, color, 1.4, dashed, edge=number))
    return Scene(placed.width, placed.height, tuple(shapes))


def _blocks_scene(network: Placed, total: Cost, costs: Sequence[tuple[int, int]]) -> Scene:
    """Stem, cells and head in order, with their shapes and live costs; equal ones are grouped."""
    where = network.layout.setting
    rows: list[tuple[str, str, tuple[str, str]]] = [("image", f"3 channels, {where.size} × {where.size}", GREEN)]
    *found, head = costs

    def alike(pair: tuple[Any, object]) -> tuple[str, str, bool]:
        block, part = pair[0].block, pair[0]
        kind = block.kind if isinstance(part, CellPart) else block.name
        return kind, f"{counted(block.channels_out, 'channel')}, {block.size_out[0]} × {block.size_out[1]}", part.live

    for (kind, shape, alive), group in groupby(zip(network.parts, found, strict=True), key=alike):
        parts = [cost for _, cost in group]
        text = TITLES.get(kind, kind.replace("_", " "))
        text = f"{len(parts)} × {text}" if len(parts) > 1 else text
        cost = _cost_text(*map(sum, zip(*parts, strict=True))) if alive else "dead"
        rows.append((text, f"{shape}: {cost}", BLUE if kind in TITLES else ("#ffffff", LINE)))
    rows.append(("classifier", f"{counted(where.classes, 'class')}: {_cost_text(*head)}", YELLOW))
    step, box_width = 46, max(text_width(text) for text, _, _ in rows) + 28
    shapes: list[Shape] = []
    for row, (text, note, colors) in enumerate(rows):
        x, y = box_width / 2, 16 + row * step
        shapes += [Box(x, y, box_width, 28, text, *colors), Text(box_width + 12, y, note, "#555555")]
        if row:
            shapes.append(Curve(((x, y - step + 14), (x, y - 14)), LINE))
    height = 16 + len(rows) * step
    living = f"alive: {_cost_text(total.live_params, total.live_madds)}"
    listed = f"listed: {_cost_text(total.params, total.madds)}"
    memory = f"peak memory: {total.peak_memory_bytes:,} bytes"
    shapes += [Text(0, height + 20 * line, text) for line, text in enumerate((living, listed, memory))]
    width = max(box_width + 12 + max(text_width(note) for _, note, _ in rows), text_width(living), text_width(listed))
    return Scene(width, height + 52, tuple(shapes))


def _cost_text(params: int, madds: int) -> str:
    return f"{params:,} parameters, {madds:,} MAdds"


def _labels(graph: Graph, before: Graph | None) -> list[str]:
    old = graph if before is None else before
    return [
        SAME_NODE if now.fixed else now.op if was.op == now.op else f"{was.op} → {now.op}"
        for was, now in zip(old.edges, graph.edges, strict=True)
    ]


def _color(graph: Graph, index: int, before: Graph | None, live: tuple[bool, ...]) -> str:
    if before is not None and before.ops[index] != graph.ops[index]:
        return RED
    return LINE if live[index] else GREY


def _node_text(node: int) -> str:
    return f"input {node}" if node < NUM_INPUTS else str(node)


def _titled(title: str, scene: Scene) -> Scene:
    heading = Scene(text_width(title, 14), 24, (Text(0, 10, title, font=14, bold=True),))
    return stacked([heading, scene], gap=6)


def _sheet(title: str, scenes: list[Scene], margin: float = 20) -> Scene:
    if title:
        scenes = [Scene(text_width(title, 16), 26, (Text(0, 12, title, font=16, bold=True),)), *scenes]
    whole = stacked(scenes, gap=24)
    return Scene(whole.width + 2 * margin, whole.height + 2 * margin, whole.moved(margin, margin))
