"""A picture as a list of shapes, written as plain SVG or, through matplotlib, as PNG; needs no system packages."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from typing_extensions import Self

FONT = "DejaVu Sans, Verdana, Geneva, sans-serif"
CHARACTER = 0.63  # width of a character in units of the font size; an upper bound for the fonts above
LARGEST_PNG = 16_000  # maximum side in pixels
Point = tuple[float, float]


@dataclass(frozen=True)
class Placed:
    """What has a place on the canvas."""

    x: float
    y: float

    def moved(self, dx: float, dy: float) -> Self:
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Box(Placed):
    """A rounded rectangle with one line of text, given by its centre."""

    width: float
    height: float
    text: str = ""
    fill: str = "#ffffff"
    stroke: str = "#666666"
    color: str = "#222222"
    radius: float = 6
    font: float = 12
    edge: int | None = None
    """the edge of the graph that it belongs to"""

    @property
    def label(self) -> Text:
        return Text(self.x, self.y, self.text, self.color, self.font, "middle")


@dataclass(frozen=True)
class Text(Placed):
    """One line of text; `x` is its start, middle or end, `y` its middle."""

    text: str
    color: str = "#222222"
    font: float = 12
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True)
class Curve:
    """A smooth line through points, horizontal at its ends, optionally with an arrow head."""

    points: tuple[Point, ...]
    stroke: str = "#888888"
    width: float = 1.4
    dashed: bool = False
    arrow: bool = False
    edge: int | None = None
    """the edge of the graph that it belongs to"""

    def moved(self, dx: float, dy: float) -> Curve:
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


Shape = Box | Text | Curve


@dataclass(frozen=True)
class Scene:
    """Shapes on a canvas of this width and height; later ones are drawn on top."""

    width: float
    height: float
    shapes: tuple[Shape, ...]

    def moved(self, dx: float, dy: float) -> tuple[Shape, ...]:
        """The shapes, shifted by (dx, dy)."""
        return tuple(shape.moved(dx, dy) for shape in self.shapes)


def text_width(text: str, font: float = 12) -> float:
    """Upper bound of the width of a line of text."""
    return CHARACTER * font * len(text)


def stacked(scenes: Iterable[Scene], gap: float = 16) -> Scene:
    """Scenes below each other."""
    shapes: list[Shape] = []
    width = height = 0.0
    for scene in scenes:
        height += gap if shapes else 0
        shapes += scene.moved(0, height)
        height += scene.height
        width = max(width, scene.width)
    return Scene(width, height, tuple(shapes))


def beside(scenes: Iterable[Scene], gap: float = 24) -> Scene:
    """Scenes next to each other."""
    shapes: list[Shape] = []
    width = height = 0.0
    for scene in scenes:
        width += gap if shapes else 0
        shapes += scene.moved(width, 0)
        width += scene.width
        height = max(height, scene.height)
    return Scene(width, height, tuple(shapes))


def to_svg(scene: Scene) -> str:
    """The scene as a self-contained SVG document."""
    width, height = round(scene.width), round(scene.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family={quoteattr(FONT)}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for shape in scene.shapes:
        match shape:
            case Box():
                left, top = shape.x - shape.width / 2, shape.y - shape.height / 2
                parts.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
                    f'rx="{shape.radius:g}" fill="{shape.fill}" stroke="{shape.stroke}"/>'
                )
                if shape.text:
                    parts.append(_svg_text(shape.label))
            case Text():
                parts.append(_svg_text(shape))
            case Curve():
                dashes = ' stroke-dasharray="5 4"' if shape.dashed else ""
                line = f'fill="none" stroke="{shape.stroke}" stroke-width="{shape.width:g}"{dashes}'
                parts.append(f'<path d="{svg_path(shape.points)}" {line}/>')
                if shape.arrow:
                    parts.append(f'<polygon points="{arrow_corners(shape.points[-1])}" fill="{shape.stroke}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def to_png(scene: Scene, scale: float = 2.0) -> bytes:
    """The scene as a PNG file, with `scale` pixels per unit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
    from matplotlib.path import Path

    scale = min(scale, LARGEST_PNG / max(scene.width, scene.height))
    figure = Figure(figsize=(scene.width / 100, scene.height / 100), dpi=100 * scale, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    axes.axis("off")

    def write(text: Text, order: int) -> None:
        align = {"start": "left", "middle": "center", "end": "right"}[text.anchor]
        look: dict[str, Any] = {"color": text.color, "weight": "bold" if text.bold else "normal", "zorder": order}
        axes.text(text.x, text.y, text.text, fontsize=text.font * 0.72, ha=align, va="center_baseline", **look)

    for order, shape in enumerate(scene.shapes):
        match shape:
            case Box():
                corner = shape.x - shape.width / 2, shape.y - shape.height / 2
                style = f"round,pad=0,rounding_size={min(shape.radius, shape.height / 2)}"
                colors: dict[str, Any] = {"facecolor": shape.fill, "edgecolor": shape.stroke, "linewidth": 0.8}
                box = FancyBboxPatch(corner, shape.width, shape.height, boxstyle=style, zorder=order, **colors)
                axes.add_patch(box)
                if shape.text:
                    write(shape.label, order)
            case Text():
                write(shape, order)
            case Curve():
                vertices, codes = [shape.points[0]], [Path.MOVETO]
                for (x0, y0), (x1, y1) in zip(shape.points, shape.points[1:], strict=False):
                    middle_x = (x0 + x1) / 2
                    vertices += [(middle_x, y0), (middle_x, y1), (x1, y1)]
                    codes += [Path.CURVE4] * 3
                line = {"linewidth": shape.width * 0.72, "linestyle": (0, (4, 3)) if shape.dashed else "solid"}
                curve = Path(vertices, codes)
                axes.add_patch(PathPatch(curve, fill=False, edgecolor=shape.stroke, zorder=order, **line))
                if shape.arrow:
                    axes.add_patch(Polygon(_arrow(shape.points[-1]), color=shape.stroke, zorder=order, linewidth=0))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def svg_path(points: tuple[Point, ...]) -> str:
    """The SVG path of a curve."""
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    for (x0, y0), (x1, y1) in zip(points, rest, strict=False):
        if y0 == y1:
            path += f" L{x1:.1f} {y1:.1f}"
        else:
            middle_x = (x0 + x1) / 2
            path += f" C{middle_x:.1f} {y0:.1f} {middle_x:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    return path


def arrow_corners(tip: Point) -> str:
    """The corners of an arrow head."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in _arrow(tip))


def _svg_text(text: Text) -> str:
    weight = ' font-weight="bold"' if text.bold else ""
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" dy="0.35em" font-size="{text.font:g}" text-anchor="{text.anchor}" '
        f'fill="{text.color}"{weight}>{escape(text.text)}</text>'
    )


def _arrow(tip: Point) -> list[Point]:
    x, y = tip
    return [(x, y), (x - 7, y - 3.5), (x - 7, y + 3.5)]
