"""From CIFAR-10 images to a policy in the thirteen-operation space, judged by longer trainings.

Needs: CIFAR-10 and a GPU: 20 minutes of trainings, 2 or 3 for each schedule, 5 for a search or a rival

`train` trains 81 cells for longer (15 epochs of 45,000 images, a full cosine, 8 cells, 16 channels), many side by side.
`schedules` scores those that are not set aside with shorter schedules; the one that agrees best is picked. `search`
uses it to go from images to a policy in 376 s, and `rival` gives rivals the same seconds. `direct` comes last: it
scores the cells that are judged (those set aside, and those of judge_policies) with a short training and with both
supernets; no choice depends on these scores. `judge` runs anywhere. It reads the cells set aside once, when all of them
and those of judge_policies are trained. Schedules without trainings in the folder keep their figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.torch import load_file, save_file

from experiments.lib import values
from experiments.lib.answers import read_answers, split_name
from experiments.lib.cells import Cell, Pool, set_aside, truth_cells
from experiments.lib.learned import pick_of_search, tried
from experiments.lib.schedules import SCHEDULES, Known, rows_in, scored, scores_in
from experiments.lib.settings import RESULTS, Experiment, Trains, read_results, write_results
from experiments.lib.timed import RIVALS, allowed, keep, scores_of, started, stopped, timed
from experiments.lib.trainer import LONGER, Trainer, arch_of, read_trained
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import CellSpace
from natpp.core.scores import Scores
from natpp.data.batches import Batches
from natpp.files import write_whole
from natpp.nets.supernet import Supernet
from natpp.registry import OPS
from natpp.run import Run
from natpp.runs.phases import Phases, phases
from natpp.runs.search import Search
from natpp.runs.searching import Searching
from natpp.scorers.short import ShortScorer
from natpp.scorers.supernet import (
    GRAPHS,
    MOST_STEPS_A_GRAPH,
    SharedWeights,
    SupernetScorer,
    WeightsConfig,
    usual_setting,
)
from natpp.subjects.cells import Frame

SECONDS = 376.0  # of a search, from images on the device to the closed policy file
SECONDS_TO_LEARN = 90.0  # of these, for prediction, policy and overhead
FRAME = Frame("nat++", setting("cifar"))
FIGURES = ("direct_spearman", "spearman", "partial_given_madds", "paired_spearman")


@dataclass(frozen=True, kw_only=True)
class ImagesCells(Trains):
    out: Path = RESULTS / "images_cells.json"
    only: tuple[str, ...] = ()
    """names of schedules; default: all"""
    name: Literal["supernet", "paper"] | None = None
    """which rival; default: both"""
    seed: int = 0
    """seed of a search or a rival"""
    evaluations: int | None = None
    """short trainings of a search; default: as many as there is time for"""


def chosen(*, smoke: bool) -> list[Cell]:
    """The cells; in the small form some of each kind, set aside or not, and changes with their origins."""
    found = truth_cells()
    return [found[i] for i in (0, 1, 28, 54, 63, 2, 56, 65)] if smoke else found


def named(cells: Sequence[Cell]) -> dict[str, Architecture]:
    """Architectures by name."""
    return {cell.name: cell.arch for cell in cells}


def train(settings: ImagesCells) -> None:
    """Train all cells with the longer recipe."""
    Trainer(settings)("longer", LONGER, named(chosen(smoke=settings.smoke)))


def schedules(settings: ImagesCells) -> None:
    """Train the cells that are not set aside with each shorter schedule."""
    trainer = Trainer(settings)
    cells = [cell for cell in chosen(smoke=settings.smoke) if not cell.aside]
    for number, (name, schedule) in enumerate(SCHEDULES.items()):
        if not settings.only or name in settings.only:
            trainer(f"short_{number}", schedule, named(cells))


def search_config(*, smoke: bool) -> Phases:
    """Settings of a search and of its prediction."""
    usual = phases(Search(), free=False)
    learn = replace(usual.learn, steps=5 if smoke else usual.learn.steps)
    predict = replace(usual.predict, caution=values.CAUTION, **({"rounds": 1} if smoke else {}))
    return replace(usual, pool=60 if smoke else usual.pool, final=0, learn=learn, predict=predict)


def evaluations_for(seconds_each: float, together: int) -> int:
    """Number of short trainings that there is time for, in whole groups."""
    return max(int((SECONDS - SECONDS_TO_LEARN) / max(seconds_each, 1e-9)) // together * together, 2 * together)


def search(settings: ImagesCells) -> None:
    """From images on the device to a policy file, by short trainings with the picked schedule."""
    if done("search", settings):
        return
    pick = pick_of_search(settings.runs)
    recipe = SCHEDULES[pick.schedule]
    recipe = recipe.small() if settings.smoke else recipe
    schedule = replace(recipe.config, fitting=pick.fitting)
    each = tried(settings.runs)[pick.schedule]["seconds_each"]
    evaluations = 12 if settings.smoke else settings.evaluations or evaluations_for(each, schedule.together)
    config = search_config(smoke=settings.smoke)
    space = Pool()
    fabric, images, clock = started(settings, settings.root)
    where = recipe.where(images)
    store = settings.runs / f"search_{settings.seed}.jsonl"
    scorer = ShortScorer(images, where, schedule, fabric, seed=0, store=store, say=print)
    found = Searching(
        space,
        FRAME,
        scorer,
        config,
        fabric,
        asked=Search(evaluations=evaluations),
        run=Run(seed=settings.seed, watch=clock),
    )
    found().save(settings.runs / f"search_{settings.seed}.safetensors")
    spent = clock.split_scores(scorer)
    keep(
        settings.runs / f"search_{settings.seed}.json",
        clock,
        {"search": config, "schedule": schedule, "network": where},
        seed=settings.seed,
        evaluations=len(found.known),
        images_per_second=len(found.known) * schedule.steps * schedule.batch / spent,
        scores=scores_of(found.known),
        pick=asdict(pick),
    )


def rival(settings: ImagesCells) -> None:
    """A supernet and the preset `paper` in the seconds of our search."""
    for name in [settings.name] if settings.name else RIVALS:
        if not done(name, settings):
            {"supernet": supernet, "paper": paper}[name](settings)


def supernet(settings: ImagesCells) -> None:
    """A supernet: seven tenths of the time for its weights, the rest for scores, prediction and policy."""
    whole = seconds_of_rival(settings)
    fabric, images, clock = started(settings, settings.root)
    where, space = supernet_setting(images, "supernet", smoke=settings.smoke), CellSpace(names=tuple(OPS))
    m = len(OPS)  # so that each edge gets each operation once
    weights = WeightsConfig(architectures=m, batch=8 if settings.smoke else 512 // m, epochs=100)
    trial = SharedWeights(space, where, images, weights, fabric, settings.seed)
    steps = steps_in(trial, 0.7 * whole, clock.stop, 2 if settings.smoke else 10)
    weights = replace(weights, epochs=max(steps // trial.steps_an_epoch, 1))
    del trial
    clock("weights")
    config = replace(search_config(smoke=settings.smoke), weights=weights)
    shared = SharedWeights(space, where, images, weights, fabric, settings.seed)
    evaluations = 12 if settings.smoke else 224
    found = Searching(
        Pool(),
        FRAME,
        shared,
        config,
        fabric,
        asked=Search(evaluations=evaluations),
        run=Run(seed=settings.seed, watch=clock),
    )
    found().save(settings.runs / f"supernet_{settings.seed}.safetensors")
    clock.end()
    save_supernet(shared, settings, "supernet")
    keep(
        settings.runs / f"supernet_{settings.seed}.json",
        clock,
        {"search": config, "network": where},
        seed=settings.seed,
        evaluations=len(found.known),
        steps=shared.steps,
        images_per_second=shared.steps * m * shared.batch / clock.spent["weights"],
        scores=scores_of(found.known),
    )


def steps_in(shared: SharedWeights, seconds: float, spent: Callable[[], float], steps: int) -> int:
    """Number of steps of a supernet's weights that fit into the time left, with the captures of CUDA graphs."""
    timed(shared, 2)
    each = timed(shared, steps) / steps
    shared.weights.steps = shared.steps_a_graph  # makes the next step capture a graph
    capture = timed(shared, 1) - each
    left = seconds - spent()
    return int(min((left - GRAPHS * capture) / each, left / (each + capture / MOST_STEPS_A_GRAPH)))


def paper(settings: ImagesCells) -> None:
    """The preset `paper`, stopped at the time limit."""
    whole = seconds_of_rival(settings)
    fabric, images, clock = started(settings, settings.root)
    where, space = supernet_setting(images, "paper", smoke=settings.smoke), CellSpace(names=tuple(OPS))
    config = replace(phases(Search(preset="paper"), free=False), pool=search_config(smoke=settings.smoke).pool)
    shared = SharedWeights(space, where, images, config.weights, fabric, settings.seed)
    found = stopped(
        lambda watch: Searching(Pool(), FRAME, shared, config, fabric, run=Run(seed=settings.seed, watch=watch)),
        clock,
        whole,
    )
    found.learner.policy.eval().save(settings.runs / f"paper_{settings.seed}.safetensors")
    clock.end()
    save_supernet(shared, settings, "paper")
    keep(
        settings.runs / f"paper_{settings.seed}.json",
        clock,
        {"search": config, "network": where},
        seed=settings.seed,
        evaluations=None,
        steps=shared.steps,
        policy_steps=found.learner.steps,
        scores=[],
    )


def supernet_setting(images: Batches, kind: str, *, smoke: bool) -> Setting:
    """The network of a supernet."""
    where = usual_setting("cifar", images, kind)
    return replace(where, channels=4, cells=3) if smoke else where


def done(stem: str, settings: ImagesCells) -> bool:
    """Whether a search or a rival has run with the seed before."""
    return bool((settings.runs / f"{stem}_{settings.seed}.json").exists())


def save_supernet(shared: SharedWeights, settings: ImagesCells, name: str) -> None:
    """Keep the weights, so that architectures trained later can be scored by them."""
    weights = {key: tensor.detach().cpu().contiguous() for key, tensor in shared.weights.supernet.state_dict().items()}
    save_file(weights, settings.runs / f"{name}_{settings.seed}.weights.safetensors")


def seconds_of_rival(settings: ImagesCells) -> float:
    """The time limit of a rival."""
    return allowed(settings.seconds, settings.runs.glob("search_[0-9]*.json"), SECONDS)


def judged_cells(runs: Path, *, smoke: bool) -> dict[Architecture, float]:
    """True scores by canonical form: of the cells set aside, and of the first round of judge_policies."""
    aside = {cell.name for cell in chosen(smoke=smoke) if cell.aside}
    found: dict[Architecture, float] = {}
    for row in rows_in(runs, "longer"):
        if row["name"] in aside and row["accuracy"] is not None:
            found[arch_of(row).essence()] = row["accuracy"]
    for row in rows_in(runs, "worth_1"):
        if row["accuracy"] is not None:
            found.setdefault(arch_of(row).essence(), row["accuracy"])
    return found


def direct(settings: ImagesCells) -> None:
    """Score the cells that are judged, and their origins, with a short training and with the supernets."""
    origin = values.came_from(settings.runs, ["worth_1"])
    asked = dict.fromkeys(judged_cells(settings.runs, smoke=settings.smoke))
    asked |= dict.fromkeys(origin[arch] for arch in list(asked) if arch in origin)
    archs = {f"{number}": arch for number, arch in enumerate(asked)}
    pick = pick_of_search(settings.runs)
    trainer = Trainer(settings)
    trainer("direct", SCHEDULES[pick.schedule], archs)
    images = trainer.images(tested=False)
    for file in sorted(settings.runs.glob("table_*_answers.json")):  # supernets also score the answers of tables
        asked |= dict.fromkeys(arch.essence() for arch in read_answers(file).values())
    for name in RIVALS:
        for file in sorted(settings.runs.glob(f"{name}_[0-9]*.json")):
            said, weights = json.loads(file.read_text()), file.with_suffix(".weights.safetensors")
            if not weights.exists():  # its earlier scores are kept
                print(f"{weights.name} is missing: {file.stem} scores nothing new", flush=True)
                continue
            net = Supernet(CellSpace(names=tuple(OPS)), Setting(**said["settings"]["network"]))
            net.load_state_dict(load_file(weights))
            net = net.to(trainer.fabric.device)
            scorer = SupernetScorer(net, images.validation, images.validation_labels, trainer.fabric)
            scores = scores_of(dict(zip(asked, scorer(list(asked)).tolist(), strict=True)))
            write_whole(settings.runs / f"direct_{file.name}", json.dumps({"scores": scores}) + "\n")


def judge(settings: ImagesCells) -> None:
    """Write all figures of the table."""
    runs: Path = settings.runs
    said, longer = read_trained(runs / "longer.json")
    if not longer:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    before = read_results(settings.out)
    found: dict[str, Any] = {
        "cells": sum(row["accuracy"] is not None for row in longer.values()),
        "trained_seconds": sum(row["seconds"] for row in longer.values()),
        "longer": said | {"trained": [longer_row(row, smoke=settings.smoke) for row in longer.values()]},
        "schedules": before.get("schedules", {}) | tried(runs),
    }
    if tried(runs):
        found["pick"] = asdict(pick_of_search(runs))
        found |= judged(runs, smoke=settings.smoke)
    write_results(settings.out, found)
    for name in FIGURES:
        if found.get(name) is not None:
            print(f"{name:<20} {found[name]['value']:.3f} ({found[name]['low']:.3f} to {found[name]['high']:.3f})")


def judged(runs: Path, *, smoke: bool) -> dict[str, Any]:
    """Figures of the search and its rivals, over the cells that are judged."""
    pick = pick_of_search(runs)
    cheap, dear = values.cheap_scores(runs, pick), values.dear_scores(runs)
    models = values.compared_models(cheap, dear, {})
    found: dict[str, Any] = {"models": models}
    searches = [json.loads(file.read_text()) for file in sorted(runs.glob("search_[0-9]*.json"))]
    found["searches"] = [{name: value for name, value in one.items() if name != "scores"} for one in searches]
    found["seconds"] = sum(one["seconds"] for one in searches) + seconds_of(runs, pick.stem, "longer")
    truth = judged_cells(runs, smoke=smoke)
    aside = [cell for cell in chosen(smoke=smoke) if cell.aside]
    missing = any(cell.arch.essence() not in truth for cell in aside)
    said_of_worth, worth = read_trained(runs / "worth_1.json")
    missing |= not worth or len(worth) < said_of_worth["asked"]
    if missing or not models or not searches:  # cells set aside are read once, when everything is trained
        return found
    model = values.best_of(models)
    found["model"] = model
    origin = values.came_from(runs, ["worth_1"])
    whole = truth | {arch: dear[arch] for arch in {origin[a] for a in truth if a in origin} if arch in dear}
    archs = list(whole)
    pairs = [pair for pair in values.pairs_among(archs, origin) if archs[pair[0]] in truth]
    short = scored(rows_in(runs, "direct"), pick.fitting)
    found["judged"] = len(truth)
    found["pairs"] = len(pairs)

    def figures(said: Scores, by_itself: Known | None = None) -> dict[str, Any]:
        return values.figures_of(whole, truth, pairs, dict(zip(archs, said, strict=True)), by_itself or {})

    found |= figures(values.value_model(cheap, dear, model).expected(archs), short)
    for one, said in zip(found["searches"], searches, strict=True):  # what each search knows alone
        if said["scores"]:
            one |= figures(values.value_model(scores_in(said), {}, "short").expected(archs))
    found["rivals"] = {
        "live MAdds": figures(values.live_madds(archs)),
        "parameters": figures(values.live_params(archs)),
    }
    for other in values.FIRST_MODELS:
        if other != model:
            said = values.value_model(cheap, dear, other).expected(archs) if len(dear) > 1 else np.zeros(len(archs))
            found["rivals"][f"model {other}"] = figures(said)
    for name in RIVALS:
        files = sorted(runs.glob(f"direct_{name}_[0-9]*.json"))
        if files:
            by_it = scores_in(json.loads(files[0].read_text()))
            run = json.loads((runs / files[0].name.removeprefix("direct_")).read_text())
            scores, said = scores_in(run), by_it
            if len(scores) > 1:
                said = dict(zip(archs, values.value_model(scores, {}, "short").expected(archs), strict=True))
            found["rivals"][name] = values.figures_of(whole, truth, pairs, said, by_it)
            told = ("seconds", "steps", "reserved_gib")
            found["rivals"][name] |= {key: run[key] for key in told if key in run}
    changes = harm(runs, "harm_1", "ours")
    for name in RIVALS:
        if name in found["rivals"]:
            found["rivals"][name] |= harm(runs, "harm_rivals", name)
    return found | changes


def seconds_of(runs: Path, *names: str) -> float:
    """Seconds of kept trainings of cells that are not set aside."""
    return float(sum(row["seconds"] for row in rows_in(runs, *names) if arch_of(row).essence() not in set_aside()))


def harm(runs: Path, file: str, by: str) -> dict[str, Any]:
    """Points of accuracy by which a policy changes published cells, mean over seeds."""
    kept, originals = (read_trained(runs / f"{name}.json")[1] for name in (file, "harm_1"))
    found: dict[str, Any] = {}
    for name in sorted({split_name(name)[0] for name, _ in kept}):
        pairs = [
            (row["accuracy"], originals[f"{name}, input", seed]["accuracy"])
            for (one, seed), row in kept.items()
            if one == f"{name}, {by}" and (f"{name}, input", seed) in originals
        ]
        changes = [after - before for after, before in pairs if after is not None and before is not None]
        if changes:
            found[f"{name}_change"] = float(np.mean(changes))
    return found


def longer_row(row: Mapping[str, Any], *, smoke: bool) -> dict[str, Any]:
    """A row of a longer training with the kind and origin of its cell."""
    cell = {cell.name: cell for cell in chosen(smoke=smoke)}[row["name"]]
    return dict(row) | {"kind": cell.kind, "parent": cell.parent, "aside": cell.aside}


EXPERIMENT = Experiment(ImagesCells, (train, schedules, search, rival, direct, judge))
