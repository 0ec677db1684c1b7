"""Small charts as inline SVG: lines and points over an axis, with colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
    shown = [Series(_finite(one.points), one.kind, one.name, one.dots) for one in series]
    shown = [one for one in shown if one.points]
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
        across_share = (x - low_x) / ((high_x - low_x) or 1)
        up_share = (y - low_y) / ((high_y - low_y) or 1)
        return LEFT + across_share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up_share * (HEIGHT - TOP - BOTTOM)

    label = escape(f"{up} over {across}: " + "; ".join(_told(one) for one in shown))
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    for value in y_ticks:
        _, y = place(low_x, value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y:.1f}" dy="0.35em" text-anchor="end">{number(value)}</text>'
        )
    for value in x_ticks:
        x, _ = place(value, low_y)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{number(value)}</text>'
        )
    parts.append(f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(across)}</text>')
    for one in shown:
        placed = [place(*point) for point in _thinned(one.points, MOST_DOTS if one.dots else MOST_POINTS)]
        if one.dots:
            parts.append(f'<g class="dots {one.kind}">')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in placed]
            parts.append("</g>")
        else:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
            parts.append(f'<path class="series {one.kind}" d="{path}"/>')
            if len(placed) == 1:
                parts.append(
                    f'<g class="dots {one.kind}"><circle cx="{placed[0][0]:.1f}" cy="{placed[0][1]:.1f}" r="2.4"/></g>'
                )
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


def number(value: float) -> str:
    """A number in its shortest readable form."""
    if value == 0:
        return "0"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g} {unit}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _thinned(points: Points, most: int) -> Points:
    step = -(-len(points) // most)
    return points if step <= 1 else [*points[::step], points[-1]]


def _told(one: Series) -> str:
    ends = f"{one.points[0][1]:.4g} to {one.points[-1][1]:.4g}" if not one.dots else f"{len(one.points)} points"
    return f"{one.name} {ends}".strip()
