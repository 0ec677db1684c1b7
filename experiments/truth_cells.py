"""Cells of the thirteen-operation space trained for longer on CIFAR-10, and short trainings that should agree.

    python experiments/truth_cells.py train --root DIR --runs FOLDER [--seconds 540]
    python experiments/truth_cells.py schedules --root DIR --runs FOLDER [--only NAME;…] [--seconds 540]
    python experiments/truth_cells.py judge --runs FOLDER

The first trains the cells of `cells.py` (15 epochs of 45,000 images, a full cosine, 8 cells, 16 channels), many side by
side on a GPU; the second scores those that are not set aside by shorter schedules, from which one is picked. Every
finished group is kept in FOLDER, what is there is not done again, and no group is begun that would not end within
`--seconds`. The last runs anywhere and writes `results/truth_cells.json`. `--smoke` does it on digits with four cells.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, truth_cells
from schedules_nasbench201 import partial
from scipy.stats import spearmanr
from truth_nasbench201 import machine

from natpp.arch.cost import counts
from natpp.arch.layout import Setting, setting
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.evaluate.outcome import Outcome
from natpp.evaluate.short import ShortConfig, ShortScorer
from natpp.files import write_whole
from natpp.improve.scorer import Scores
from natpp.runs import make_fabric

RESULTS = Path(__file__).parent / "results" / "truth_cells.json"
EPOCHS, IMAGES, BATCH = 15, 45_000, 128


@dataclass(frozen=True)
class Schedule:
    """A training, and the network it is done in."""

    cells: int
    config: ShortConfig
    channels: int = 16


LONGER = Schedule(
    cells=8,
    config=ShortConfig(
        batch=BATCH,
        steps=EPOCHS * IMAGES // BATCH,
        learning_rate=0.05,
        warm_up=0.05,
        clip=5.0,
        augment=True,
        together=16,
    ),
)
SHORT = ShortConfig(batch=BATCH, steps=1200, learning_rate=0.1, warm_up=0.2, clip=5.0, together=16)
SCHEDULES = {
    "5 cells, 1200 steps, learning rate 0.1": Schedule(5, SHORT),
    "5 cells, 1200 steps, learning rate 0.05": Schedule(5, replace(SHORT, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05": Schedule(5, replace(SHORT, steps=2400, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05, augmented": Schedule(
        5, replace(SHORT, steps=2400, learning_rate=0.05, augment=True)
    ),
    "3 cells, 2400 steps, learning rate 0.05": Schedule(3, replace(SHORT, steps=2400, learning_rate=0.05)),
}


def chosen(*, smoke: bool) -> list[Cell]:
    """The cells; of the small form one of each kind, and one that is set aside."""
    found = truth_cells()
    return [found[i] for i in (0, 28, 54, 2)] if smoke else found


def small(schedule: Schedule) -> Schedule:
    """The same in a few steps."""
    return Schedule(2, replace(schedule.config, steps=3, batch=16, together=2), channels=4)


class Trainer:
    """Trains cells in groups until the time is up; everything finished is kept."""

    def __init__(self, arguments: argparse.Namespace):
        self.start, self.seconds = time.perf_counter(), arguments.seconds
        self.fabric = make_fabric()
        data = "digits" if arguments.smoke else "cifar10"
        self.images = Batches(load_images(data, arguments.root), self.fabric.device)
        self.runs: Path = arguments.runs
        self.smoke: bool = arguments.smoke

    def __call__(self, name: str, schedule: Schedule, cells: Sequence[Cell]) -> bool:
        """Whether all cells are trained by a schedule; what is known is written to a file of that name."""
        schedule = small(schedule) if self.smoke else schedule
        where = setting(
            "cifar",
            channels=schedule.channels,
            cells=schedule.cells,
            size=self.images.size,
            classes=self.images.classes,
        )
        store = self.runs / f"{name}.jsonl"
        scorer = ShortScorer(self.images, where, schedule.config, self.fabric, store=store, say=print)
        known = scorer.stored([scorer.key(cell.arch) for cell in cells])
        waiting = scorer.arranged([cell.arch for cell in cells if scorer.key(cell.arch) not in known])
        longest = max((outcome.seconds for outcome in known.values()), default=0.0) * scorer.together
        for at in range(0, len(waiting), scorer.together):
            if self.seconds is not None and time.perf_counter() - self.start + 1.1 * longest > self.seconds:
                break
            some, began = waiting[at : at + scorer.together], time.perf_counter()
            known |= dict(zip(map(scorer.key, some), scorer.outcomes(some), strict=True))
            longest = max(longest, time.perf_counter() - began)
            print(f"{name}: {len(known)} of {len(cells)}, {time.perf_counter() - began:.0f} s", flush=True)
        self._write(name, schedule, where, [(cell, known.get(scorer.key(cell.arch))) for cell in cells])
        return len(known) == len(cells)

    def _write(
        self, name: str, schedule: Schedule, where: Setting, found: Sequence[tuple[Cell, Outcome | None]]
    ) -> None:
        rows = [
            {
                "name": cell.name,
                "kind": cell.kind,
                "parent": cell.parent,
                "aside": cell.aside,
                "live_madds": counts(cell.arch, where).live_madds,
                "params": counts(cell.arch, where).live_params,
                **asdict(outcome),
            }
            for cell, outcome in found
            if outcome is not None
        ]
        whole = {"schedule": asdict(schedule.config), "network": asdict(where), "machine": machine(), "cells": rows}
        write_whole(self.runs / f"{name}.json", json.dumps(whole) + "\n")


def train(arguments: argparse.Namespace) -> None:
    Trainer(arguments)("longer", LONGER, chosen(smoke=arguments.smoke))


def schedules(arguments: argparse.Namespace) -> None:
    trainer = Trainer(arguments)
    cells = [cell for cell in chosen(smoke=arguments.smoke) if not cell.aside]
    for number, (name, schedule) in enumerate(SCHEDULES.items()):
        if arguments.only is None or name in arguments.only.split(";"):
            trainer(f"short_{number}", schedule, cells)


def judge(arguments: argparse.Namespace) -> None:
    """How far every schedule agrees with the longer training, over the cells that both have."""
    longer = json.loads((arguments.runs / "longer.json").read_text())
    truth = {row["name"]: row for row in longer["cells"] if row["accuracy"] is not None}
    found: dict[str, Any] = {
        "cells": len(truth),
        "seconds": sum(row["seconds"] for row in truth.values()),
        "longer": longer,
        "schedules": {},
    }
    for number, name in enumerate(SCHEDULES):
        file = arguments.runs / f"short_{number}.json"
        if file.exists():
            said = json.loads(file.read_text())
            found["schedules"][name] = agreement(said.pop("cells"), truth) | said
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for name, one in found["schedules"].items():
        print(name, {key: value for key, value in one.items() if key in ("validation", "training", "both", "seconds")})


def agreement(rows: Sequence[dict[str, Any]], truth: dict[str, Any]) -> dict[str, Any]:
    """Spearman with the longer training, what is left given living multiply-adds, and that of changes of a parent."""
    rows = [row for row in rows if row["name"] in truth and row["loss"] is not None]
    accuracy = np.array([truth[row["name"]]["accuracy"] for row in rows])
    madds = np.array([truth[row["name"]]["live_madds"] for row in rows], dtype=float)
    validation, training = (
        np.array(losses) for losses in ([row["loss"] for row in rows], [row["curve"][-1] for row in rows])
    )
    place = {row["name"]: index for index, row in enumerate(rows)}
    pairs = [(index, place[row["parent"]]) for index, row in enumerate(rows) if row["parent"] in place]
    found: dict[str, Any] = {"seconds": sum(row["seconds"] for row in rows), "trained": len(rows)}
    for kind, losses in (("validation", validation), ("training", training), ("both", (validation + training) / 2)):
        found[kind] = {
            "spearman": _spearman(-losses, accuracy),
            "partial_given_madds": partial(-losses, accuracy, madds) if len(rows) > 3 else None,
            "paired_spearman": _spearman(*(_differences(values, pairs) for values in (-losses, accuracy))),
        }
    return found


def _differences(values: Scores, pairs: Sequence[tuple[int, int]]) -> Scores:
    return np.array([values[change] - values[parent] for change, parent in pairs])


def _spearman(one: Scores, other: Scores) -> float | None:
    return float(spearmanr(one, other).statistic) if len(one) > 2 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for command in (train, schedules, judge):
        one = commands.add_parser(command.__name__)
        one.set_defaults(command=command)
        one.add_argument("--runs", type=Path, required=True)
        one.add_argument("--smoke", action="store_true")
        one.add_argument("--root", help="folder that natpp data cifar10 made")
        one.add_argument("--seconds", type=float, help="begin no group that would end later")
        one.add_argument("--only", help="names of schedules, with semicolons between")
        one.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    arguments.command(arguments)


if __name__ == "__main__":
    main()
