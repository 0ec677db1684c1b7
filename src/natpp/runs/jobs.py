"""A search: space, data, scorer, device and folder put together.

The folder keeps the settings, so that another command can use its scorer (`--scorer RUN`) or its policy.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from natpp.arch.formats import from_dict, to_dict, to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import Space, named_space, space_around
from natpp.config import Config, fields_of
from natpp.core.budget import NAMED
from natpp.core.result import Result
from natpp.data.batches import Batches
from natpp.data.images import SMALL_IMAGE, Images
from natpp.data.named import Data
from natpp.errors import FormatError, SettingError, counted, did_you_mean
from natpp.files import write_whole
from natpp.folder import Folder, catching_signals, read_config
from natpp.methods.policy import explained, transform
from natpp.nets.policy import Policy
from natpp.nets.supernet import Supernet
from natpp.run import Run, Say, Watch
from natpp.runs.fabric import leave, make_fabric
from natpp.runs.phases import given, phases
from natpp.runs.search import Search, Short
from natpp.runs.searching import Searching
from natpp.scorers.base import Scorer, Task
from natpp.scorers.short import ShortScorer, in_half, usual_schedule
from natpp.scorers.supernet import SharedWeights, SupernetScorer, usual_setting
from natpp.scorers.table import TableScorer, read_table
from natpp.training import task as training
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

C = TypeVar("C", bound=Config)
SMALL_EVALUATIONS = 100  # default for small images, which are most likely searched on a CPU
TRAINED = ("short", "supernet")  # scorers that are trained on images
KEPT = ("data", "space", "nodes", "extras", "rule", "budget", "preset", "scorer", "evaluations", "price", "seed")
LOG = logging.getLogger("natpp")


class Goal(NamedTuple):
    """What a policy is learned for: inputs from a space, or one architecture, within rule and budget."""

    space: Space
    task: Task
    arch: Architecture | None

    @staticmethod
    def of(search: Search, on: str | Architecture, budget: str) -> Goal:
        """For a space by its name, or for a single architecture."""
        if budget not in NAMED:
            raise SettingError(f"unknown budget {budget!r}. {did_you_mean(budget, NAMED)}")
        if isinstance(on, Architecture):
            where = setting("cifar" if on.reduce is not None else "nasbench201")
            space: Space = space_around(on, search.rule, where, strict=budget == "strict")
        else:
            where = setting("nasbench201" if on == "nasbench201" else "cifar")
            space = named_space(on, search.nodes, extras=search.extras)
        return Goal(
            space, Task(search.rule, where, strict=budget == "strict"), on if isinstance(on, Architecture) else None
        )

    @property
    def network(self) -> str:
        """The network around the architectures."""
        return self.task.where.network


def run_search(
    search: Search,
    data: Data | training.Task,
    budget: str = "strict",
    *,
    on: str | Architecture = "cells",
    scorer: Scorer | Short | str | None = None,
    run: Run = Run(),
) -> Policy:
    """Search for a policy; for one architecture the folder of the run also gets the best one found."""
    from natpp import __version__

    started = time.perf_counter()
    fabric = make_fabric(run.device, run.precision)
    first = fabric.global_rank == 0
    goal = Goal.of(search, on, budget)
    if isinstance(scorer, Short):
        search, scorer = search.by(scorer), "short"
    name, wanted = _scorer_name(search, scorer), search.short
    batches, trained, at_hand = None, None, scorer if isinstance(scorer, Scorer) else None
    if at_hand is None and name in TRAINED:
        batches = _batches(data, fabric, run.say)
        kind = "paper" if search.preset == "paper" and name == "supernet" else name
        trained = usual_setting(goal.network, batches, kind, wanted.channels, wanted.cells)
    elif at_hand is None:
        limit, root = search.evaluations, named(data).root
        at_hand = make_scorer(name, reward=search.reward, limit=limit, root=root, fabric=fabric)
    free = at_hand is not None and at_hand.free and search.evaluations is None
    config = phases(search, free=free, network=goal.network)
    short = schedule(wanted, batches) if batches is not None and name == "short" else None
    if short is not None and batches is not None and batches.size < SMALL_IMAGE:
        config = replace(config, evaluations=SMALL_EVALUATIONS)
    kept = {
        **named(data).to_dict(),
        "space": on if isinstance(on, str) else "cells",
        "arch": None if goal.arch is None else to_dict(goal.arch),
        "budget": budget,
        "scorer": name,
        **search.to_dict(),
        **{key: value for key, value in run.to_dict().items() if key in ("seed", "device", "precision")},
        "trained": None if trained is None else asdict(trained),
        "short": None if short is None else {k: v for k, v in asdict(short).items() if k != "together"},
        "images": None if batches is None else batches.fingerprint,
        "settings": asdict(config),
        "versions": {"natpp": __version__, "torch": torch.__version__},
    }
    kept["command"] = _command(search, kept)
    if short is not None:
        in_half(fabric)  # before the folder is made: a wrong precision leaves no folder behind
    if short is not None and batches is not None and trained is not None and wanted.store is not None:
        # nor does a wrong file
        at_hand = ShortScorer(batches, trained, short, fabric, seed=run.seed, store=wanted.store, say=run.say)
    with catching_signals() as stop:
        folder = Folder(
            run.out if first else None, kept, resume=run.resume and first, tensorboard=run.tensorboard and first
        )
        scores: Scorer | SharedWeights
        if at_hand is not None:
            scores = at_hand
        else:
            assert batches is not None
            assert trained is not None
            if short is None:
                scores = SharedWeights(goal.space, trained, batches, config.weights, fabric, run.seed)
            else:
                file = folder.file("scores.jsonl")
                scores = ShortScorer(batches, trained, short, fabric, seed=run.seed, store=file, say=run.say)
        searching = Searching(
            goal.space,
            goal.task,
            scores,
            config,
            fabric,
            asked=search,
            run=run,
            arch=goal.arch,
            folder=folder,
            stop=stop,
        )
        searching.started = started
        policy = searching()
    if run.out is not None and first:
        _keep(Path(run.out), goal, searching, scores, policy)
        notes = {name: kept[name] for name in KEPT} | kept["versions"]
        policy.save(Path(run.out) / "policy.safetensors", notes)
    leave(fabric)
    return policy


def _scorer_name(search: Search, scorer: Scorer | str | None) -> str:
    """The scorer: by default short trainings, or the supernet with the paper's preset."""
    if scorer is None:
        return "supernet" if search.preset == "paper" else "short"
    return scorer if isinstance(scorer, str) else type(scorer).__name__


def _command(search: Search, kept: Mapping[str, Any]) -> str:
    """The equivalent command; a scorer or images that only Python can give appear by name."""
    usual = {"space": "cells", "budget": "strict", "scorer": _scorer_name(search, None), **Run().to_dict()}
    arch = kept["arch"] and json.dumps(kept["arch"], separators=(",", ":"))
    words = ["natpp", "search"]
    for name in ("data", "root", "size", "space", "arch", "budget", "scorer", "seed", "device", "precision"):
        value = arch if name == "arch" else kept[name]
        if value is not None and value != usual.get(name):
            words += [f"--{name}", str(value)]
    return shlex.join([*words, *search.to_flags()])


def schedule(short: Short, images: Batches) -> ShortConfig:
    """The schedule of short trainings: the default for such images, with the user's settings."""
    return replace(usual_schedule(images), **given(short, "steps", "batch", "learning_rate", "together"))


def _keep(folder: Path, goal: Goal, search: Searching, scores: Scorer | SharedWeights, policy: Policy) -> None:
    """Write the result next to the policy."""
    if isinstance(scores, SharedWeights):
        scores.weights.supernet.save(folder / "supernet.safetensors")
    if search.chosen is not None:
        write_whole(folder / "architecture.json", to_json(search.chosen) + "\n")
    found = _result(goal, search, policy)
    if found is not None:
        if isinstance(scores, ShortScorer):
            found = replace(found, measured=_measured(scores, found))
        write_whole(folder / "result.json", json.dumps(found.to_dict()) + "\n")


def _result(goal: Goal, search: Searching, policy: Policy) -> Result | None:
    """The result for the given architecture; for many inputs, that of the one whose score rose most."""
    if goal.arch is not None:
        if search.chosen is None:
            return transform(goal.arch, policy, goal.task)
        return explained(goal.arch, search.chosen, policy, goal.task)
    if search.example is None:
        return None
    found = explained(*search.example, policy, goal.task)
    return replace(found, settings=found.settings | {"example": list(search.example_scores)})


def _measured(scores: ShortScorer, found: Result) -> tuple[dict[str, Any], ...]:
    """Accuracies before and after from short trainings, if both were trained."""
    outcomes = [scores.recorded(arch) for arch in (found.before, found.after)]
    before, after = (None if one is None else one.accuracy for one in outcomes)
    if before is None or after is None:
        return ()
    images = len(scores.images.validation)
    spreads = [math.sqrt(share * (100 - share) / images) for share in (before, after)]
    return (
        {
            "what": "accuracy, %",
            "before": before,
            "after": after,
            "before_spread": spreads[0],
            "after_spread": spreads[1],
            "spread": f"standard error over {images} validation images",
            "how": f"one short training each, {counted(scores.config.steps, 'step')} in a small network, on images set "
            "aside to choose by",
        },
    )


def make_scorer(
    word: str,
    *,
    reward: str = "val_200",
    limit: int | None = None,
    root: str | Path | None = None,
    fabric: Fabric | None = None,
) -> Scorer:
    """The existing scorer that a word names: a run's folder (its supernet), or a table's file."""
    if word in TRAINED:
        raise SettingError(
            f"the scorer {word} needs images to train on: give data, or a run's folder or a table's file"
        )
    if os.path.isdir(word):
        return _run_scorer(word, root, limit, fabric or make_fabric())
    if os.path.exists(word) or Path(word).suffix:
        return TableScorer(read_table(word, [reward]), reward, limit)
    raise SettingError(
        f"unknown scorer {word!r}. {did_you_mean(word, TRAINED)} Or give a run's folder or a table's file."
    )


def short_scorer(network: str, data: Data | training.Task, short: Short = Short(), run: Run = Run()) -> ShortScorer:
    """Short trainings as a scorer, for architectures of a network."""
    fabric = make_fabric(run.device)
    batches = _batches(data, fabric, run.say)
    where = usual_setting(network, batches, "short", short.channels, short.cells)
    return ShortScorer(batches, where, schedule(short, batches), fabric, seed=run.seed, store=short.store, say=run.say)


def run_scores(
    archs: Sequence[Architecture], scorer: Short | str | Path, data: Data | training.Task, run: Run
) -> list[Outcome]:
    """Scores of architectures by short trainings, or by a run's supernet or a table."""
    if not isinstance(scorer, Short):
        made = make_scorer(str(scorer), root=named(data).root, fabric=make_fabric(run.device))
        return [Outcome(value=value, accuracy=value) for value in made(archs).tolist()]
    found: dict[int, Outcome] = {}
    for network in ("cifar", "nasbench201"):
        places = [i for i, arch in enumerate(archs) if (arch.reduce is None) == (network == "nasbench201")]
        if places:
            short = short_scorer(network, data, scorer, run)
            if run.watch is not None:
                short.scored = functools.partial(_watched, run.watch, short, len(found), len(archs))
            found |= zip(places, short.outcomes([archs[place] for place in places]), strict=True)
    return [found[place] for place in range(len(archs))]


def _watched(watch: Watch, scorer: Scorer, before: int, total: int) -> None:
    watch("scores", min(before + scorer.queries, total), total, {"best": max(scorer.known.values())})


def run_policy(folder: str | Path) -> Path:
    """The policy file of a run."""
    file = Path(folder) / "policy.safetensors"
    if not file.is_file():
        _search_config(folder)  # raises if the folder is not a run
        raise FormatError(
            f"the run {str(folder)!r} has no policy yet, since it has not ended: continue it with --resume"
        )
    return file


def _search_config(folder: str | Path) -> dict[str, Any]:
    """The settings of a search; an error for the folder of a training."""
    found = read_config(folder)
    if "recipe" in found:
        raise FormatError(f"{str(folder)!r} is a training, not a search: it has neither a policy nor shared weights")
    return found


def named(task: Data | training.Task) -> Data:
    """The data as a run's settings record it; for data given as a value only the name."""
    return task if isinstance(task, Data) else Data(task.name)


def make_task(given: Data | training.Task, fabric: Fabric, say: Say | None = None) -> training.Task:
    """The task of a name; unreadable images are reported, by default to the log."""
    if isinstance(given, training.Task):
        return given
    if given.data is None:
        raise SettingError(
            "networks are trained on images: give data, or an existing scorer (a run's folder or a table's file)"
        )
    task = training.Task.of(given.data, root=given.root, size=given.size, say=say)
    left_out = task.train.left_out if isinstance(task.train, Images) else None
    if left_out is not None and fabric.global_rank == 0:
        (say or LOG.warning)(left_out)
    return task


def _batches(data: Data | training.Task, fabric: Fabric, say: Say | None = None) -> Batches:
    return make_task(data, fabric, say).batches(fabric.device)


def _run_scorer(folder: str, root: str | Path | None, limit: int | None, fabric: Fabric) -> Scorer:
    """The supernet of a run, on the validation images of that run."""
    kept = _search_config(folder)
    if kept.get("trained") is None or kept.get("scorer") != "supernet":
        raise SettingError(f"the run {folder!r} has no supernet: its scores came from {kept.get('scorer')}")
    try:
        search, data = _kept(Search, kept), _kept(Data, kept)
        on = kept["space"] if kept["arch"] is None else from_dict(kept["arch"])
        goal = Goal.of(search, on, kept["budget"])
        supernet = Supernet(goal.space, Setting(**kept["trained"]))
    except (KeyError, TypeError, SettingError) as error:
        raise FormatError(f"the settings of the run {folder!r} are damaged: {error}") from None
    file = Path(folder) / "supernet.safetensors"
    if not file.is_file():
        raise FormatError(f"the run {folder!r} has no supernet yet, since it has not ended: continue it with --resume")
    batches = _batches(replace(data, root=root or data.root), fabric)
    supernet.load(file)
    supernet.to(fabric.device)
    return SupernetScorer(supernet, batches.validation, batches.validation_labels, fabric, limit)


def _kept(config: type[C], kept: Mapping[str, Any]) -> C:
    """The settings of a run that belong to a config."""
    return config.from_dict({name: kept[name] for name in fields_of(config) if name in kept})
