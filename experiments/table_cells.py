"""NAS cells: published cells, the published results of NAT and NAT++, and ours, with one recipe.

Needs: CIFAR-10 and a GPU, 10 minutes; the folder of images_cells with its policies

All are trained as in table_random, two seeds each, with the same recipe, width and depth. The policies are those of a
round of that table; another round does not train again what is already trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import natpp
from experiments.lib import tables
from experiments.lib.answers import INPUT, kept_answers
from experiments.lib.learned import known_in, mark_in
from experiments.lib.settings import RESULTS, Experiment, Trains, write_results
from experiments.lib.trainer import Trainer, read_trained
from experiments.lib.values import WHERE
from experiments.table_random import POLICIES, RECIPE
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.config import At
from natpp.registry import ZOO

FIRST, SEEDS = "table_cells_1", (0, 1)
THEIRS = {"published NAT": "nat_{}", "published NAT++": "natpp_{}"}
OURS = {"ours, `nat`": "nat", "ours, `nat++`": "nat++"}


@dataclass(frozen=True, kw_only=True)
class TableCells(Trains):
    out: Path = RESULTS / "table_cells.json"
    round: Annotated[int, At(1, max(POLICIES))] = 1
    """round of table_random whose policies answer"""


def name_of(number: int) -> str:
    """The name of a round's files."""
    return f"table_cells_{number}"


def answers(settings: TableCells) -> dict[str, Architecture]:
    """All cells of the table, by names such as `darts, published NAT`."""

    def make() -> dict[str, Architecture]:
        known = known_in(settings, POLICIES[settings.round])
        found: dict[str, Architecture] = {}
        for name in tables.PUBLISHED[: 2 if settings.smoke else None]:
            found[f"{name}, {INPUT}"] = natpp.load(name)
            for kind, form in THEIRS.items():
                if form.format(name) in ZOO:
                    found[f"{name}, {kind}"] = natpp.load(form.format(name))
            for rule in OURS.values():
                ours = natpp.optimize(name, known.policies[rule], decisions=natpp.Decisions(rule, setting=WHERE))
                found[f"{name}, {rule}"] = ours.after
        return found

    return kept_answers(
        settings.runs / f"{name_of(settings.round)}_answers.json", mark_in(settings, POLICIES[settings.round]), make
    )


def train(settings: TableCells) -> None:
    """Train all cells of a round."""
    Trainer(settings)(name_of(settings.round), RECIPE, answers(settings), SEEDS, store=FIRST)


def judge(settings: TableCells) -> None:
    """Write the results of all rounds."""
    titles, found = {rule: title for title, rule in OURS.items()}, {}
    for file in sorted(settings.runs.glob(f"{name_of(0)[:-1]}[0-9].json")):
        said, kept = read_trained(file)
        if not kept:
            continue
        rows, on = tables.with_costs(
            kept, Setting(**said["network"]), file.with_name(f"{file.stem}_latency.json"), smoke=settings.smoke
        )
        cells = tables.with_trainings(
            tables.beside_originals(rows, (INPUT, *THEIRS, *OURS.values()), "test_accuracy"), rows
        )
        number = int(file.stem.rpartition("_")[2])
        found[number] = {
            "cells": {
                name: {titles.get(kind, kind): one for kind, one in kinds.items()} for name, kinds in cells.items()
            },
            "policies": POLICIES[number],
            "trainings": len(rows),
            "latency_on": on,
            **tables.gathered(said),
        }
    if not found:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    subjects = dict.fromkeys(name for one in found.values() for name in one["cells"])
    told = {"rounds": found, "paper": {name: papers(name) for name in subjects}}
    write_results(settings.out, told)
    for one in found.values():
        tables.tell_originals(one["cells"])


def papers(name: str) -> dict[str, dict[str, float | None]]:
    """Accuracy and size of a cell and its published results in the paper's table on CIFAR-10.

    `madds_of_original` is the share of the original's MAdds in one network; the paper's two may be of different sizes.
    """
    found: dict[str, dict[str, float | None]] = {}
    before = natpp.cost(name).madds
    for kind, entry in {INPUT: name, **{kind: form.format(name) for kind, form in THEIRS.items()}}.items():
        for row in ZOO[entry].published if entry in ZOO else ():
            if row.data == "CIFAR" and "CIFAR-10" in row.accuracy:
                found[kind] = tables.published_figures(row) | {"madds_of_original": natpp.cost(entry).madds / before}
    return found


EXPERIMENT = Experiment(TableCells, (train, judge))
