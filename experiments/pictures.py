"""The pictures of README and docs, drawn by natpp: `python experiments/pictures.py` writes `docs/pictures/*.svg`."""

from __future__ import annotations

import json
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


def darts() -> str:
    """DARTS, and what the policy that ships makes of it."""
    return natpp.draw(natpp.optimize("darts").after, against="darts")


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


PICTURES: dict[str, Callable[[], str]] = {
    "darts": darts,
    "natpp_darts": natpp_darts,
    "network": network,
    "rule": rule,
    "learning": learning,
    "evaluations": evaluations,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        write_whole(FOLDER / f"{name}.svg", draw())
