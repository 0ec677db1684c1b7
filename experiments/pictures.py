"""The pictures of the README and the docs.

Needs: nothing; seconds
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import natpp
from experiments.lib.settings import HERE, RESULTS, Experiment, Settings, read_results
from natpp import verbs
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.rules import allowed
from natpp.files import write_whole
from natpp.report.scene import Box, Scene, Shape, Text, text_width, to_svg

BLUE, GOLD, GREY, PALE, SLATE = "#4a7bc0", "#c9a227", "#9aa0a6", "#f1f3f4", "#5f6368"
COLORS = (BLUE, GOLD, "#3d8f6e", "#b0506a")  # by round


def naonet() -> str:
    """NAONet, and what the default policy makes of it."""
    return natpp.draw(natpp.optimize("naonet").after, against="naonet")


def natpp_darts() -> str:
    """DARTS, and the published result of NAT++."""
    return natpp.draw("natpp_darts", against="darts")


def network() -> str:
    """DARTS in the network for CIFAR."""
    return to_svg(verbs.scene("darts", network=setting("cifar")))


def rule() -> str:
    """Allowed replacements under the two-level rule at stride 1: rows become columns."""
    cell, left, top = 26.0, 120.0, 100.0
    table = allowed("nat++", Place(36, 36), PAPER_OPS)
    width, height = left + cell * len(PAPER_OPS) + 20, top + cell * len(PAPER_OPS) + 16
    shapes: list[Shape] = [Text(left, 16, "… may become", bold=True)]
    for row, source in enumerate(PAPER_OPS):
        y = top + cell * (row + 0.5)
        shapes.append(Text(left - 8, y, source, anchor="end"))
        for column, target in enumerate(PAPER_OPS):
            kept = source == target
            fill = (GREY if kept else BLUE) if table[row, column] else PALE
            shapes.append(Box(left + cell * (column + 0.5), y, cell - 4, cell - 4, fill=fill, stroke=fill, radius=3))
    for column, target in enumerate(PAPER_OPS):  # names on two lines: type, and kernel
        kind, _, kernel = target.rpartition("_")
        if not kernel[:1].isdigit():
            kind, kernel = target.split("_")[0], ""
        words = [*kind.split("_"), kernel]
        x = left + cell * (column + 0.5)
        shapes += [Text(x, 44 + 18 * line, word, anchor="middle", font=9) for line, word in enumerate(words)]
    return to_svg(Scene(width, height, tuple(shapes)))


def bars(title: str, rows: Sequence[tuple[str, float, str]], groups: Sequence[int] = ()) -> str:
    """Shares from 0 to 1 as bars with names and figures; there is a gap before the rows in `groups`."""
    left, length, step = 20 + max(text_width(name) for name, _, _ in rows), 360.0, 24.0
    shapes: list[Shape] = [Text(16, 18, title, bold=True)]
    y = 32.0
    for number, (name, share, color) in enumerate(rows):
        y += step + (10 if number in groups else 0)
        full = min(max(share, 0.0), 1.0) * length
        shapes.append(Text(left, y, name, anchor="end"))
        shapes.append(Box(left + 10 + length / 2, y, length, 14, fill=PALE, stroke=PALE, radius=2))
        if full:
            shapes.append(Box(left + 10 + full / 2, y, full, 14, fill=color, stroke=color, radius=2))
        shapes.append(Text(left + 18 + length, y, f"{share:.3f}".replace("-", "−")))
    return to_svg(Scene(left + length + 80, y + 24, tuple(shapes)))


def learning() -> str:
    """Gains of the paper's settings, ours and the rivals, by true scores."""
    found = read_results(RESULTS / "nasbench201.json")
    ours, paper = (found[name]["found"]["methods"] for name in ("val_200", "val_200, preset paper"))
    rows = [
        ("natpp", ours["nat++"], BLUE),
        ("the paper's settings", paper["nat++"], GOLD),
        ("a fixed map", ours["constant"], GREY),
        ("evolution, 10 scores an input", ours["evolution"], GREY),
        ("best of 10 random ones", ours["random-best-of-10"], GREY),
    ]
    shares = [(name, one["share_of_oracle"], color) for name, one, color in rows]
    return bars("share of what the oracle gains, NAS-Bench-201, one shot", shares)


def evaluations() -> str:
    """The same gains when few architectures may be scored."""
    found = read_results(RESULTS / "nasbench201.json")
    names = {"nat++": ("natpp", BLUE), "constant": ("a fixed map", GREY), "random-best-of-10": ("best of 10", GREY)}
    rows = []
    for count in (30, 100, 300, 1000):
        methods = found[f"val_200, {count} evaluations"]["found"]["methods"]
        rows += [
            (f"{count:,} scored: {name}" if method == "nat++" else name, methods[method]["share_of_oracle"], color)
            for method, (name, color) in names.items()
        ]
    title = "share of what the oracle gains, the rest predicted"
    return bars(title, rows, groups=range(len(names), len(rows), len(names)))


@dataclass(frozen=True)
class Line:
    """A line through points; an arrow starts with a dot, which is all of it if it has no length."""

    points: tuple[tuple[float, float], ...]
    color: str
    arrow: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines on axes, with a title, and coloured words in a right corner."""

    title: str
    lines: tuple[Line, ...]
    words: tuple[tuple[str, str], ...] = ()


def random_cells(results: Path = RESULTS) -> str:
    """Test accuracy against parameters: from each random cell to the answer of each method."""
    rounds = _rounds(results)
    colors = dict(zip(rounds, itertools.cycle(COLORS)))

    def place(one: Mapping[str, float]) -> tuple[float, float]:
        return one["live_params"] / 1e6, one["test_accuracy"]

    methods = [name for name in next(iter(rounds.values()))["methods"] if name != "input"]
    shown = [
        Panel(
            name,
            tuple(
                Line((place(row["input"]), place(row[name])), colors[number], arrow=True)
                for number, one in rounds.items()
                for row in one["rows"].values()
            ),
            tuple((f"round {number}", colors[number]) for number in rounds) if len(rounds) > 1 else (),
        )
        for name in methods
    ]
    return panels("test accuracy, %, against live parameters, M: from each original to its result", shown, columns=3)


def convergence(results: Path = RESULTS) -> str:
    """Training curves and skips of some originals of each round, and of the answers of nat++."""
    shown = []
    for number, one in _rounds(results).items():
        config = one["recipe"]["config"]
        epochs = config["steps"] * config["batch"] / one["images"]
        for subject, kinds in one["convergence"].items():
            lines, words = [], []
            for (name, of), color in zip(kinds.items(), (SLATE, BLUE), strict=True):
                width = epochs / len(of["curve"])  # each point is the mean over this part
                lines.append(Line(tuple(((i + 0.5) * width, loss) for i, loss in enumerate(of["curve"])), color))
                title = "original" if name == "input" else name
                words.append((f"{title}: {of['test_accuracy']:.1f} %, skips: {of['skips']}", color))
            shown.append(Panel(f"round {number}, {subject}", tuple(lines), tuple(words)))
    return panels("training loss by epoch; test accuracy, living skips", shown, columns=4)


def _rounds(results: Path) -> dict[str, Any]:
    return dict(read_results(results / "table_random.json")["rounds"])


def panels(title: str, shown: Sequence[Panel], *, columns: int) -> str:
    """Panels in rows, all on the same axes with round figures."""
    left, top, width, height, gap = 48.0, 40.0, 220.0, 170.0, 56.0
    points = [point for panel in shown for line in panel.lines for point in line.points]
    across, up = (_ticks([point[axis] for point in points]) for axis in (0, 1))
    sheet = left + columns * (width + gap), top + math.ceil(len(shown) / columns) * (height + gap)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet[0]:.0f}" height="{sheet[1]:.0f}"'
        f' viewBox="0 0 {sheet[0]:.0f} {sheet[1]:.0f}"'
        ' font-family="DejaVu Sans, Verdana, Geneva, sans-serif" font-size="11" fill="#222222">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="16" y="20" font-size="12" font-weight="bold">{title}</text>',
    ]
    for color in sorted({line.color for panel in shown for line in panel.lines if line.arrow}):
        lines.append(
            f'<marker id="tip{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"'
            f' orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        )
    for number, panel in enumerate(shown):
        row, column = divmod(number, columns)
        x, y = left + column * (width + gap), top + 20 + row * (height + gap)
        lines += _panel(panel, across, up, (x, y), (width, height))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(
    panel: Panel, across: Sequence[float], up: Sequence[float], corner: tuple[float, float], size: tuple[float, float]
) -> list[str]:
    """A panel at a corner, on axes with the given figures."""
    (left, top), (width, height) = corner, size
    right, bottom = left + width, top + height

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = ((value - ticks[0]) / (ticks[-1] - ticks[0]) for value, ticks in zip(point, (across, up), strict=True))
        return left + x * width, bottom - y * height

    lines = [f'<text x="{left:.1f}" y="{top - 8:.1f}" font-weight="bold">{panel.title}</text>']
    for value in across:
        x, _ = place((value, up[0]))
        lines.append(f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="{PALE}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{value:g}</text>')
    for value in up:
        _, y = place((across[0], value))
        lines.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="{PALE}"/>')
        lines.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for line in panel.lines:
        places = [place(point) for point in line.points]
        if line.arrow:
            lines.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.5" fill="{GREY}"/>')
        if len(set(places)) > 1:
            tip = f' marker-end="url(#tip{line.color[1:]})"' if line.arrow else ""
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="1.4"{tip}/>')
    aside = [y for line in panel.lines for x, y in map(place, line.points) if x > (left + right) / 2]
    above = sum(y < (top + bottom) / 2 for y in aside)
    first = top + 14 if 2 * above <= len(aside) else bottom - 6 - 15 * (len(panel.words) - 1)  # in the emptier corner
    for number, (word, color) in enumerate(panel.words):
        y = first + 15 * number
        lines.append(f'<text x="{right - 4:.1f}" y="{y:.1f}" text-anchor="end" fill="{color}">{word}</text>')
    return lines


def _ticks(values: Sequence[float]) -> list[float]:
    """Evenly spaced round figures, with all values between the first and the last."""
    low, high = min(values), max(values)
    span = max(high - low, 1e-6 * max(abs(high), 1))
    step = 10 ** math.floor(math.log10(span))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1, 2) if span / (factor * step) <= 6)
    first = math.floor(low / step)
    return [
        round(number * step, 10)
        for number in range(first, math.ceil(high / step) + (math.ceil(high / step) == first) + 1)
    ]


PICTURES: dict[str, Callable[[], str]] = {
    "naonet": naonet,
    "natpp_darts": natpp_darts,
    "network": network,
    "rule": rule,
    "learning": learning,
    "evaluations": evaluations,
    "random": random_cells,
    "convergence": convergence,
}


@dataclass(frozen=True, kw_only=True)
class Pictures(Settings):
    out: Path = HERE.parent / "docs" / "pictures"
    """folder for the pictures"""


def draw(settings: Pictures) -> None:
    """Draw all pictures."""
    settings.out.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        write_whole(settings.out / f"{name}.svg", picture())


EXPERIMENT = Experiment(Pictures, (draw,))
