"""How the schedule of short trainings was picked: schedules on one set of architectures, by `val_200`.

Needs: CIFAR-10 and a GPU, a minute or two for each schedule; the table of NAS-Bench-201

The set is `named_set()` of images_nasbench201; all other statements about short trainings are made on other
architectures and seeds. Schedules with results are not trained again.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.images_nasbench201 import NAMED, NAMED_SEED, live_madds, named_set, spearman
from experiments.lib.machine import machine
from experiments.lib.settings import RESULTS, Experiment, Images, Tabled, read_results, write_results
from experiments.lib.statistics import partial
from experiments.lib.trainer import data_name
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.nets.network import build_network
from natpp.runs.fabric import make_fabric
from natpp.scorers.table import Table, read_table
from natpp.training.recipe import ShortConfig
from natpp.training.together import Trial, train_together

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


@dataclass(frozen=True, kw_only=True)
class Schedules(Images, Tabled):
    out: Path = RESULTS / "schedules.json"
    only: tuple[str, ...] = ()
    """names of schedules; default: all"""


def trained(changes: dict[str, Any], settings: Schedules) -> dict[str, Any]:
    """Losses of the set by one schedule."""
    fabric = make_fabric()
    images = Batches(load_images(data_name(smoke=settings.smoke), settings.root), fabric.device)
    changes = {"cells": 2} | changes
    where = setting("nasbench201", channels=16, cells=changes.pop("cells"), size=images.size, classes=images.classes)
    schedule = replace(ShortConfig(), **(changes | {"steps": 2, "batch": 16} if settings.smoke else changes))
    archs = named_set()[: 4 if settings.smoke else NAMED]
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
    """Agreement of each kind of loss with `val_200`: Spearman, and the same given living multiply-adds."""
    validation = np.array([np.inf if loss is None else loss for loss in one["losses"]])
    training = np.array(one["training_losses"])
    archs = named_set()[: len(validation)]
    first: dict[Architecture, int] = {}
    for row, arch in enumerate(table.archs):
        first.setdefault(arch.essence(), row)
    truth = table.column("val_200")[[first[arch] for arch in archs]]
    madds = live_madds(archs)
    kinds = {"validation": validation, "training": training, "both": (validation + training) / 2}
    return {
        name: {"spearman": spearman(-losses, truth), "partial_given_madds": partial(-losses, truth, madds)}
        for name, losses in kinds.items()
    }


def measure(settings: Schedules) -> None:
    """Train by the schedules that have no results yet, and judge them if there is a table."""
    found = read_results(settings.out)
    for name in settings.only or SCHEDULES:
        if name not in found:
            found[name] = {"picked": name == PICKED} | trained(SCHEDULES[name], settings)
        if settings.table:
            found[name]["agreement"] = judged(found[name], read_table(settings.table, ["val_200"]))
        write_results(settings.out, found)
        print(name, found[name].get("agreement", found[name]["mean_accuracy"]), flush=True)


EXPERIMENT = Experiment(Schedules, (measure,))
