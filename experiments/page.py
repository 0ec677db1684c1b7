"""The page of results, from what the experiments measured, and the table of the README.

`python experiments/page.py` writes `docs/results.md`, and `README.md` between its two marks. Its parts are in `pages/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import cells, learning, nasbench201, networks, originals, random_cells, speed

from natpp.files import write_whole

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
README = HERE.parent / "README.md"
FOLDERS = (HERE / "results", HERE.parent / "benchmarks" / "results")
START, END = "<!-- results: written by experiments/page.py -->\n", "<!-- end of results -->"
HEAD = """# Results

Written by `experiments/page.py` from `experiments/results/*.json` and the newest files of `benchmarks/results/`, which
also have settings, seeds, versions and hardware. The command that makes each table again stands above it. The methods
on true scores of NAS-Bench-201 are on [a page of their own](nasbench201.md), costs of hand-crafted networks
[too](zoo.md). [How to reproduce them](reproduce.md) lists all scripts with what they need.
"""


def page(*folders: Path) -> str:
    """All tables for which there are results."""
    parts = [HEAD]
    for name, table in TABLES.items():
        files = [file for folder in folders or FOLDERS for file in (*folder.glob(f"{name}.json"), *dated(folder, name))]
        if files:
            parts.append(table(json.loads(files[-1].read_text())))
    return "\n".join(parts)


def dated(folder: Path, name: str) -> list[Path]:
    """Files of a benchmark named by date, the newest one last."""
    return sorted(folder.glob(f"[0-9]*-[0-9][0-9]-[0-9][0-9]-{name}.json"))


def readme(text: str, results: Path = HERE / "results") -> str:
    """The README with a new table between its marks."""
    before, _, rest = text.partition(START)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"the README has no lines {START.strip()!r} and {END!r}")
    return before + START + "\n" + summary(results) + "\n" + mark + after


def summary(results: Path) -> str:
    """The main figures for which there are results: what was measured, natpp, what stands beside it."""
    rows: list[tuple[str, str, str]] = []
    for name, lines in SUMMARY.items():
        file = results / f"{name}.json"
        if file.exists():
            rows += lines(json.loads(file.read_text()))
    table = ["| measured | natpp | beside it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(table) + "\n"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "truth_nasbench201": nasbench201.truth,
    "schedules_nasbench201": nasbench201.schedules,
    "truth_cells": cells.truth_cells,
    "losses": learning.losses,
    "crossed": learning.crossed,
    "policies": learning.policies,
    "worth": cells.worth,
    "finals": learning.finals,
    "table_random": random_cells.table_random,
    "table_cells": originals.table_cells,
    "table_handcrafted": originals.table_handcrafted,
    "quick_cifar10": networks.quick,
    "resnet20": networks.resnet20,
    "resnet20_digits": networks.resnet20,
    "training": speed.speed,
    "separable": speed.kernels,
    "fx_models": networks.fx_models,
}


SUMMARY: dict[str, Callable[[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "nasbench201": nasbench201.table_rows,
    "truth_nasbench201": nasbench201.truth_rows,
    "truth_cells": cells.cells_summary,
    "worth": cells.worth_summary,
    "table_random": random_cells.random_summary,
    "table_cells": originals.cells_trained_summary,
    "table_handcrafted": originals.handcrafted_summary,
    "resnet20": networks.module_rows,
    "resnet20_digits": networks.module_rows,
}


if __name__ == "__main__":
    write_whole(PAGE, page())
    write_whole(README, readme(README.read_text(encoding="utf-8")))
