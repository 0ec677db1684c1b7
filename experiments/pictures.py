"""The pictures of README and docs, drawn by natpp: `python experiments/pictures.py` writes `docs/pictures/*.svg`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import natpp
from natpp import api
from natpp.arch.layout import setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.transitions import allowed
from natpp.files import write_whole
from natpp.report.scene import Box, Scene, Shape, Text, text_width, to_svg

HERE = Path(__file__).parent
FOLDER = HERE.parent / "docs" / "pictures"
BLUE, GOLD, GREY, PALE = "#4a7bc0", "#c9a227", "#9aa0a6", "#f1f3f4"


def naonet() -> str:
    """NAONet, and what the policy that ships makes of it."""
    return natpp.draw(natpp.optimize("naonet").after, against="naonet")


def natpp_darts() -> str:
    """DARTS, and the result that the authors of NAT++ published."""
    return natpp.draw("natpp_darts", against="darts")


def network() -> str:
    """DARTS in the network for CIFAR."""
    return to_svg(api.scene("darts", network=setting("cifar")))


def rule() -> str:
    """What may become what under the two-level rule, at stride 1: rows become columns."""
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
    """Shares from 0 to 1 as bars, with a name before and the figure behind; a gap before the rows in `groups`."""
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
    """What the paper's settings, ours and the rivals gain where every score is true."""
    found = json.loads((HERE / "results" / "nasbench201.json").read_text(encoding="utf-8"))
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
    """What is left of it where few architectures may be scored."""
    found = json.loads((HERE / "results" / "nasbench201.json").read_text(encoding="utf-8"))
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


def random_cells(results: Path = HERE / "results") -> str:
    """Test accuracy against parameters: from each random cell to what one shot of nat++ makes of it."""
    rounds = json.loads((results / "table_random.json").read_text(encoding="utf-8"))["rounds"]
    rows = list(rounds.values())[-1]["rows"].values()
    pairs = [
        tuple((row[name]["live_params"] / 1e6, row[name]["test_accuracy"]) for name in ("input", "nat++"))
        for row in rows
    ]
    return arrows("test accuracy, %, against live parameters, M: from each random cell to its nat++ result", pairs)


def arrows(title: str, pairs: Sequence[tuple[tuple[float, float], ...]]) -> str:
    """Arrows from a first to a second point of each pair, on axes with round figures."""
    left, top, width, height = 56.0, 40.0, 560.0, 320.0
    places = []
    ticks = [_ticks([point[axis] for pair in pairs for point in pair]) for axis in (0, 1)]
    for axis, (start, length) in enumerate(((left, width), (top + height, -height))):
        low, high = ticks[axis][0], ticks[axis][-1]
        places.append(
            lambda value, low=low, high=high, start=start, length=length: start + (value - low) / (high - low) * length
        )
    across, up = places
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 24:.0f}" height="{top + height + 36:.0f}"'
        f' viewBox="0 0 {left + width + 24:.0f} {top + height + 36:.0f}"'
        ' font-family="DejaVu Sans, Verdana, Geneva, sans-serif" font-size="11" fill="#222222">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="16" y="22" font-size="12" font-weight="bold">{title}</text>',
        f'<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{BLUE}"/></marker>',
    ]
    for value in ticks[0]:
        x = across(value)
        lines.append(f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{top + height:.1f}" stroke="{PALE}"/>')
        lines.append(f'<text x="{x:.1f}" y="{top + height + 16:.1f}" text-anchor="middle">{value:g}</text>')
    for value in ticks[1]:
        y = up(value)
        lines.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{left + width:.1f}" y2="{y:.1f}" stroke="{PALE}"/>')
        lines.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for (x1, y1), (x2, y2) in pairs:
        lines.append(f'<circle cx="{across(x1):.1f}" cy="{up(y1):.1f}" r="3.5" fill="{GREY}"/>')
        if (x1, y1) != (x2, y2):
            lines.append(
                f'<line x1="{across(x1):.1f}" y1="{up(y1):.1f}" x2="{across(x2):.1f}" y2="{up(y2):.1f}"'
                f' stroke="{BLUE}" stroke-width="1.4" marker-end="url(#tip)"/>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _ticks(values: Sequence[float]) -> list[float]:
    """Round figures, equally far apart, that hold all values between the first and the last."""
    low, high = min(values), max(values)
    span = max(high - low, 1e-6 * max(abs(high), 1))
    step = 10 ** math.floor(math.log10(span))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1, 2) if span / (factor * step) <= 8)
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
}
if (HERE / "results" / "table_random.json").exists():
    PICTURES["random"] = random_cells


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        write_whole(FOLDER / f"{name}.svg", draw())
