"""Hand-crafted networks: originals, results of both rules, and random changes to the same budget.

Needs: CIFAR-10 and a GPU, 20 minutes; the folder of images_cells with its policies

VGG16, ResNet-20, ResNet-56, ShuffleNet and MobileNetV2 for CIFAR-10 are modules here, cut to three quarters of their
MAdds or to what lies next below: by the policy of each rule, and at random, differently for each seed. All are trained
from fresh weights for 12 epochs with a full cosine on the whole training set, two seeds, and the test images are read
once for each. The networks of a model are trained side by side, and each finished group is kept. If natpp now makes
another network than the one that was trained, only that one is trained; results keep the figures of the old one.

With `--seconds` a group that would not end in time is not started; a trial of a few steps tells how long a model takes
that was not trained before. `judge` measures latencies on the machine it runs on, of networks built anew.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import natpp
from experiments.lib import tables
from experiments.lib.answers import INPUT, Knowledge, split_name
from experiments.lib.learned import known_in
from experiments.lib.machine import machine
from experiments.lib.modules import no_opinion, redrawn
from experiments.lib.settings import RESULTS, Experiment, Keeps, Trains, read_results, write_results
from experiments.lib.statistics import paired
from experiments.lib.tables import Rows
from experiments.lib.trainer import MARGIN, Recipe, Trainer, data_name
from experiments.table_random import RECIPE
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.sets import load_images
from natpp.errors import did_you_mean
from natpp.files import write_whole
from natpp.methods.policy import PolicyMethod
from natpp.nets.measure import module_cost
from natpp.runs.fabric import make_fabric
from natpp.seeds import Use, number
from natpp.training.loop import fastest_kernels
from natpp.training.outcome import Outcome
from natpp.training.together import Seconds, Trial, train_together
from natpp.zoo.published import published_rows

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
LEAST = {"vgg16": 32}  # smallest images in pixels, for networks that digits are too small for
FIRST_SECONDS = 5.0  # minimum for a network, before anything is known
TRIAL = 40  # steps that tell how long a group takes
ANSWERED_BY = 4  # round of ship_policies whose policies change the networks
KEPT = "table_handcrafted_{}.json"
SHARE = 0.75  # of the MAdds
Networks = Mapping[str, tuple[nn.Module, list[list[str]]]]  # by kind, with the changes in each


@dataclass(frozen=True, kw_only=True)
class TableHandcrafted(Trains):
    out: Path = RESULTS / "table_handcrafted.json"
    only: tuple[str, ...] = ()
    """models; default: all, and resnet20 in the small form"""


def network_of(
    name: str, kind: str, seed: int, known: Knowledge, example: torch.Tensor
) -> tuple[nn.Module, list[list[str]]]:
    """A network of the table with any weights, and its changes; random ones differ by seed."""
    original = natpp.zoo.network(name, classes=10)
    if kind == INPUT:
        return original, []
    method = (
        PolicyMethod(kind, learned=known.policies[kind])
        if kind in RULES
        else PolicyMethod("nat++", mode="sample", learned=no_opinion())
    )
    run = natpp.Run(seed=seed)
    result = natpp.optimize(original.eval(), method, {"madds": SHARE}, example_input=example, run=run)
    return result.module, [[change.name, change.before, change.after] for change in result.changes]


def train(settings: TableHandcrafted) -> None:
    """Train the networks of each model side by side."""
    trainer = Trainer(settings)
    recipe = RECIPE.small() if settings.smoke else RECIPE
    wanted = settings.only or (("resnet20",) if settings.smoke else tuple(MODELS))
    for name in wanted:
        if name not in MODELS:
            raise SystemExit(f"unknown model {name!r}. {did_you_mean(name, MODELS)}")
    known = known_in(settings, ANSWERED_BY)
    jobs: dict[Any, tuple[str, int, Networks]] = {}
    takes: dict[str, float] = {}  # seconds per network of a group, by model

    def images_for(name: str) -> Batches:
        data = large_enough(trainer.data, name)
        if data is trainer.data:
            return trainer.images(tested=True)
        return Batches(data, trainer.fabric.device, validation=0)

    def in_time(name: str, seed: int, count: int) -> bool:
        """Whether a group of `count` networks is expected to end in time; prints it if not."""
        least = 0.0 if settings.smoke else FIRST_SECONDS
        expected, left = MARGIN * count * takes.get(name, least), max(trainer.left, 0.0)
        if trainer.cluster is not None or expected <= left:
            return True
        print(f"{name}, seed {seed}: not started, it takes {expected:.0f} s and {left:.0f} s are left", flush=True)
        return False

    def keep(name: str, seed: int, networks: Networks, outcomes: list[Outcome]) -> None:
        rows, file, images = [], settings.runs / KEPT.format(f"{name}_{seed}"), images_for(name)
        for (kind, (network, changes)), outcome in zip(networks.items(), outcomes, strict=True):
            cost = module_cost(network.eval(), example_of(images.size)).to_dict()
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
            group = kept_group(settings.runs / KEPT.format(f"{name}_{seed}"))
            made, images = {row["name"]: row["changes"] for row in group["trained"]}, images_for(name)
            networks = {kind: network_of(name, kind, seed, known, example_of(images.size)) for kind in KINDS}
            networks = {kind: one for kind, one in networks.items() if made.get(f"{name}, {kind}") != one[1]}
            files = settings.runs.glob(KEPT.format(f"{name}_[0-9]"))
            spent = [row["seconds"] for file in files for row in kept_group(file)["trained"]]
            takes |= {name: max(spent)} if spent else {}
            if not networks or not in_time(name, seed, len(networks)):
                continue
            if trainer.cluster is not None:
                given = recipe, data_name(smoke=settings.smoke), settings.root, name, modules_of(networks), seed
                jobs[trainer.cluster.start(modules_apart, *given)] = name, seed, networks
                continue
            if name not in takes and settings.seconds is not None:
                takes[name] = expected_seconds(modules_of(networks), images, recipe, seed) / len(networks)
            if in_time(name, seed, len(networks)):
                keep(name, seed, networks, trained(modules_of(networks), images, recipe, seed))
    if trainer.cluster is not None:
        for job, outcomes in trainer.cluster.finished(list(jobs)):
            keep(*jobs[job], outcomes)


def kept_group(file: Path) -> dict[str, Any]:
    """The trainings of a group, and earlier ones that were replaced."""
    return read_results(file) or {"seconds": 0.0, "trained": []}


def modules_of(networks: Networks) -> list[nn.Module]:
    """The modules alone."""
    return [network for network, _ in networks.values()]


def expected_seconds(networks: Sequence[nn.Module], images: Batches, recipe: Recipe, seed: int) -> float:
    """Expected seconds of a group, from a trial of a few steps without test images."""
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
    with fastest_kernels(device):  # as for modules with a loss of their own
        return train_together(builds, starts, trial, spent=spent)


def modules_apart(
    recipe: Recipe, data: str, root: str | None, name: str, networks: Sequence[nn.Module], seed: int
) -> list[Outcome]:
    """The same in a worker process."""
    images = Batches(large_enough(load_images(data, root), name), make_fabric().device, validation=0)
    return trained(networks, images, recipe, seed)


def large_enough(images: Images, name: str) -> Images:
    """The images, enlarged by a whole factor if they are too small for a model."""
    times = -(-LEAST.get(name, 1) // images.train.shape[2])
    if times == 1:
        return images
    return replace(images, train=enlarged(images.train, times), test=enlarged(images.test, times))


def enlarged(pixels: Any, times: int) -> Any:
    """Pixels repeated in both directions."""
    return pixels.repeat(times, axis=2).repeat(times, axis=3)


def example_of(size: int) -> torch.Tensor:
    """An input of a network."""
    return torch.zeros(1, 3, size, size)


def judge(settings: TableHandcrafted) -> None:
    """Write accuracies, costs and latencies."""
    files = [kept_group(file) for file in sorted(settings.runs.glob(KEPT.format("*_[0-9]")))]
    if not files:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    rows = {(row["name"], row["seed"]): row | {"size": file["size"]} for file in files for row in file["trained"]}
    rows, on = with_latencies(rows, settings)
    models = tables.beside_originals(rows, KINDS, "test_accuracy")
    found = {
        "models": tables.with_trainings(models, rows),
        "over_random": {rule: over_random(models, rows, rule) for rule in RULES},
        "paper": {name: papers(title) for name, title in MODELS.items()},
        "earlier": [
            {**tables.told(row), "name": row["name"], "changes": row["changes"]}
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
    write_results(settings.out, found)
    tables.tell_originals(found["models"])


def over_random(models: Mapping[str, Any], rows: Rows, rule: str) -> dict[str, Any]:
    """Differences of a rule to the random change: by network over seeds, and how many trainings are above."""
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


def with_latencies(rows: Rows, settings: Keeps) -> tuple[Rows, str]:
    """Rows with the latency of one image, and the machine; both are kept in a file."""
    known = known_in(settings, ANSWERED_BY)

    def network(name: str, seed: int) -> nn.Module:
        module, changes = network_of(*split_name(name), seed, known, example_of(rows[name, seed]["size"]))
        if changes != rows[name, seed]["changes"]:
            raise SystemExit(
                f"{name} of seed {seed} is not what natpp makes now: run train again, or use the folder of its policies"
            )
        return module.eval()

    def measured(module: nn.Module, size: int) -> float:
        return module_cost(module, example_of(size), latency=True).latency_ms or 0.0

    keys = {(name, seed): json.dumps([split_name(name)[0], row["changes"]]) for (name, seed), row in rows.items()}
    measures = {key: functools.partial(measured, network(*one), rows[one]["size"]) for one, key in keys.items()}
    times, on = tables.least_latencies(settings.runs / KEPT.format("latency"), measures, smoke=settings.smoke)
    return {one: {**row, "latency_ms": times[keys[one]]} for one, row in rows.items()}, on


def papers(model: str) -> dict[str, Mapping[str, Any]]:
    """Accuracy and size of a model and its results in the paper's table on CIFAR-10."""
    kinds = {None: INPUT, "NAT": "nat", "NAT++": "nat++"}
    return {
        kinds[row.method]: tables.published_figures(row)
        for row in published_rows()
        if (row.table, row.data, row.model) == ("hand-crafted", "CIFAR", model) and row.method in kinds
    }


EXPERIMENT = Experiment(TableHandcrafted, (train, judge))
