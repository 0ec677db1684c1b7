"""A search: space, data, scorer, device and folder put together.

The folder keeps the settings, so that another command can use its scorer (`--scorer RUN`) or its policy.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from natpp.arch.formats import to_dict, to_json
from natpp.arch.graph import Architecture
from natpp.core.budget import Budget
from natpp.core.result import Result
from natpp.data.batches import Batches
from natpp.data.images import SMALL_IMAGE
from natpp.data.named import Data
from natpp.errors import counted
from natpp.files import write_whole
from natpp.folder import catching_signals
from natpp.fx.trace import trace
from natpp.methods.answer import result_of
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy, encode
from natpp.registry import SCORERS
from natpp.run import Run, Say, Watch
from natpp.runs.fabric import leave, make_fabric, open_folder
from natpp.runs.goal import Goal, kept_in
from natpp.runs.phases import phases
from natpp.runs.scoring import Scoring, Short, Wanted, as_scoring
from natpp.runs.search import Search
from natpp.runs.searching import Searching
from natpp.runs.tasks import make_task, named
from natpp.runs.workers import check_here, on_ray
from natpp.scorers.base import Scorer
from natpp.scorers.short import ShortScorer, ShortTunings, in_half
from natpp.scorers.supernet import SharedWeights, usual_setting
from natpp.subjects.cells import Cells
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.training import task as training
from natpp.training.outcome import Outcome

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SMALL_EVALUATIONS = 100  # default for small images, which are most likely searched on a CPU
TRAINED = ("short", "supernet")  # scorers that are trained on images
KEPT = ("data", "space", "nodes", "extras", "rule", "budget", "preset", "scorer", "evaluations", "price", "seed")
LOG = logging.getLogger("natpp")


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
    name, short_of = _scorer_name(search, scorer), search.short
    batches, trained, at_hand = None, None, scorer if isinstance(scorer, Scorer) else None
    if at_hand is None and name in TRAINED:
        batches = _batches(data, fabric, run.say)
        kind = "paper" if search.preset == "paper" and name == "supernet" else name
        trained = usual_setting(goal.network, batches, kind, short_of.channels, short_of.cells)
    elif at_hand is None:
        wanted = Wanted(goal.network, data, run, limit=search.evaluations, given=fabric)
        at_hand = as_scoring(name, reward=search.reward).make(wanted)
    free = at_hand is not None and at_hand.free and search.evaluations is None
    config = phases(search, free=free, network=goal.network)
    short = short_of.schedule(batches) if batches is not None and name == "short" else None
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
    if short is None:
        check_here(run, f"scores come from {name}")
    else:
        in_half(fabric)  # before the folder is made: a wrong precision leaves no folder behind
    train: Callable[..., ShortScorer] = ShortScorer if run.workers == "here" else on_ray(fabric)
    if short is not None and batches is not None and trained is not None and short_of.store is not None:
        # nor does a wrong file
        at_hand = train(batches, trained, short, fabric, seed=run.seed, store=short_of.store, say=run.say)
    with catching_signals() as stop:
        folder = open_folder(run, kept, fabric)
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
                scores = train(batches, trained, short, fabric, seed=run.seed, store=file, say=run.say)
        searching = Searching(
            goal.space,
            goal.frame,
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
    told = {**kept, "arch": arch, "task": kept_in(Data, kept).text}
    for name in ("task", "space", "arch", "budget", "scorer", "seed", "device", "precision"):
        value = told[name]
        if value is not None and value != usual.get(name):
            words += [f"--{name}", str(value)]
    return shlex.join([*words, *search.to_flags()])


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
    pair = search.example if goal.arch is None else (goal.arch, search.chosen)
    if pair is None:
        return None
    before, after = pair
    cells, budget, method = (
        Cells(before, goal.frame, policy.ops),
        Budget(strict=goal.frame.strict),
        PolicyMethod(learned=policy),
    )
    if after is None:
        answer = method.answer(Subjects([cells]), None, Run())
    else:
        answer = method.explained(Subjects([cells]), cells.plan(encode(after, cells.ops).ops))
    asked = {"rule": goal.frame.rule, "budget": budget.said, "network": asdict(goal.frame.where), "seed": 0}
    example = {"example": list(search.example_scores)} if goal.arch is None else {}
    return result_of(cells, answer, budget, asked | answer.settings | example)


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


def run_scores(
    given: Sequence[Architecture | nn.Module],
    scorer: Scoring,
    data: Data | training.Task,
    run: Run,
    example: Any = None,
) -> list[Outcome]:
    """Scores of architectures and of modules by short trainings, or by a supernet or a table."""
    if not isinstance(scorer, Short):
        check_here(run, f"scores come from {SCORERS.text_of(scorer)}")
    found: dict[int, Outcome] = {}
    groups: dict[str | int, list[int]] = {}  # by network; a module is alone
    for place, one in enumerate(given):
        network = place if isinstance(one, nn.Module) else "nasbench201" if one.reduce is None else "cifar"
        groups.setdefault(network, []).append(place)
    for network, places in groups.items():
        some: list[Any] = [given[place] for place in places]
        wanted = Wanted(str(network), data, run)
        if isinstance(network, int):
            module = Module(trace(some[0], example))
            some = [module.candidate((0,) * len(module.decisions))]
            wanted = replace(wanted, subjects=Subjects([module]))
        made = scorer.make(wanted)
        if isinstance(made, ShortScorer) and run.watch is not None:
            made.scored = functools.partial(_watched, run.watch, made, len(found), len(given))
        if isinstance(made, ShortScorer | ShortTunings):
            outcomes = made.outcomes(some)
        else:
            values = made(some).tolist()
            outcomes = [Outcome(one, None if isinstance(network, int) else one) for one in values]
        found |= zip(places, outcomes, strict=True)
    return [found[place] for place in range(len(given))]


def _watched(watch: Watch, scorer: Scorer, before: int, total: int) -> None:
    watch("scores", min(before + scorer.queries, total), total, {"best": max(scorer.known.values())})


def _batches(data: Data | training.Task, fabric: Fabric, say: Say | None = None) -> Batches:
    return make_task(data, fabric, say).batches(fabric.device)
