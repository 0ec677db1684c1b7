"""Cells of the thirteen-operation space trained for longer on CIFAR-10, and a search whose scores should agree.

    python experiments/truth_cells.py train --root DIR --runs FOLDER [--seconds 540]
    python experiments/truth_cells.py schedules --root DIR --runs FOLDER [--only NAME;…] [--seconds 540]
    python experiments/truth_cells.py search --root DIR --runs FOLDER
    python experiments/truth_cells.py rival --name supernet --root DIR --runs FOLDER
    python experiments/truth_cells.py rival --name paper --root DIR --runs FOLDER
    python experiments/truth_cells.py direct --root DIR --runs FOLDER [--seconds 540]
    python experiments/truth_cells.py judge --runs FOLDER

`train` trains the cells of `cells.py` (15 epochs of 45,000 images, a full cosine, 8 cells, 16 channels), many side by
side on a GPU. `schedules` scores those that are not set aside by shorter schedules; the one that agrees best is
picked. `search` goes from images to a policy in 376 s with it, rivals get the same seconds. `direct`, last, gives the
cells that are judged (those set aside, and those of `worth.py`) the scores of a short training and of both supernets:
no choice hangs on them. Everything finished is kept in FOLDER, what is there is not done again, and no group is begun
that would not end within `--seconds`. `judge` runs anywhere and writes `results/truth_cells.json`, the cells set aside
looked at once, when all of them and those of `worth.py` are trained; schedules that FOLDER has no trainings of stay as
that file has them. `--smoke` does it on digits with eight cells.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from answers import read_answers, split_name
from cells import Cell, Pool, set_aside, truth_cells
from figures import partial, spearman, with_interval
from safetensors.torch import load_file, save_file
from together import BATCH, LONGER, Recipe, Trainer, arch_of, carry_out, command_line, read_trained
from truth_nasbench201 import Over, keep, settled, started
from values import (
    CAUTION,
    FIRST_MODELS,
    LOSSES,
    MOST_SECONDS,
    Known,
    Pick,
    agreement,
    best_of,
    came_from,
    cheap_scores,
    dear_scores,
    differences,
    left_out,
    loss_of,
    pairs_among,
    parents,
    scores_in,
    value_model,
)
from views import WHERE

from natpp.arch.cost import counts
from natpp.arch.formats import from_dict, to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import CellSpace
from natpp.data.batches import Batches
from natpp.files import write_whole
from natpp.nets.supernet import Supernet
from natpp.registry import OPS
from natpp.run import Run
from natpp.runs.phases import Phases, phases
from natpp.runs.search import Search
from natpp.runs.searching import Searching
from natpp.scorers.base import Scores, Task
from natpp.scorers.short import ShortScorer
from natpp.scorers.supernet import (
    GRAPHS,
    MOST_STEPS_A_GRAPH,
    SharedWeights,
    SupernetScorer,
    WeightsConfig,
    usual_setting,
)
from natpp.training.recipe import ShortConfig

RESULTS = Path(__file__).parent / "results" / "truth_cells.json"
SECONDS = 376.0  # of a search, from images on the device to the closed policy file
SECONDS_TO_LEARN = 90.0  # of these, for prediction, policy and what is not predicted
TASK = Task("nat++", setting("cifar"), strict=True)
SHORT = ShortConfig(batch=BATCH, steps=1200, learning_rate=0.1, warm_up=0.2, clip=5.0, together=27)
SCHEDULES = {
    "5 cells, 1200 steps, learning rate 0.1": Recipe(5, SHORT),
    "5 cells, 1200 steps, learning rate 0.05": Recipe(5, replace(SHORT, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05": Recipe(5, replace(SHORT, steps=2400, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05, augmented": Recipe(
        5, replace(SHORT, steps=2400, learning_rate=0.05, augment=True)
    ),
    "3 cells, 2400 steps, learning rate 0.05": Recipe(3, replace(SHORT, steps=2400, learning_rate=0.05)),
}
FIGURES = ("direct_spearman", "spearman", "partial_given_madds", "paired_spearman")


def chosen(*, smoke: bool) -> list[Cell]:
    """The cells; of the small form some of each kind, set aside or not, and changes with what they come from."""
    found = truth_cells()
    return [found[i] for i in (0, 1, 28, 54, 63, 2, 56, 65)] if smoke else found


def named(cells: Sequence[Cell]) -> dict[str, Architecture]:
    """Architectures by name."""
    return {cell.name: cell.arch for cell in cells}


def train(arguments: argparse.Namespace) -> None:
    Trainer(arguments)("longer", LONGER, named(chosen(smoke=arguments.smoke)))


def schedules(arguments: argparse.Namespace) -> None:
    trainer = Trainer(arguments)
    cells = [cell for cell in chosen(smoke=arguments.smoke) if not cell.aside]
    for number, (name, schedule) in enumerate(SCHEDULES.items()):
        if arguments.only is None or name in arguments.only.split(";"):
            trainer(f"short_{number}", schedule, named(cells))


def tried(runs: Path) -> dict[str, dict[str, Any]]:
    """How far every schedule agrees with longer trainings, over the cells that are not set aside."""
    dear, came_from = dear_scores(runs), parents()
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(SCHEDULES):
        said, kept = read_trained(runs / f"short_{number}.json")
        rows = {
            key: row for row in kept.values() if row["value"] is not None and (key := arch_of(row).essence()) in dear
        }
        if not rows:
            continue
        truth = [dear[arch] for arch in rows]
        pairs = pairs_among(list(rows), came_from)
        found[name] = {
            losses: agreement([-loss_of(row, share) for row in rows.values()], truth, live_madds(list(rows)), pairs)
            for losses, share in LOSSES.items()
        }
        found[name] |= {
            "trained": len(rows),
            "seconds_each": float(np.mean([row["seconds"] for row in rows.values()])),
            "mean_accuracy": float(np.mean([row["accuracy"] for row in rows.values()])),
            "recipe": said["recipe"],
            "machine": said["machine"],
        }
    return found


def picked(runs: Path) -> Pick:
    """The schedule and the losses of a search's scores: what agrees best of what is quick enough."""
    found = {name: one for name, one in tried(runs).items() if one["seconds_each"] <= MOST_SECONDS} or tried(runs)
    if not found:
        raise SystemExit("nothing to pick from: run train and schedules first, with the same folder")
    each = {f"{name}\n{losses}": one[losses] for name, one in found.items() for losses in LOSSES}
    name, losses = best_of(each).split("\n")
    return Pick(name, losses)


def pick_of_search(runs: Path) -> Pick:
    """What searches are made with: what was picked for the first."""
    files = sorted(runs.glob("search_[0-9]*.json"))
    return Pick(**json.loads(files[0].read_text())["pick"]) if files else picked(runs)


def search_config(*, smoke: bool) -> Phases:
    """Settings of a search and of the prediction in it."""
    usual = phases(Search(), free=False)
    learn = replace(usual.learn, steps=5 if smoke else usual.learn.steps)
    predict = replace(usual.predict, caution=CAUTION, **({"rounds": 1} if smoke else {}))
    return replace(usual, pool=60 if smoke else usual.pool, final=0, learn=learn, predict=predict)


def evaluations_for(seconds_each: float, together: int) -> int:
    """How many short trainings there is time for, whole groups of them."""
    return max(int((SECONDS - SECONDS_TO_LEARN) / max(seconds_each, 1e-9)) // together * together, 2 * together)


def search(arguments: argparse.Namespace) -> None:
    """From images on the device to a policy file, by short trainings of the picked schedule."""
    if done("search", arguments):
        return
    pick = pick_of_search(arguments.runs)
    recipe = SCHEDULES[pick.schedule]
    recipe = recipe.small() if arguments.smoke else recipe
    schedule = replace(recipe.config, fitting=pick.fitting)
    each = tried(arguments.runs)[pick.schedule]["seconds_each"]
    evaluations = 12 if arguments.smoke else arguments.evaluations or evaluations_for(each, schedule.together)
    settings = search_config(smoke=arguments.smoke)
    space = Pool()
    fabric, images, clock = started(arguments)
    where = recipe.where(images)
    store = arguments.runs / f"search_{arguments.seed}.jsonl"
    scorer = ShortScorer(images, where, schedule, fabric, seed=0, store=store, say=print)
    found = Searching(
        space,
        TASK,
        scorer,
        settings,
        fabric,
        asked=Search(evaluations=evaluations),
        run=Run(seed=arguments.seed, watch=clock),
    )
    found().save(arguments.runs / f"search_{arguments.seed}.safetensors")
    spent = clock.spent.pop("scores")
    clock.spent |= scorer.spent | {"prediction": spent - sum(scorer.spent.values())}
    keep(
        arguments.runs / f"search_{arguments.seed}.json",
        clock,
        seed=arguments.seed,
        evaluations=len(found.known),
        images_per_second=len(found.known) * schedule.steps * schedule.batch / spent,
        scores=[[to_dict(arch), value] for arch, value in found.known.items()],
        pick=asdict(pick),
        settings={"search": asdict(settings), "schedule": asdict(schedule), "network": asdict(where)},
    )


def supernet(arguments: argparse.Namespace) -> None:
    """A supernet in the same seconds: seven tenths for its weights, the rest for scores, prediction and policy."""
    whole = allowed(arguments)
    fabric, images, clock = started(arguments)
    where, space = supernet_setting(images, "supernet", smoke=arguments.smoke), CellSpace(names=tuple(OPS))
    m = len(OPS)  # so that every operation is dealt out once an edge
    weights = WeightsConfig(architectures=m, batch=8 if arguments.smoke else 512 // m, epochs=100)
    trial = SharedWeights(space, where, images, weights, fabric, arguments.seed)
    steps = steps_in(trial, lambda: 0.7 * whole - clock.stop(), 2 if arguments.smoke else 10)
    weights = replace(weights, epochs=max(steps // trial.steps_an_epoch, 1))
    del trial
    clock("weights")
    settings = replace(search_config(smoke=arguments.smoke), weights=weights)
    shared = SharedWeights(space, where, images, weights, fabric, arguments.seed)
    evaluations = 12 if arguments.smoke else 224
    found = Searching(
        Pool(),
        TASK,
        shared,
        settings,
        fabric,
        asked=Search(evaluations=evaluations),
        run=Run(seed=arguments.seed, watch=clock),
    )
    found().save(arguments.runs / f"supernet_{arguments.seed}.safetensors")
    clock.end()
    save_supernet(shared, arguments, "supernet")
    keep(
        arguments.runs / f"supernet_{arguments.seed}.json",
        clock,
        seed=arguments.seed,
        evaluations=len(found.known),
        steps=shared.steps,
        images_per_second=shared.steps * m * shared.batch / clock.spent["weights"],
        scores=[[to_dict(arch), value] for arch, value in found.known.items()],
        settings={"search": asdict(settings), "network": asdict(where)},
    )


def steps_in(shared: SharedWeights, left: Callable[[], float], steps: int) -> int:
    """How many steps of a supernet's weights there is time for, their captures included; `left` are seconds."""

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            shared.step()
        settled(shared.fabric)
        return time.perf_counter() - start

    seconds(2)
    each = seconds(steps) / steps
    shared.weights.steps = shared.steps_a_graph  # the next step is captured again
    capture = seconds(1) - each
    return int(min((left() - GRAPHS * capture) / each, left() / (each + capture / MOST_STEPS_A_GRAPH)))


def paper(arguments: argparse.Namespace) -> None:
    """The preset `paper`, stopped after the same seconds."""
    whole = allowed(arguments)
    fabric, images, clock = started(arguments)
    where, space = supernet_setting(images, "paper", smoke=arguments.smoke), CellSpace(names=tuple(OPS))
    settings = replace(phases(Search(preset="paper"), free=False), pool=search_config(smoke=arguments.smoke).pool)
    shared = SharedWeights(space, where, images, settings.weights, fabric, arguments.seed)

    def watch(*told: Any) -> None:
        clock(*told)
        if clock.stop() >= whole:
            raise Over

    found = Searching(Pool(), TASK, shared, settings, fabric, run=Run(seed=arguments.seed, watch=watch))
    with contextlib.suppress(Over):
        found()
    found.learner.policy.eval().save(arguments.runs / f"paper_{arguments.seed}.safetensors")
    clock.end()
    save_supernet(shared, arguments, "paper")
    keep(
        arguments.runs / f"paper_{arguments.seed}.json",
        clock,
        seed=arguments.seed,
        evaluations=None,
        steps=shared.steps,
        policy_steps=found.learner.steps,
        scores=[],
        settings={"search": asdict(settings), "network": asdict(where)},
    )


def supernet_setting(images: Batches, kind: str, *, smoke: bool) -> Setting:
    """The network of a supernet."""
    where = usual_setting("cifar", images, kind)
    return replace(where, channels=4, cells=3) if smoke else where


RIVALS = {"supernet": supernet, "paper": paper}


def rival(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        raise SystemExit(f"--name is one of {', '.join(RIVALS)}")
    if not done(arguments.name, arguments):
        RIVALS[arguments.name](arguments)


def done(stem: str, arguments: argparse.Namespace) -> bool:
    """Whether a search or a rival was run with the seed before."""
    return bool((arguments.runs / f"{stem}_{arguments.seed}.json").exists())


def save_supernet(shared: SharedWeights, arguments: argparse.Namespace, name: str) -> None:
    """Keep its weights, so that what is trained later can be scored by them."""
    weights = {key: tensor.detach().cpu().contiguous() for key, tensor in shared.weights.supernet.state_dict().items()}
    save_file(weights, arguments.runs / f"{name}_{arguments.seed}.weights.safetensors")


def allowed(arguments: argparse.Namespace) -> float:
    """The seconds of a rival: those of our search."""
    if arguments.seconds is not None:
        return float(arguments.seconds)
    spent = [json.loads(run.read_text())["seconds"] for run in arguments.runs.glob("search_[0-9]*.json")]
    return float(np.mean(spent)) if spent else SECONDS


def judged_cells(runs: Path, *, smoke: bool) -> dict[Architecture, float]:
    """Truths that are judged by, by what a cell computes: those set aside, and the first round of `worth.py`."""
    aside = {cell.name for cell in chosen(smoke=smoke) if cell.aside}
    found: dict[Architecture, float] = {}
    for row in read_trained(runs / "longer.json")[1].values():
        if row["name"] in aside and row["accuracy"] is not None:
            found[arch_of(row).essence()] = row["accuracy"]
    for row in read_trained(runs / "worth_1.json")[1].values():
        if row["accuracy"] is not None:
            found.setdefault(arch_of(row).essence(), row["accuracy"])
    return found


def direct(arguments: argparse.Namespace) -> None:
    """Scores of the cells that are judged, and of what they are changes of: by a short training and by supernets."""
    origin = came_from(arguments.runs, ["worth_1"])
    asked = dict.fromkeys(judged_cells(arguments.runs, smoke=arguments.smoke))
    asked |= dict.fromkeys(origin[arch] for arch in list(asked) if arch in origin)
    archs = {f"{number}": arch for number, arch in enumerate(asked)}
    pick = pick_of_search(arguments.runs)
    trainer = Trainer(arguments)
    trainer("direct", SCHEDULES[pick.schedule], archs)
    images = trainer.images(tested=False)
    for file in sorted(arguments.runs.glob("table_*_answers.json")):  # those of tables are scored by supernets alone
        asked |= dict.fromkeys(arch.essence() for arch in read_answers(file).values())
    for name in RIVALS:
        for file in sorted(arguments.runs.glob(f"{name}_[0-9]*.json")):
            said, weights = json.loads(file.read_text()), file.with_suffix(".weights.safetensors")
            if not weights.exists():  # what it scored when it was trained is kept
                print(f"{weights.name} is not there: {file.stem} scores nothing anew", flush=True)
                continue
            net = Supernet(CellSpace(names=tuple(OPS)), Setting(**said["settings"]["network"]))
            net.load_state_dict(load_file(weights))
            net = net.to(trainer.fabric.device)
            scorer = SupernetScorer(net, images.validation, images.validation_labels, trainer.fabric)
            values = scorer(list(asked)).tolist()
            rows = [[to_dict(arch), value] for arch, value in zip(asked, values, strict=True)]
            write_whole(arguments.runs / f"direct_{file.name}", json.dumps({"scores": rows}) + "\n")


def judge(arguments: argparse.Namespace) -> None:
    """Everything that stands in the table."""
    runs: Path = arguments.runs
    said, longer = read_trained(runs / "longer.json")
    if not longer:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    before = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found: dict[str, Any] = {
        "cells": sum(row["accuracy"] is not None for row in longer.values()),
        "trained_seconds": sum(row["seconds"] for row in longer.values()),
        "longer": said | {"trained": [longer_row(row, smoke=arguments.smoke) for row in longer.values()]},
        "schedules": before.get("schedules", {}) | tried(runs),
    }
    if tried(runs):
        found["pick"] = asdict(pick_of_search(runs))
        found |= judged(runs, smoke=arguments.smoke)
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for name in FIGURES:
        if found.get(name) is not None:
            print(f"{name:<20} {found[name]['value']:.3f} ({found[name]['low']:.3f} to {found[name]['high']:.3f})")


def judged(runs: Path, *, smoke: bool) -> dict[str, Any]:
    """The search's figures and those of its rivals, over the cells that are judged."""
    pick = pick_of_search(runs)
    number = list(SCHEDULES).index(pick.schedule)
    cheap, dear = cheap_scores(runs, number, pick.fitting), dear_scores(runs)
    models = compared_models(cheap, dear, {})
    found: dict[str, Any] = {"models": models}
    searches = [json.loads(file.read_text()) for file in sorted(runs.glob("search_[0-9]*.json"))]
    found["searches"] = [{name: value for name, value in one.items() if name != "scores"} for one in searches]
    found["seconds"] = sum(one["seconds"] for one in searches) + seconds_of(runs, f"short_{number}", "longer")
    truth = judged_cells(runs, smoke=smoke)
    aside = [cell for cell in chosen(smoke=smoke) if cell.aside]
    missing = any(cell.arch.essence() not in truth for cell in aside)
    said_of_worth, worth = read_trained(runs / "worth_1.json")
    missing |= not worth or len(worth) < said_of_worth["asked"]
    if missing or not models or not searches:  # what is set aside is looked at once, when all is there
        return found
    model = best_of(models)
    found["model"] = model
    origin = came_from(runs, ["worth_1"])
    whole = truth | {arch: dear[arch] for arch in {origin[a] for a in truth if a in origin} if arch in dear}
    archs = list(whole)
    pairs = [pair for pair in pairs_among(archs, origin) if archs[pair[0]] in truth]
    prediction = value_model(cheap, dear, model)
    _, kept = read_trained(runs / "direct.json")
    short = {arch_of(row).essence(): -loss_of(row, pick.fitting) for row in kept.values() if row["value"] is not None}
    found["judged"] = len(truth)
    found["pairs"] = len(pairs)
    found |= figures_of(whole, truth, pairs, dict(zip(archs, prediction.expected(archs), strict=True)), short)
    for one, said in zip(found["searches"], searches, strict=True):  # what it knows by itself
        if said["scores"]:
            alone = value_model(scores_in(said), {}, "short").expected(archs)
            one |= figures_of(whole, truth, pairs, dict(zip(archs, alone, strict=True)), {})
    found["rivals"] = {
        "live MAdds": figures_of(whole, truth, pairs, dict(zip(archs, live_madds(archs), strict=True)), {}),
        "parameters": figures_of(whole, truth, pairs, dict(zip(archs, live_params(archs), strict=True)), {}),
    }
    for other in FIRST_MODELS:
        if other != model:
            values = value_model(cheap, dear, other).expected(archs) if len(dear) > 1 else np.zeros(len(archs))
            found["rivals"][f"model {other}"] = figures_of(
                whole, truth, pairs, dict(zip(archs, values, strict=True)), {}
            )
    for name in RIVALS:
        files = sorted(runs.glob(f"direct_{name}_[0-9]*.json"))
        if files:
            rows = json.loads(files[0].read_text())["scores"]
            by_it = {from_dict(arch).essence(): value for arch, value in rows}
            run = json.loads((runs / files[0].name.removeprefix("direct_")).read_text())
            scores, said = scores_in(run), by_it
            if len(scores) > 1:
                said = dict(zip(archs, value_model(scores, {}, "short").expected(archs), strict=True))
            found["rivals"][name] = figures_of(whole, truth, pairs, said, by_it)
            told = ("seconds", "steps", "reserved_gib")
            found["rivals"][name] |= {key: run[key] for key in told if key in run}
    changes = harm(runs, "harm_1", "ours")
    for name in RIVALS:
        if name in found["rivals"]:
            found["rivals"][name] |= harm(runs, "harm_rivals", name)
    return found | changes


def seconds_of(runs: Path, *names: str) -> float:
    """Seconds of kept trainings that are not set aside."""
    rows = [row for name in names for row in read_trained(runs / f"{name}.json")[1].values()]
    return float(sum(row["seconds"] for row in rows if arch_of(row).essence() not in set_aside()))


def compared_models(
    cheap: Known,
    dear: Known,
    origin: Mapping[Architecture, Architecture],
    names: Sequence[str] = FIRST_MODELS,
    losses: Known | None = None,
) -> dict[str, Any]:
    """How far value models agree with longer trainings of cells that they have not seen, nor others of one origin."""
    if len(dear) < 4 or len(cheap) < 4:
        return {}
    found = {}
    archs, truth = list(dear), list(dear.values())
    pairs = pairs_among(archs, {**origin, **parents()})
    for model in names:
        said = left_out(cheap, dear, model, origin, losses=losses)
        found[model] = agreement(list(said.values()), truth, live_madds(archs), pairs)
    return found


def figures_of(
    whole: Mapping[Architecture, float],
    truth: Mapping[Architecture, float],
    pairs: Sequence[tuple[int, int]],
    said: Mapping[Architecture, float],
    by_itself: Mapping[Architecture, float],
) -> dict[str, Any]:
    """Figures with intervals of what is predicted (`said`), and of a score of the cells themselves where there is one.

    `whole` has the judged cells and what they are changes of, in the order that `pairs` number them.
    """
    archs = [arch for arch in truth if arch in said]
    values, true, madds = [said[arch] for arch in archs], [truth[arch] for arch in archs], live_madds(archs)
    both = [arch for arch in truth if arch in by_itself]
    every = list(whole)
    known = [pair for pair in pairs if all(every[number] in said for number in pair)]
    columns = [np.array([of.get(arch, 0.0) for arch in every]) for of in (said, whole)]
    return {
        "direct_spearman": with_interval(spearman, [by_itself[arch] for arch in both], [truth[arch] for arch in both]),
        "spearman": with_interval(spearman, values, true),
        "partial_given_madds": with_interval(partial, values, true, madds),
        "paired_spearman": with_interval(spearman, *(differences(column, known) for column in columns)),
    }


def harm(runs: Path, file: str, by: str) -> dict[str, Any]:
    """What somebody's policy does to published cells: points of accuracy, mean over seeds."""
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
    """What is told of a cell."""
    cell = {cell.name: cell for cell in chosen(smoke=smoke)}[row["name"]]
    return dict(row) | {"kind": cell.kind, "parent": cell.parent, "aside": cell.aside}


def live_madds(archs: Sequence[Architecture]) -> Scores:
    return np.array([counts(arch, WHERE).live_madds for arch in archs], dtype=float)


def live_params(archs: Sequence[Architecture]) -> Scores:
    return np.array([counts(arch, WHERE).live_params for arch in archs], dtype=float)


def main() -> None:
    parser = command_line(
        __doc__,
        (train, schedules, search, rival, direct, judge),
        RESULTS,
        only={"help": "names of schedules, with semicolons between"},
        name={"choices": RIVALS, "help": "which rival"},
        seed={"type": int, "default": 0, "help": "of a search or a rival"},
        evaluations={"type": int, "help": "of a search; by default what there is time for"},
    )
    carry_out(parser)


if __name__ == "__main__":
    main()
