"""Hand-crafted networks on CIFAR-10, each as it is, as `nat` and `nat++` make it, and changed at random.

    python experiments/table_handcrafted.py --root DIR --runs FOLDER [--networks vgg16 …] [--seeds 0 1] [--seconds 540]
    python experiments/table_handcrafted.py --runs FOLDER --gather

DIR as `natpp data cifar10` made it. The policies are those that ship: no data is seen before the training. A random
change has at most the multiply-adds of what `nat++` made. Everything is trained from fresh weights by one recipe, on
all training images, and the test images are read once, at the end. Every training is kept in FOLDER and not done
again; none is begun that would not end within `--seconds`, by the longest of its network so far. At the end
`results/table_handcrafted.json` is written from all that are there. `--smoke` does it on digits with one network, in
seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from modules import fresh, images_of, no_opinion, trained
from truth_nasbench201 import machine

import natpp
from natpp.evaluate.recipe import Recipe
from natpp.files import write_whole
from natpp.fx.transform import ModuleResult, optimize_module
from natpp.runs import make_fabric

RESULTS = Path(__file__).parent / "results" / "table_handcrafted.json"
NETWORKS = ("vgg16", "resnet20", "resnet56", "shufflenet", "mobilenetv2")
KINDS = ("original", "nat", "nat++", "random")
RECIPE = Recipe(epochs=12, batch=128, learning_rate=0.1, nesterov=True, weight_decay=5e-4, clip=5.0, cutout=0)


def changed(network: str, kind: str, classes: int, size: int, seed: int) -> ModuleResult | None:
    """What a network becomes; None where it stays as it is."""
    module, example = natpp.zoo.network(network, classes=classes), torch.zeros(1, 3, size, size)
    if kind == "original":
        return None
    if kind == "random":
        ours = natpp.optimize(module, example_input=example, rule="nat++")
        share = ours.cost_after.madds / ours.cost_before.madds
        return optimize_module(module, example, no_opinion(), mode="sample", seed=seed, budget={"madds": share})
    return natpp.optimize(module, example_input=example, rule=kind)


def run(arguments: argparse.Namespace) -> None:
    """All trainings that are not there yet and for which there is time."""
    began = time.perf_counter()
    fabric = make_fabric()
    data = "digits" if arguments.smoke else "cifar10"
    images = images_of(data, arguments.root, fabric.device, validation=0)
    recipe = Recipe(**asdict(RECIPE) | {"epochs": 1}) if arguments.smoke else RECIPE
    for network in arguments.networks:
        longest = 0.0
        for seed in arguments.seeds:
            for kind in KINDS:
                file = arguments.runs / f"{network}_{kind}_{seed}.json"
                if file.exists():
                    longest = max(longest, json.loads(file.read_text())["seconds"])
                    continue
                if arguments.seconds is not None and time.perf_counter() - began + 1.2 * longest > arguments.seconds:
                    print(f"{network} {kind} {seed}: no time is left", flush=True)
                    return
                result = changed(network, kind, images.classes, images.size, seed)
                module = natpp.zoo.network(network, classes=images.classes) if result is None else result.module
                found = trained(fresh(module, seed), images, recipe, fabric, seed, latency=True)
                longest = max(longest, found["seconds"])
                said = {"network": network, "kind": kind, "seed": seed, "data": data, **found, "machine": machine()}
                if result is not None:
                    said["changes"] = [[change.name, change.before, change.after] for change in result.changes]
                write_whole(file, json.dumps(said) + "\n")
                print(
                    f"{network} {kind} {seed}: {found['test_accuracy']:.2f} %, {found['cost']['madds'] / 1e6:.1f} M "
                    f"multiply-adds, {found['seconds']:.0f} s",
                    flush=True,
                )


def gather(arguments: argparse.Namespace) -> None:
    """All trainings that are there."""
    rows = [json.loads(file.read_text()) for file in sorted(arguments.runs.glob("*.json"))]
    order = {name: place for place, name in enumerate((*NETWORKS, *KINDS))}
    rows.sort(key=lambda row: (order[row["network"]], order[row["kind"]], row["seed"]))
    write_whole(arguments.out, json.dumps({"recipe": asdict(RECIPE), "trainings": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that natpp data cifar10 made")
    parser.add_argument("--runs", type=Path, required=True, help="folder to keep trainings in")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--seconds", type=float, help="begin no training that would end later")
    parser.add_argument("--gather", action="store_true", help="only write the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    arguments.networks = arguments.networks or (["resnet20"] if arguments.smoke else list(NETWORKS))
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if not arguments.gather:
        run(arguments)
    gather(arguments)


if __name__ == "__main__":
    main()
