"""Hand-crafted networks: originals, what both rules make of them, and random changes to the same budget, by one recipe.

    python experiments/table_handcrafted.py train --root DIR --runs FOLDER [--only resnet20;…] [--seconds 540]
    python experiments/table_handcrafted.py judge --runs FOLDER

FOLDER is that of `truth_cells.py`, with the policies that `policies.py learn` left there. VGG16, ResNet-20, ResNet-56,
ShuffleNet and MobileNetV2 for CIFAR-10 as modules, cut to three quarters of their MAdds or what lies next below: by the
policy of each rule, and at random, anew for each seed; all trained from fresh weights for 12 epochs with a full cosine
on the whole training set, two seeds, the test images read once for each. The networks of a model are trained side by
side; every finished group is kept. Where natpp makes another network of a model than the one that was trained, that one
alone is trained, and what it replaces is kept and told. With `--seconds` no group is begun that would not end in time:
a trial of a few steps tells how long one takes whose model was not trained before. `judge` measures latencies where it
runs, of the networks built anew, and writes `results/table_handcrafted.json`. `--smoke` does ResNet-20 on digits,
without a command all of it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from answers import INPUT, Knowledge, split_name
from figures import paired
from modules import no_opinion, redrawn
from table_random import RECIPE, known_in
from tables import least_latencies, told, with_trainings
from together import MARGIN, Recipe, Trainer, carry_out, command_line, data_name
from torch import nn
from truth_nasbench201 import machine
from worth import Rows, beside_originals, published_figures, tell_originals

import natpp
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.errors import did_you_mean
from natpp.files import write_whole
from natpp.nets.measure import module_cost
from natpp.runs.fabric import make_fabric
from natpp.seeds import Use, number
from natpp.training.loop import fastest_kernels
from natpp.training.outcome import Outcome
from natpp.training.together import Seconds, Trial, train_together
from natpp.zoo.published import published_rows

RESULTS = Path(__file__).parent / "results" / "table_handcrafted.json"
MODELS = {  # by their names in the paper's table
    "resnet20": "ResNet20",
    "resnet56": "ResNet56",
    "mobilenetv2": "MobileNetV2",
    "shufflenet": "ShuffleNet",
    "vgg16": "VGG16",
}
RULES = ("nat", "nat++")
RANDOM = "random to the same budget"
KINDS = (INPUT, *RULES, RANDOM)
SEEDS = (0, 1)
FIRST_SECONDS = 5.0  # that a network takes at least, where nothing is known yet
TRIAL = 40  # steps that tell how long a group takes
ANSWERED_BY = 4  # the round of policies.py whose policies change them
KEPT = "table_handcrafted_{}.json"
SHARE = 0.75  # of the MAdds, what is left of all that are changed
Networks = Mapping[str, tuple[nn.Module, list[list[str]]]]  # by kind, with what was changed in each


def network_of(
    name: str, kind: str, seed: int, known: Knowledge, example: torch.Tensor
) -> tuple[nn.Module, list[list[str]]]:
    """A network of the table, with weights that do not matter, and what was changed; at random for every seed anew."""
    original = natpp.zoo.network(name, classes=10)
    if kind == INPUT:
        return original, []
    by = (known.policies[kind], kind) if kind in RULES else (no_opinion(), "nat++", "sample")
    result = natpp.optimize(original.eval(), *by, example_input=example, budget={"madds": SHARE}, seed=seed)
    return result.module, [[change.name, change.before, change.after] for change in result.changes]


def train(arguments: argparse.Namespace) -> None:
    trainer = Trainer(arguments)
    recipe = RECIPE.small() if arguments.smoke else RECIPE
    images = trainer.images(tested=True)
    example = torch.zeros(1, 3, images.size, images.size)
    wanted = arguments.only.split(";") if arguments.only else (["resnet20"] if arguments.smoke else list(MODELS))
    for name in wanted:
        if name not in MODELS:
            raise SystemExit(f"unknown model {name!r}. {did_you_mean(name, MODELS)}")
    known = known_in(arguments, ANSWERED_BY)
    jobs: dict[Any, tuple[str, int, Networks]] = {}
    takes: dict[str, float] = {}  # seconds of a network of a group, by its model

    def in_time(name: str, seed: int, count: int) -> bool:
        """Whether a group of so many ends in time, as far as is known; where it would not, that is said."""
        least = 0.0 if arguments.smoke else FIRST_SECONDS
        expected, left = MARGIN * count * takes.get(name, least), max(trainer.left, 0.0)
        if trainer.cluster is not None or expected <= left:
            return True
        print(f"{name}, seed {seed}: not begun, it takes {expected:.0f} s and {left:.0f} s are left", flush=True)
        return False

    def keep(name: str, seed: int, networks: Networks, outcomes: list[Outcome]) -> None:
        rows, file = [], arguments.runs / KEPT.format(f"{name}_{seed}")
        for (kind, (network, changes)), outcome in zip(networks.items(), outcomes, strict=True):
            cost = module_cost(network.eval(), example).to_dict()
            rows.append({"name": f"{name}, {kind}", "seed": seed, "changes": changes, **cost, **asdict(outcome)})
        before, new = kept_group(file), {row["name"] for row in rows}
        rows += [row for row in before["trained"] if row["name"] not in new]
        spent = sum(outcome.seconds for outcome in outcomes)
        said = {"recipe": asdict(recipe), "images": len(images), "size": images.size, "machine": machine()}
        said |= {
            "seconds": before["seconds"] + spent,
            "trained": sorted(rows, key=lambda row: KINDS.index(split_name(row["name"])[1])),
            "earlier": before.get("earlier", []) + [row for row in before["trained"] if row["name"] in new],
        }
        write_whole(file, json.dumps(said) + "\n")
        print(f"{name}, seed {seed}: {spent:.0f} s", flush=True)

    for seed in SEEDS:
        for name in wanted:
            group = kept_group(arguments.runs / KEPT.format(f"{name}_{seed}"))
            made = {row["name"]: row["changes"] for row in group["trained"]}
            networks = {kind: network_of(name, kind, seed, known, example) for kind in KINDS}
            networks = {kind: one for kind, one in networks.items() if made.get(f"{name}, {kind}") != one[1]}
            files = arguments.runs.glob(KEPT.format(f"{name}_[0-9]"))
            spent = [row["seconds"] for file in files for row in kept_group(file)["trained"]]
            takes |= {name: max(spent)} if spent else {}
            if not networks or not in_time(name, seed, len(networks)):
                continue
            if trainer.cluster is not None:
                given = recipe, data_name(smoke=arguments.smoke), arguments.root, modules_of(networks), seed
                jobs[trainer.cluster.start(modules_apart, *given)] = name, seed, networks
                continue
            if name not in takes and arguments.seconds is not None:
                takes[name] = expected_seconds(modules_of(networks), images, recipe, seed) / len(networks)
            if in_time(name, seed, len(networks)):
                keep(name, seed, networks, trained(modules_of(networks), images, recipe, seed))
    if trainer.cluster is not None:
        for job, outcomes in trainer.cluster.finished(list(jobs)):
            keep(*jobs[job], outcomes)


def kept_group(file: Path) -> dict[str, Any]:
    """What is kept of a group, and of networks that it has others for now; nothing of one that is not trained yet."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"seconds": 0.0, "trained": []}
    return found


def modules_of(networks: Networks) -> list[nn.Module]:
    return [network for network, _ in networks.values()]


def expected_seconds(networks: Sequence[nn.Module], images: Batches, recipe: Recipe, seed: int) -> float:
    """What a group will take, by a trial without test images: the steps take as long each, the rest comes once."""
    steps = min(TRIAL, recipe.config.steps)
    short = replace(recipe, config=replace(recipe.config, steps=steps), tested=False)
    spent: Seconds = defaultdict(float)
    trained(networks, images, short, seed, spent=spent)
    return sum(spent.values()) + (recipe.config.steps / steps - 1) * spent["training"]


def trained(
    networks: Sequence[nn.Module], images: Batches, recipe: Recipe, seed: int, *, spent: Seconds | None = None
) -> list[Outcome]:
    """Outcomes of networks trained side by side from fresh weights, on the device where the images are."""
    builds = [lambda network=network: redrawn(copy.deepcopy(network)) for network in networks]
    device = images.validation.device
    starts = [number(seed, Use.START, 14)] * len(networks)
    trial = Trial(images, recipe.config, device, seed, tested=recipe.tested, say=print)
    with fastest_kernels(device):  # as modules with a loss of their own are trained
        return train_together(builds, starts, trial, spent=spent)


def modules_apart(
    recipe: Recipe, data: str, root: str | None, networks: Sequence[nn.Module], seed: int
) -> list[Outcome]:
    """The same in a process that has nothing yet."""
    images = Batches(load_images(data, root), make_fabric().device, validation=0)
    return trained(networks, images, recipe, seed)


def judge(arguments: argparse.Namespace) -> None:
    files = [kept_group(file) for file in sorted(arguments.runs.glob(KEPT.format("*_[0-9]")))]
    if not files:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    rows = {(row["name"], row["seed"]): row for file in files for row in file["trained"]}
    rows, on = with_latencies(rows, files[0]["size"], arguments)
    models = beside_originals(rows, KINDS, "test_accuracy")
    found = {
        "models": with_trainings(models, rows),
        "over_random": {rule: over_random(models, rows, rule) for rule in RULES},
        "paper": {name: papers(title) for name, title in MODELS.items()},
        "earlier": [
            {**told(row), "name": row["name"], "changes": row["changes"]}
            for file in files
            for row in file.get("earlier", [])
        ],
        "share": SHARE,
        "trainings": len(rows),
        "asked": len(MODELS) * len(KINDS) * len(SEEDS),
        "seconds": sum(file["seconds"] for file in files),
        "policies": ANSWERED_BY,
        "latency_on": on,
        **{key: files[0][key] for key in ("recipe", "images", "machine")},
    }
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    tell_originals(found["models"])


def over_random(models: Mapping[str, Any], rows: Rows, rule: str) -> dict[str, Any]:
    """Differences of a rule to the random change: means over seeds by networks, and how many trainings are above."""
    both = [kinds for kinds in models.values() if {rule, RANDOM} <= kinds.keys()]
    found = paired(*([kinds[kind]["accuracy"]["mean"] for kinds in both] for kind in (rule, RANDOM)))
    names = [(f"{name}, {rule}", f"{name}, {RANDOM}", seed) for name in models for seed in SEEDS]
    pairs = [
        (rows[one, seed]["test_accuracy"], rows[other, seed]["test_accuracy"])
        for one, other, seed in names
        if (one, seed) in rows and (other, seed) in rows
    ]
    known = [(one, other) for one, other in pairs if None not in (one, other)]
    return found | {"trainings": len(known), "trainings_above": sum(one > other for one, other in known)}


def with_latencies(rows: Rows, size: int, arguments: argparse.Namespace) -> tuple[Rows, str]:
    """Rows with how long a forward pass of one image takes, and on what; all measured on it, and kept."""
    known, example = known_in(arguments, ANSWERED_BY), torch.zeros(1, 3, size, size)

    def network(name: str, seed: int) -> nn.Module:
        module, changes = network_of(*split_name(name), seed, known, example)
        if changes != rows[name, seed]["changes"]:
            raise SystemExit(
                f"{name} of seed {seed} is not what natpp makes now: run train again, or the folder has other policies"
            )
        return module.eval()

    def measured(module: nn.Module) -> float:
        return module_cost(module, example, latency=True).latency_ms or 0.0

    keys = {(name, seed): json.dumps([split_name(name)[0], row["changes"]]) for (name, seed), row in rows.items()}
    measures = {key: functools.partial(measured, network(*one)) for one, key in keys.items()}
    times, on = least_latencies(arguments.runs / KEPT.format("latency"), measures, smoke=arguments.smoke)
    return {one: {**row, "latency_ms": times[keys[one]]} for one, row in rows.items()}, on


def papers(model: str) -> dict[str, Mapping[str, Any]]:
    """What the paper's table says of a model and of its own results on CIFAR-10."""
    kinds = {None: INPUT, "NAT": "nat", "NAT++": "nat++"}
    return {
        kinds[row.method]: published_figures(row)
        for row in published_rows()
        if (row.table, row.data, row.model) == ("hand-crafted", "CIFAR", model) and row.method in kinds
    }


def main() -> None:
    only = {"help": "models, with semicolons between"}
    parser = command_line(__doc__, (train, judge), RESULTS, only=only)
    carry_out(parser, whole=(train, judge))


if __name__ == "__main__":
    main()
