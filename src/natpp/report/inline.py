"""Cell graphs as inline SVG: colours come from the page's style sheet, and each edge is a focusable group."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from natpp.arch.graph import Graph
from natpp.report.draw import BLUE, GREEN, GREY, LINE, RED, SAME_NODE, YELLOW, cell_scene
from natpp.report.scene import Box, Curve, Scene, Shape, Text, arrow_corners, svg_path, text_width

CLASSES = {RED: "changed", GREY: "dead", LINE: "plain"}
GAP = 24  # between columns: two graphs are shown next to each other
WIDE = 640  # wider graphs are shown below each other
NODES = {GREEN[1]: "input", BLUE[1]: "node", YELLOW[1]: "output"}


class Pair(NamedTuple):
    """Two graphs as SVG elements."""

    before: str
    after: str
    wide: bool
    """they do not fit next to each other"""


@functools.lru_cache(maxsize=1 << 10)
def cell_pair(before: Graph, after: Graph, names: tuple[str, ...]) -> Pair:
    """Both graphs of a cell in the same layout; `names` describe the edges to screen readers."""
    labels = [[SAME_NODE if edge.fixed else edge.op for edge in graph.edges] for graph in (before, after)]
    widths = {index: max(map(text_width, pair)) for index, pair in enumerate(zip(*labels, strict=True))}
    scenes = (
        cell_scene(before, before=after, widths=widths, labels=labels[0], gap=GAP),
        cell_scene(after, before=before, widths=widths, labels=labels[1], gap=GAP),
    )
    told = [
        f"{name}: {old} becomes {new}" if old != new else f"{name}: {old}, unchanged"
        for name, old, new in zip(names, *labels, strict=True)
    ]
    return Pair(inline_svg(scenes[0], told), inline_svg(scenes[1], told), scenes[0].width > WIDE)


def cell_picture(graph: Graph) -> str:
    """A single graph."""
    told = [f"{edge.source} → {edge.target}: {SAME_NODE if edge.fixed else edge.op}" for edge in graph.edges]
    return inline_svg(cell_scene(graph, gap=GAP), told)


def inline_svg(scene: Scene, told: Sequence[str]) -> str:
    """The scene as an SVG element without its own colours."""
    margin = 2
    width, height = round(scene.width) + 2 * margin, round(scene.height) + 2 * margin
    parts = [f'<svg class="graph" viewBox="0 0 {width} {height}" data-width="{width}" role="group">']
    edges: dict[int, list[Shape]] = {}
    for shape in scene.moved(margin, margin):
        if isinstance(shape, Text) or shape.edge is None:
            parts.append(_element(shape))
        else:
            edges.setdefault(shape.edge, []).append(shape)
    for number, own in sorted(edges.items()):  # below everything else: hit areas near the lines
        paths = " ".join(svg_path(shape.points) for shape in own if isinstance(shape, Curve))
        parts.append(f'<path class="near" data-near="{number}" d="{paths}"/>')
    for number, own in sorted(edges.items()):
        kind = next(CLASSES[shape.stroke] for shape in own if isinstance(shape, Box))
        marks = f'data-edge="{number}" tabindex="-1" role="button" aria-label="{escape(told[number])}"'
        parts += [f'<g class="edge {kind}" {marks}>', *map(_element, own), "</g>"]
    return "".join([*parts, "</svg>"])


def _element(shape: Shape) -> str:
    match shape:
        case Box():
            left, top = shape.x - shape.width / 2, shape.y - shape.height / 2
            name = "label" if shape.edge is not None else NODES.get(shape.stroke, "node")
            return (
                f'<rect class="{name}" x="{left:.1f}" y="{top:.1f}" width="{shape.width:.1f}" '
                f'height="{shape.height:.1f}" rx="{shape.radius:g}"/>'
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" dy="0.35em">{escape(shape.text)}</text>'
            )
        case Curve():
            dashed = " dashed" if shape.dashed else ""
            arrow = f'<polygon class="tip" points="{arrow_corners(shape.points[-1])}"/>' if shape.arrow else ""
            return f'<path class="line{dashed}" d="{svg_path(shape.points)}"/>{arrow}'
        case Text():
            return f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" dy="0.35em">{escape(shape.text)}</text>'
