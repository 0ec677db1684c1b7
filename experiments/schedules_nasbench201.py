"""How the schedule of short trainings was picked: schedules on one named set of architectures, by `val_200`.

    python experiments/schedules_nasbench201.py --root DIR --table FILE [--only NAME,…] [--smoke]

The set is `named_set()` of `truth_nasbench201.py`. Everything else that is said about short trainings comes from other
architectures and seeds. Writes `results/schedules_nasbench201.json`; a schedule that is there is not trained again. A
GPU takes about a minute for each. `--smoke` does one on digits, in a few steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import partial
from scipy.stats import spearmanr
from small import results_apart
from truth_nasbench201 import NAMED, NAMED_SEED, WHERE, machine, named_set

from natpp.arch.cost import counts
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.files import write_whole
from natpp.nets.network import build_network
from natpp.runs.fabric import make_fabric
from natpp.scorers.table import Table, read_table
from natpp.training.recipe import ShortConfig
from natpp.training.together import Trial, train_together

RESULTS = Path(__file__).parent / "results" / "schedules_nasbench201.json"
PICKED = "1200 steps, learning rate 0.1 after 0.2 of warm-up"
SCHEDULES: dict[str, dict[str, Any]] = {
    "800 steps, learning rate 0.03": {},
    "learning rate 0.1": {"learning_rate": 0.1},
    "learning rate 0.1, augmented": {"learning_rate": 0.1, "augment": True},
    "batch 256": {"batch": 256},
    "3 cells a stage": {"cells": 3},
    "400 steps": {"steps": 400},
    "200 steps": {"steps": 200},
    "400 steps, learning rate 0.015": {"steps": 400, "learning_rate": 0.015},
    "batch 256, learning rate 0.1 after 0.1 of warm-up, augmented": {
        "batch": 256,
        "learning_rate": 0.1,
        "warm_up": 0.1,
        "augment": True,
    },
    "1200 steps, learning rate 0.05, augmented": {"steps": 1200, "learning_rate": 0.05, "augment": True},
    PICKED: {"steps": 1200, "learning_rate": 0.1, "warm_up": 0.2},
    "1 cell a stage, 1600 steps, learning rate 0.05, augmented": {
        "cells": 1,
        "steps": 1600,
        "learning_rate": 0.05,
        "augment": True,
    },
    "1 cell a stage, batch 256, learning rate 0.1 after 0.1 of warm-up": {
        "cells": 1,
        "batch": 256,
        "learning_rate": 0.1,
        "warm_up": 0.1,
    },
}


def trained(changes: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores of the set by one schedule."""
    fabric = make_fabric()
    images = Batches(load_images("digits" if arguments.smoke else "cifar10", arguments.root), fabric.device)
    changes = {"cells": 2} | changes
    where = setting("nasbench201", channels=16, cells=changes.pop("cells"), size=images.size, classes=images.classes)
    schedule = replace(ShortConfig(), **(changes | {"steps": 2, "batch": 16} if arguments.smoke else changes))
    archs = named_set()[: 4 if arguments.smoke else NAMED]
    start = time.perf_counter()
    found = []
    for at in range(0, len(archs), schedule.together):
        some = archs[at : at + schedule.together]
        builds = [functools.partial(build_network, arch, where) for arch in some]
        found += train_together(builds, [1] * len(some), Trial(images, schedule, fabric.device, NAMED_SEED))
    return {
        "schedule": asdict(schedule),
        "network": asdict(where),
        "seconds": time.perf_counter() - start,
        "mean_accuracy": float(np.mean([one.accuracy or 0.0 for one in found])),
        "losses": [one.loss for one in found],
        "training_losses": [one.curve[-1] for one in found],
        "machine": machine(),
    }


def judged(one: dict[str, Any], table: Table) -> dict[str, dict[str, float | None]]:
    """Agreement of every kind of loss with `val_200`: Spearman, and what is left of it given living multiply-adds."""
    validation = np.array([np.inf if loss is None else loss for loss in one["losses"]])
    training = np.array(one["training_losses"])
    archs = named_set()[: len(validation)]
    first: dict[Architecture, int] = {}
    for row, arch in enumerate(table.archs):
        first.setdefault(arch.essence(), row)
    truth = table.column("val_200")[[first[arch] for arch in archs]]
    madds = np.array([counts(arch, WHERE).live_madds for arch in archs], dtype=float)
    kinds = {"validation": validation, "training": training, "both": (validation + training) / 2}
    return {
        name: {
            "spearman": float(spearmanr(-losses, truth).statistic),
            "partial_given_madds": partial(-losses, truth, madds),
        }
        for name, losses in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that natpp data cifar10 made")
    parser.add_argument("--table", help="the table of NAS-Bench-201")
    parser.add_argument("--only", help="names of schedules, with semicolons between")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    results_apart(arguments, RESULTS)
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.only.split(";") if arguments.only else SCHEDULES:
        if name not in found:
            found[name] = {"picked": name == PICKED} | trained(SCHEDULES[name], arguments)
        if arguments.table:
            table = read_table(arguments.table, ["val_200"])
            found[name]["agreement"] = judged(found[name], table)
        write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
        print(name, found[name].get("agreement", found[name]["mean_accuracy"]), flush=True)


if __name__ == "__main__":
    main()
