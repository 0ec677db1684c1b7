"""The page of results and the table of the README, written from the results of all experiments.

Needs: nothing; seconds

Writes `docs/results.md`, and `README.md` between its two marks. `pages/` has a function for each table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.lib.settings import HERE, RESULTS, Experiment, Settings, read_results
from experiments.pages import cells, learning, nasbench201, networks, originals, random_cells, speed
from natpp.files import write_whole

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
    """The tables of all experiments and benchmarks with results."""
    parts = [HEAD]
    for name, table in TABLES.items():
        files = [file for folder in folders or FOLDERS for file in (*folder.glob(f"{name}.json"), *dated(folder, name))]
        if files and (found := read_results(files[-1])):
            parts.append(table(found))
    return "\n".join(parts)


def dated(folder: Path, name: str) -> list[Path]:
    """The results of a benchmark in files named by date, the newest last."""
    return sorted(folder.glob(f"[0-9]*-[0-9][0-9]-[0-9][0-9]-{name}.json"))


def readme(text: str, results: Path = RESULTS) -> str:
    """The README with a new table between its marks."""
    before, _, rest = text.partition(START)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"README.md needs the lines {START.strip()!r} and {END!r}")
    return before + START + "\n" + summary(results) + "\n" + mark + after


def summary(results: Path) -> str:
    """The main figures of all experiments with results: what was measured, natpp, and what it is compared with."""
    rows: list[tuple[str, str, str]] = []
    for name, lines in SUMMARY.items():
        if found := read_results(results / f"{name}.json"):
            rows += lines(found)
    table = ["| measured | natpp | beside it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(table) + "\n"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "images_nasbench201": nasbench201.images,
    "schedules": nasbench201.schedules,
    "images_cells": cells.images,
    "losses": learning.losses,
    "crossed": learning.crossed,
    "ship_policies": learning.policies,
    "judge_policies": cells.judged_policies,
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
    "images_nasbench201": nasbench201.images_rows,
    "images_cells": cells.images_summary,
    "judge_policies": cells.judged_summary,
    "table_random": random_cells.random_summary,
    "table_cells": originals.cells_trained_summary,
    "table_handcrafted": originals.handcrafted_summary,
    "resnet20": networks.module_rows,
    "resnet20_digits": networks.module_rows,
}


@dataclass(frozen=True, kw_only=True)
class Page(Settings):
    out: Path = HERE.parent / "docs" / "results.md"


def write(settings: Page) -> None:
    """Write the page and the README; the small form writes both beside each other."""
    write_whole(settings.out, page())
    file = settings.out.with_name("README.md") if settings.smoke else README
    write_whole(file, readme(README.read_text(encoding="utf-8")))


EXPERIMENT = Experiment(Page, (write,))
