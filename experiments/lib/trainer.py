"""Trains the architectures of an experiment with one recipe, many side by side, until the time is up.

Each finished group is kept in the folder of runs and not trained again, so a training of hours can be done in pieces of
minutes. A group that would not end in time is not started; when little time is left, a smaller one is. Earlier groups
tell how long a group takes and how much memory it needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.lib.machine import machine
from experiments.lib.settings import HERE, Trains, read_results
from natpp.arch.cost import counts
from natpp.arch.formats import from_dict, to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.files import write_whole
from natpp.runs.fabric import make_fabric
from natpp.runs.workers import Cluster
from natpp.scorers.short import ShortScorer
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig

EPOCHS, IMAGES, BATCH = 15, 45_000, 128
FIRST_MILLISECONDS = 0.33  # first guess of the time of a cell and step of 128 images
FIRST_GROUP = 22  # trainings in a group while the memory of one is unknown
FEWEST = 8  # trainings below which a group takes no less time, unless measured
MOST_MEMORY = 36.0  # GiB of all trainings side by side
MARGIN = 1.15  # factor on the expected time of a group
KEPT = "{name}.json"
AGAIN = "{}_again"  # name of trainings with further seeds
Trained = tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]  # what all share, and rows by name and seed


@dataclass(frozen=True)
class Recipe:
    """A training, the network it is done in, and the images it is judged by."""

    cells: int
    config: ShortConfig
    channels: int = 16
    tested: bool = False
    """train on all training images and read the test images once, at the end"""

    def where(self, images: Batches) -> Setting:
        """The network, for images of this size and number of classes."""
        return setting("cifar", channels=self.channels, cells=self.cells, size=images.size, classes=images.classes)

    def small(self) -> Recipe:
        """The same recipe in a few steps."""
        config = replace(self.config, steps=3, batch=16, together=4, validation_batch=100)
        return replace(self, cells=2, config=config, channels=4)


def full(epochs: int, images: int, *, tested: bool) -> Recipe:
    """The longer recipe: 8 cells, 16 channels, a full cosine, images shifted and mirrored."""
    config = ShortConfig(
        batch=BATCH,
        steps=epochs * images // BATCH,
        learning_rate=0.05,
        warm_up=0.05,
        clip=5.0,
        augment=True,
        together=27,  # a third of the 81 cells of images_cells
    )
    return Recipe(8, config, tested=tested)


LONGER = full(EPOCHS, IMAGES, tested=False)


class Trainer:
    """Trains architectures in groups until the time is up and keeps everything that is finished."""

    def __init__(self, settings: Trains):
        self.start, self.seconds = time.perf_counter(), settings.seconds
        self.fabric = make_fabric()
        self.runs, self.smoke, self.root = settings.runs, settings.smoke, settings.root
        self.data = load_images(data_name(smoke=self.smoke), self.root)
        self.cluster = Cluster(HERE, ("results", "runs")) if settings.ray else None
        self._images: dict[bool, Batches] = {}

    def __call__(
        self,
        name: str,
        recipe: Recipe,
        archs: Mapping[str, Architecture],
        seeds: Sequence[int] = (0,),
        *,
        store: str | None = None,
    ) -> bool:
        """Whether all architectures are trained with all seeds by now; what is known is written to `NAME.json`.

        Names that share a `store` share a recipe and their trainings.
        """
        recipe = recipe.small() if self.smoke else recipe
        images = self.images(tested=recipe.tested)
        where = recipe.where(images)
        file = self.runs / KEPT.format(name=name)
        before = read_results(file)
        elsewhere = before or read_results(self.runs / KEPT.format(name=store or name))  # may have trained all of them
        groups: list[dict[str, Any]] = list(before.get("groups", []))
        found: dict[tuple[str, int], Outcome] = {}
        scorers = {seed: self._scorer(store or name, recipe, where, seed) for seed in seeds}

        def learn_of(seed: int, known: Mapping[Architecture, Outcome]) -> None:
            """Write what is known now, since the next group may be interrupted."""
            key = scorers[seed].key
            found.update({(one, seed): known[key(arch)] for one, arch in archs.items() if key(arch) in known})
            on = machine() if len(groups) > len(before.get("groups", [])) or not elsewhere else elsewhere["machine"]
            self._write(file, recipe, where, archs, found, groups, on)

        for seed, scorer in scorers.items():
            learn_of(seed, scorer.stored([scorer.key(arch) for arch in archs.values()]))
        for seed, scorer in scorers.items():
            distinct = {scorer.key(arch): arch for one, arch in archs.items() if (one, seed) not in found}
            waiting = scorer.arranged(list(distinct.values()))
            if self.cluster is not None:
                for known in self._over_cluster(self.cluster, scorer, recipe, waiting, groups):
                    learn_of(seed, known)
                waiting = []
            while waiting and (size := self._size(recipe, groups_like(self.runs, recipe, file) + groups, len(waiting))):
                some = dealt(waiting, size)
                waiting = [arch for arch in waiting if arch not in some]
                outcomes = self._trained(scorer, some, groups)
                learn_of(seed, dict(zip(map(scorer.key, some), outcomes, strict=True)))
                left = f", {len(waiting)} to go" if waiting else ""
                print(f"{name}, seed {seed}: {size} in {groups[-1]['seconds']:.0f} s{left}", flush=True)
        return len(found) == len(archs) * len(seeds)

    def _scorer(self, store: str, recipe: Recipe, where: Setting, seed: int) -> ShortScorer:
        """A scorer that trains with a seed and keeps its outcomes."""
        return ShortScorer(
            self.images(tested=recipe.tested),
            where,
            recipe.config,
            self.fabric,
            seed=seed,
            store=self.runs / f"{store}.jsonl",
            say=print,
            tested=recipe.tested,
        )

    @property
    def left(self) -> float:
        """Seconds left."""
        return float("inf") if self.seconds is None else self.seconds - (time.perf_counter() - self.start)

    def images(self, *, tested: bool) -> Batches:
        """The images on the device; a tested recipe sets none aside for validation."""
        if tested not in self._images:
            self._images[tested] = Batches(self.data, self.fabric.device, validation=0 if tested else None)
        return self._images[tested]

    def _trained(self, scorer: ShortScorer, archs: list[Architecture], groups: list[dict[str, Any]]) -> list[Outcome]:
        """Outcomes of a group; adds its time and memory to `groups`."""
        cuda = self.fabric.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        scorer.together = len(archs)
        scorer.spent.clear()
        outcomes = scorer.outcomes(archs)
        peak = torch.cuda.max_memory_reserved() / 2**30 if cuda else None
        seconds = time.perf_counter() - began
        phases = {name: round(spent, 1) for name, spent in scorer.spent.items()}
        groups.append({"trainings": len(archs), "seconds": seconds, "peak_memory_gib": peak, "phases": phases})
        if cuda:
            torch.cuda.empty_cache()
        return outcomes

    def _over_cluster(
        self,
        cluster: Cluster,
        scorer: ShortScorer,
        recipe: Recipe,
        waiting: list[Architecture],
        groups: list[dict[str, Any]],
    ) -> Iterator[dict[Architecture, Outcome]]:
        """Outcomes of groups trained on a cluster, as they end; adds their times to `groups`."""
        if not waiting:
            return
        size = group_size(recipe, groups, len(waiting), float("inf"), memory=torch.cuda.is_available())
        jobs: dict[Any, list[Architecture]] = {}
        while waiting:
            some = dealt(waiting, min(size, len(waiting)))
            waiting = [arch for arch in waiting if arch not in some]
            given = recipe, data_name(smoke=self.smoke), self.root, [to_dict(arch) for arch in some], scorer.seed
            jobs[cluster.start(trained_apart, *given)] = some
        for job, outcomes in cluster.finished(list(jobs)):
            known = dict(zip(map(scorer.key, jobs[job]), outcomes, strict=True))
            if scorer.store is not None:
                for arch, outcome in known.items():
                    scorer.store.add(arch, outcome)
            spent = sum(outcome.seconds for outcome in outcomes)
            groups.append({"trainings": len(outcomes), "seconds": spent, "peak_memory_gib": None})
            print(f"{len(outcomes)} trained on the cluster in {spent:.0f} s", flush=True)
            yield known

    def _size(self, recipe: Recipe, groups: Sequence[Mapping[str, Any]], waiting: int) -> int:
        """Number of trainings in the next group: as many as memory and time allow, 0 when the time is up."""
        return group_size(recipe, groups, waiting, self.left, memory=self.fabric.device.type == "cuda")

    def _write(
        self,
        file: Path,
        recipe: Recipe,
        where: Setting,
        archs: Mapping[str, Architecture],
        found: Mapping[tuple[str, int], Outcome],
        groups: Sequence[Mapping[str, Any]],
        on: Mapping[str, Any],
    ) -> None:
        rows = []
        for (name, seed), outcome in found.items():
            cost = counts(archs[name], where)
            rows.append(
                {
                    "name": name,
                    "seed": seed,
                    "arch": to_dict(archs[name]),
                    "live_params": cost.live_params,
                    "live_madds": cost.live_madds,
                    **asdict(outcome),
                }
            )
        whole = {
            "recipe": asdict(recipe),
            "network": asdict(where),
            "images": len(self.images(tested=recipe.tested)),
            "asked": len(archs),
            "machine": on,
            "groups": list(groups),
            "trained": rows,
        }
        write_whole(file, json.dumps(whole) + "\n")


def trained_apart(
    recipe: Recipe, data: str, root: str | None, archs: Sequence[Mapping[str, Any]], seed: int
) -> list[Outcome]:
    """Outcomes of a group, in a worker process."""
    fabric = make_fabric()
    images = Batches(load_images(data, root), fabric.device, validation=0 if recipe.tested else None)
    where = recipe.where(images)
    scorer = ShortScorer(images, where, recipe.config, fabric, seed=seed, tested=recipe.tested)
    scorer.together = len(archs)
    return scorer.outcomes([from_dict(dict(arch)) for arch in archs])


def data_name(*, smoke: bool) -> str:
    """The data set that experiments train on."""
    return "digits" if smoke else "cifar10"


def group_size(
    recipe: Recipe, groups: Sequence[Mapping[str, Any]], waiting: int, left: float, *, memory: bool = True
) -> int:
    """Number of trainings that fit into memory and the `left` seconds, from what earlier groups took; 0 if none does.

    Without a time limit all groups are about the same size.
    """
    size = min(waiting, recipe.config.together)
    if memory:  # small groups are mostly overhead
        peaks = [g["peak_memory_gib"] / max(g["trainings"], FEWEST) for g in groups if g["peak_memory_gib"]]
        size = max(min(size, int(MOST_MEMORY / max(peaks)) if peaks else FIRST_GROUP), 1)
    size = -(-waiting // -(-waiting // size))
    set_up, each, fewest = pace(recipe, groups, memory=memory)
    if each == 0 or left == float("inf"):
        return size
    fits = int((left / MARGIN - set_up) / each)
    return 0 if fits < min(fewest, size) else min(size, fits)


def pace(recipe: Recipe, groups: Sequence[Mapping[str, Any]], *, memory: bool) -> tuple[float, float, int]:
    """Seconds of a group as such, seconds of each training in it, and the smallest group that is worth starting.

    Fitted on groups of several sizes. Without these, on a GPU, a group of a few is assumed to take as long as one of
    eight, since it waits for kernel launches.
    """
    sizes, seconds = ([group[name] for group in groups] for name in ("trainings", "seconds"))
    if memory and len(set(sizes)) > 1:
        each, set_up = np.polyfit(sizes, seconds, 1)
        if each > 1e-6 * max(seconds) and set_up > 0:  # equal times give a slope by rounding alone
            return float(set_up), float(each), 1
    fewest = FEWEST if memory else 1
    unknown = FIRST_MILLISECONDS * recipe.cells * recipe.config.steps / 1000 if memory else 0.0
    slowest = max((one / max(size, fewest) for size, one in zip(sizes, seconds, strict=True)), default=unknown)
    return 0.0, slowest, fewest


def groups_like(runs: Path, recipe: Recipe, but: Path) -> list[dict[str, Any]]:
    """Groups of other experiments in the same network, their times scaled to the same number of steps."""
    found = []
    for file in sorted(runs.glob("*.json")):
        said = {} if file == but else json.loads(file.read_text())
        if not isinstance(said, dict) or "groups" not in said or "recipe" not in said:
            continue
        other = said["recipe"]
        same = (recipe.cells, recipe.channels, recipe.config.batch)
        if (other["cells"], other["channels"], other["config"]["batch"]) == same:
            longer = recipe.config.steps / other["config"]["steps"]
            found += [group | {"seconds": longer * group["seconds"]} for group in said["groups"]]
    return found


def dealt(archs: Sequence[Architecture], size: int) -> list[Architecture]:
    """Some architectures of a list sorted by cost, evenly spaced, so that all groups take about as long."""
    step = len(archs) / size
    return [archs[int((number + 0.5) * step)] for number in range(size)]


def read_trained(file: Path) -> Trained:
    """What a trainer kept; empty if there is no file."""
    if not file.exists():
        return {}, {}
    said = json.loads(file.read_text())
    return said, {(row["name"], row["seed"]): row for row in said.pop("trained")}


def arch_of(row: Mapping[str, Any]) -> Architecture:
    """The architecture of a row."""
    return from_dict(row["arch"])
