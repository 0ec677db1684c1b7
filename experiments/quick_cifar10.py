"""Two trainings from scratch by the recipe `quick` on CIFAR-10: a ResNet-like cell of NAS-Bench-201, and DARTS.

    python experiments/quick_cifar10.py --root DIR [--table FILE] [--smoke]

DIR as `natpp data cifar10` made it; the table of NAS-Bench-201, where given, also later, says what it has for the
first. Writes `results/quick_cifar10.json` with curves and the accuracy on the test images, read once. What is there is
not done again. `--smoke` does it on digits, one epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from small import results_apart
from truth_nasbench201 import machine

import natpp
from natpp.arch.formats import to_dict
from natpp.files import write_whole
from natpp.registry import RECIPES, ZOO
from natpp.runs.fabric import make_fabric
from natpp.scorers.table import read_table
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training, train
from natpp.training.task import Task

RESULTS = Path(__file__).parent / "results" / "quick_cifar10.json"
RESNET = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"
RUNS: dict[str, tuple[str, Recipe]] = {
    "a ResNet-like cell of NAS-Bench-201": (
        RESNET,
        replace(RECIPES["quick"], cells=5),
    ),  # five cells a stage, as in its table
    "darts": ("darts", RECIPES["quick"]),
}


def trained(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training."""
    given, recipe = RUNS[name]
    if arguments.smoke:
        recipe = replace(recipe, epochs=1, cells=None)
    fabric = make_fabric()
    task = Task.of("digits" if arguments.smoke else "cifar10", root=arguments.root)
    images = task.batches(fabric.device, recipe, validation=0)
    training = Training(natpp.load(given), images, recipe, fabric, arguments.seed)
    start = time.perf_counter()
    accuracy = train(training)
    return {
        "architecture": to_dict(training.arch),
        "recipe": asdict(recipe),
        "network": asdict(training.where),
        "seed": arguments.seed,
        "test_accuracy": accuracy,
        "seconds": time.perf_counter() - start,
        "images_per_second": training.images_per_second,
        "curve": training.curve,
        "machine": machine(),
    }


def elsewhere(given: str, table: str | None) -> dict[str, Any]:
    """The table's figures for a cell of NAS-Bench-201, the paper's for one of the zoo; both after longer trainings."""
    if given in ZOO:
        rows = [row for row in ZOO[given].published if row.data == "CIFAR"]
        return {f"{row.model}, the paper's table, 600 epochs": row.accuracy for row in rows}
    if table is None:
        return {}
    found = read_table(table, ["val_12", "val_200", "test_200"])
    row = found.archs.index(natpp.load(given))
    return {column: float(found.column(column)[row]) for column in ("val_12", "val_200", "test_200")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that natpp data cifar10 made")
    parser.add_argument("--table", help="the table of NAS-Bench-201")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    results_apart(arguments, RESULTS)
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in RUNS:
        one = found.get(name) or trained(name, arguments)
        if not one.get("elsewhere"):  # the table may be on another machine than the GPU
            one["elsewhere"] = elsewhere(RUNS[name][0], arguments.table)
        found[name] = one
        write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
        print(
            f"{name}: {one['test_accuracy']:.2f} % on the test images, {one['seconds']:.0f} s, "
            f"{one['images_per_second']:,.0f} images a second, elsewhere {one['elsewhere']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
