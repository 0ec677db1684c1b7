"""Training from scratch with recipe `quick` on CIFAR-10: a ResNet-like cell of NAS-Bench-201, and DARTS.

Needs: CIFAR-10 and a GPU, a minute or two

The table of NAS-Bench-201 adds what it has for the first one; it can be given later. The test images are read once.
What is already in the results is not done again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import natpp
from experiments.lib.machine import machine
from experiments.lib.settings import RESULTS, Experiment, Images, Tabled, read_results, write_results
from experiments.lib.trainer import data_name
from natpp.arch.formats import to_dict
from natpp.registry import RECIPES, ZOO
from natpp.runs.fabric import make_fabric
from natpp.scorers.table import read_table
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training, train
from natpp.training.task import Task

RESNET = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"
RUNS: dict[str, tuple[str, Recipe]] = {
    "a ResNet-like cell of NAS-Bench-201": (RESNET, RECIPES.given("quick:cells=5")),  # a stage, as in its table
    "darts": ("darts", RECIPES["quick"]),
}


@dataclass(frozen=True, kw_only=True)
class QuickCifar10(Images, Tabled):
    out: Path = RESULTS / "quick_cifar10.json"
    seed: int = 0
    """seed of both trainings"""


def trained(name: str, settings: QuickCifar10) -> dict[str, Any]:
    """Results of one training."""
    given, recipe = RUNS[name]
    if settings.smoke:
        recipe = replace(recipe, epochs=1, cells=None)
    fabric = make_fabric()
    task = Task.of(data_name(smoke=settings.smoke), root=settings.root)
    images = task.batches(fabric.device, recipe, validation=0)
    training = Training(natpp.load(given), images, recipe, fabric, settings.seed)
    start = time.perf_counter()
    accuracy = train(training)
    return {
        "architecture": to_dict(training.arch),
        "recipe": asdict(recipe),
        "network": asdict(training.where),
        "seed": settings.seed,
        "test_accuracy": accuracy,
        "seconds": time.perf_counter() - start,
        "images_per_second": training.images_per_second,
        "curve": training.curve,
        "machine": machine(),
    }


def elsewhere(given: str, table: str | None) -> dict[str, Any]:
    """Published figures after longer training: the table's for NAS-Bench-201, the paper's for a cell of the zoo."""
    if given in ZOO:
        rows = [row for row in ZOO[given].published if row.data == "CIFAR"]
        return {f"{row.model}, the paper's table, 600 epochs": row.accuracy for row in rows}
    if table is None:
        return {}
    found = read_table(table, ["val_12", "val_200", "test_200"])
    row = found.archs.index(natpp.load(given))
    return {column: float(found.column(column)[row]) for column in ("val_12", "val_200", "test_200")}


def measure(settings: QuickCifar10) -> None:
    """Run the trainings that have no results yet."""
    found = read_results(settings.out)
    for name in RUNS:
        one = found.get(name) or trained(name, settings)
        if not one.get("elsewhere"):  # the table may be on another machine than the GPU
            one["elsewhere"] = elsewhere(RUNS[name][0], settings.table)
        found[name] = one
        write_results(settings.out, found)
        print(
            f"{name}: {one['test_accuracy']:.2f} % on the test images, {one['seconds']:.0f} s, "
            f"{one['images_per_second']:,.0f} images a second, elsewhere {one['elsewhere']}",
            flush=True,
        )


EXPERIMENT = Experiment(QuickCifar10, (measure,))
