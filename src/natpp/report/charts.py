"""Small charts as inline SVG: lines and points over an axis, with colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from natpp.errors import counted

WIDTH, HEIGHT = 340, 196
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 34
Points = Sequence[tuple[float, float]]
MOST_POINTS, MOST_DOTS = 400, 2000  # limits of a line, and of separate dots; more would not be visible


@dataclass(frozen=True)
class Series:
    """A series of points, joined by a line or drawn as dots."""

    points: Points
    kind: str = "first"  # CSS class: first, second or faint
    name: str = ""
    dots: bool = False


def chart(series: Sequence[Series], across: str, up: str) -> str:
    """A chart; `across` and `up` label its axes."""
    finite = [[(float(x), float(y)) for x, y in one.points if math.isfinite(x + y)] for one in series]
    shown = [replace(one, points=points) for one, points in zip(series, finite, strict=True) if points]
    if not shown:
        return ""
    xs, ys = ([point[axis] for one in shown for point in one.points] for axis in (0, 1))
    if 0 < min(xs) < max(xs) / 2:
        xs.append(0.0)  # counts start at 0
    for values in (xs, ys):
        if min(values) == max(values):
            values.append(0.0 if values[0] else 1.0)  # so that the axis of a constant has a range
    x_ticks, y_ticks = ticks(min(xs), max(xs), 5), ticks(min(ys), max(ys), 4)
    low_x, high_x = min(*xs, x_ticks[0]), max(*xs, x_ticks[-1])
    low_y, high_y = min(*ys, y_ticks[0]), max(*ys, y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        right, above = (x - low_x) / ((high_x - low_x) or 1), (y - low_y) / ((high_y - low_y) or 1)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - above * (HEIGHT - TOP - BOTTOM)

    label = escape(f"{up} over {across}: " + "; ".join(_told(one) for one in shown))
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    for value in y_ticks:
        at = f'x="{LEFT - 6}" y="{(y := place(low_x, value)[1]):.1f}" dy="0.35em" text-anchor="end"'
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" {at}>{number(value)}</text>')
    for value in x_ticks:
        at = f'x="{place(value, low_y)[0]:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle"'
        parts.append(f'<text class="tick" {at}>{number(value)}</text>')
    parts.append(f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(across)}</text>')
    for one in shown:
        placed = [place(*point) for point in _thinned(one.points, MOST_DOTS if one.dots else MOST_POINTS)]
        if not one.dots:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
            parts.append(f'<path class="series {one.kind}" d="{path}"/>')
        if one.dots or len(placed) == 1:
            circles = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in placed)
            parts += [f'<g class="dots {one.kind}">', *circles, "</g>"]
    return "".join([*parts, "</svg>"])


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`; the outermost may lie up to one step outside."""
    if low == high:
        return [low]
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def cost_text(value: float, digits: int = 3, smallest: float = 1e3) -> str:
    """A number with few digits and, if it is not below `smallest`, a unit: 528 M."""
    units = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
    size, unit = next((one for one in units if abs(value) >= max(one[0], smallest)), (1, ""))
    return f"{value / size:.{digits}g}{unit}".replace("-", "−")


def number(value: float) -> str:
    """A number in its shortest readable form."""
    return cost_text(value or 0, digits=4, smallest=1e4)


def _thinned(points: Points, most: int) -> Points:
    step = -(-len(points) // most)
    return points if step <= 1 else [*points[::step], points[-1]]


def _told(one: Series) -> str:
    ends = f"{one.points[0][1]:.4g} to {one.points[-1][1]:.4g}" if not one.dots else counted(len(one.points), "point")
    return f"{one.name} {ends}".strip()
