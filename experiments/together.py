"""Trains the architectures of an experiment by one recipe, many side by side, until the time is up.

Every finished group is kept in the folder of runs and what is there is not done again, so a training of hours is made
in pieces of minutes. No group is begun that would not end in time; where little is left, a smaller one is. How long a
group takes and how much memory it needs is told by those before it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small import kept_apart
from truth_nasbench201 import machine

from natpp.arch.cost import counts
from natpp.arch.formats import from_dict, to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.errors import NatppError
from natpp.files import write_whole
from natpp.runs.fabric import make_fabric
from natpp.scorers.short import ShortScorer
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig

HERE = Path(__file__).parent
EPOCHS, IMAGES, BATCH = 15, 45_000, 128
FIRST_MILLISECONDS = 0.33  # a cell and step of 128 images, where nothing is known yet
FIRST_GROUP = 22  # trainings, where it is not known how much memory one needs
FEWEST = 8  # trainings below which a group takes no less, where nothing else is known
MOST_MEMORY = 36.0  # GiB, of all that are trained side by side
MARGIN = 1.15  # on what a group is expected to take
KEPT = "{name}.json"
AGAIN = "{}_again"  # the name of what is trained by other seeds
Command = Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class Recipe:
    """A training, the network it is done in, and what it is judged by."""

    cells: int
    config: ShortConfig
    channels: int = 16
    tested: bool = False
    """whether all training images are learned from, and the test images are looked at once, at the end"""

    def where(self, images: Batches) -> Setting:
        """The network, for images of this size and number of classes."""
        return setting("cifar", channels=self.channels, cells=self.cells, size=images.size, classes=images.classes)

    def small(self) -> Recipe:
        """The same in a few steps."""
        config = replace(self.config, steps=3, batch=16, together=4, validation_batch=100)
        return replace(self, cells=2, config=config, channels=4)


def full(epochs: int, images: int, *, tested: bool) -> Recipe:
    """The longer recipe: 8 cells, 16 channels, some epochs with a full cosine, images moved and mirrored."""
    config = ShortConfig(
        batch=BATCH,
        steps=epochs * images // BATCH,
        learning_rate=0.05,
        warm_up=0.05,
        clip=5.0,
        augment=True,
        together=27,  # a third of the 81 cells whose truth is measured
    )
    return Recipe(8, config, tested=tested)


LONGER = full(EPOCHS, IMAGES, tested=False)


class Trainer:
    """Trains architectures in groups until the time is up; everything finished is kept."""

    def __init__(self, arguments: argparse.Namespace):
        self.start, self.seconds = time.perf_counter(), arguments.seconds
        self.fabric = make_fabric()
        self.runs: Path = arguments.runs
        self.smoke: bool = arguments.smoke
        self.root: str | None = arguments.root
        self.data = load_images(data_name(smoke=self.smoke), self.root)
        self.cluster: Cluster | None = Cluster() if arguments.ray else None
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
        """Whether all architectures are trained by a recipe with all seeds; what is known is written to `NAME.json`.

        Those with one `store` have one recipe, and what one of them trained the others know.
        """
        recipe = recipe.small() if self.smoke else recipe
        images = self.images(tested=recipe.tested)
        where = recipe.where(images)
        file = self.runs / KEPT.format(name=name)
        before = json.loads(file.read_text()) if file.exists() else {}
        first = self.runs / KEPT.format(name=store or name)  # that may have trained all there is
        elsewhere = before or (json.loads(first.read_text()) if first.exists() else {})
        groups: list[dict[str, Any]] = list(before.get("groups", []))
        found: dict[tuple[str, int], Outcome] = {}
        scorers = {seed: self._scorer(store or name, recipe, where, seed) for seed in seeds}

        def learn_of(seed: int, known: Mapping[Architecture, Outcome]) -> None:
            """Write what is known now: somebody may end us in the next group."""
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
        """What trains with a seed, and keeps it."""
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
        """Seconds that are left."""
        return float("inf") if self.seconds is None else self.seconds - (time.perf_counter() - self.start)

    def images(self, *, tested: bool) -> Batches:
        """The images on the device; those that are tested set none aside."""
        if tested not in self._images:
            self._images[tested] = Batches(self.data, self.fabric.device, validation=0 if tested else None)
        return self._images[tested]

    def _trained(self, scorer: ShortScorer, archs: list[Architecture], groups: list[dict[str, Any]]) -> list[Outcome]:
        """Outcomes of a group; `groups` learns what it took."""
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
        """Outcomes of groups as they end, trained wherever the cluster has room; `groups` learns what they took."""
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
            print(f"{len(outcomes)} trained over the cluster in {spent:.0f} s", flush=True)
            yield known

    def _size(self, recipe: Recipe, groups: Sequence[Mapping[str, Any]], waiting: int) -> int:
        """How many trainings the next group has: as many as memory and time allow, none where the time is up."""
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


class Cluster:
    """Groups of trainings as tasks of Ray: on the cluster that `RAY_ADDRESS` names, or on this machine."""

    def __init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise SystemExit("--ray needs Ray, which is not installed: pip install ray, or leave --ray out") from None
        self.ray = ray
        ray.init(ignore_reinit_error=True, runtime_env={"working_dir": str(HERE), "excludes": ["results", "runs"]})

    def start(self, train: Callable[..., list[Outcome]], *given: Any) -> Any:
        """Begin with a group as soon as there is room."""
        return self.ray.remote(num_gpus=int(torch.cuda.is_available()))(train).remote(*given)

    def finished(self, jobs: list[Any]) -> Iterator[tuple[Any, list[Outcome]]]:
        """Groups in the order in which they end."""
        while jobs:
            (done, *_), jobs = self.ray.wait(jobs, num_returns=1)
            yield done, self.ray.get(done)


def trained_apart(
    recipe: Recipe, data: str, root: str | None, archs: Sequence[Mapping[str, Any]], seed: int
) -> list[Outcome]:
    """Outcomes of a group, in a process that has nothing yet."""
    fabric = make_fabric()
    images = Batches(load_images(data, root), fabric.device, validation=0 if recipe.tested else None)
    where = recipe.where(images)
    scorer = ShortScorer(images, where, recipe.config, fabric, seed=seed, tested=recipe.tested)
    scorer.together = len(archs)
    return scorer.outcomes([from_dict(dict(arch)) for arch in archs])


def data_name(*, smoke: bool) -> str:
    """What experiments train on."""
    return "digits" if smoke else "cifar10"


def group_size(
    recipe: Recipe, groups: Sequence[Mapping[str, Any]], waiting: int, left: float, *, memory: bool = True
) -> int:
    """How many trainings fit into memory and time, by what earlier groups of the recipe took; 0 where none does.

    `left` are seconds. Where time is no matter, all groups are about as large as each other.
    """
    size = min(waiting, recipe.config.together)
    if memory:  # what a small group takes is mostly not that of its trainings
        peaks = [g["peak_memory_gib"] / max(g["trainings"], FEWEST) for g in groups if g["peak_memory_gib"]]
        size = max(min(size, int(MOST_MEMORY / max(peaks)) if peaks else FIRST_GROUP), 1)
    size = -(-waiting // -(-waiting // size))
    set_up, each, fewest = pace(recipe, groups, memory=memory)
    if each == 0 or left == float("inf"):
        return size
    fits = int((left / MARGIN - set_up) / each)
    return 0 if fits < min(fewest, size) else min(size, fits)


def pace(recipe: Recipe, groups: Sequence[Mapping[str, Any]], *, memory: bool) -> tuple[float, float, int]:
    """Seconds of a group as such and of each training in it, and how many trainings it pays to have in one.

    Known from groups of several sizes. Else, on a GPU, one of a few is taken to last as long as one of eight: launches
    of its steps are what it waits for.
    """
    sizes, seconds = ([group[name] for group in groups] for name in ("trainings", "seconds"))
    if memory and len(set(sizes)) > 1:
        each, set_up = np.polyfit(sizes, seconds, 1)
        if each > 1e-6 * max(seconds) and set_up > 0:  # what is left of equal ones by rounding is no slope
            return float(set_up), float(each), 1
    fewest = FEWEST if memory else 1
    unknown = FIRST_MILLISECONDS * recipe.cells * recipe.config.steps / 1000 if memory else 0.0
    slowest = max((one / max(size, fewest) for size, one in zip(sizes, seconds, strict=True)), default=unknown)
    return 0.0, slowest, fewest


def groups_like(runs: Path, recipe: Recipe, but: Path) -> list[dict[str, Any]]:
    """What groups of other experiments in the same network took, as if they had as many steps."""
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
    """Some of those sorted by cost, evenly from cheap to dear: so all groups take about as long as each other."""
    step = len(archs) / size
    return [archs[int((number + 0.5) * step)] for number in range(size)]


def read_trained(file: Path) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """What a trainer kept: what it says of all, and rows by name and seed; an empty one where there is no file."""
    if not file.exists():
        return {}, {}
    said = json.loads(file.read_text())
    return said, {(row["name"], row["seed"]): row for row in said.pop("trained")}


def arch_of(row: Mapping[str, Any]) -> Architecture:
    """The architecture of a row."""
    return from_dict(row["arch"])


def command_line(
    description: str | None, commands: Sequence[Command], results: Path, **more: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """A command for each function, with the flags of whatever trains, and some more by their names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(results=results)
    parsers = parser.add_subparsers(required=True)
    for command in commands:
        one = parsers.add_parser(command.__name__)
        one.set_defaults(command=command)
        one.add_argument("--runs", type=Path, required=True, help="folder that everything finished is kept in")
        one.add_argument("--smoke", action="store_true", help="on digits, in a few steps")
        one.add_argument("--root", help="folder that natpp data cifar10 made")
        one.add_argument("--seconds", type=float, help="begin no group that would end later")
        one.add_argument(
            "--ray", action="store_true", help="train groups over a cluster; --seconds does not hold there"
        )
        one.add_argument("--out", type=Path, default=results)
        for name, options in more.items():
            one.add_argument(f"--{name}", **options)
    return parser


def carry_out(parser: argparse.ArgumentParser, *, whole: Sequence[Command] = ()) -> None:
    """Do what a command line asks for; wrong input is told in one line.

    `--smoke` without a command does the `whole` of it, in a folder that is gone then.
    """
    words = sys.argv[1:]
    names = [command.__name__ for command in whole]
    if whole and "--smoke" in words and not {*names, "-h", "--help"} & {*words}:
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                _carry_out(parser.parse_args([name, "--runs", folder, *words]))
    else:
        _carry_out(parser.parse_args(words))


def _carry_out(arguments: argparse.Namespace) -> None:
    kept_apart(arguments, arguments.results)
    try:
        arguments.command(arguments)
    except NatppError as error:
        raise SystemExit(f"error: {error}") from None
