"""What a training tells of an architecture: its accuracy varies with the seed, its training loss hardly does.

Needs: the folder of images_cells with the first round of table_random; a CPU, seconds

First, over all longer trainings: how much seeds move both figures, and the spread of accuracies given the training
loss, against the spread that seeds alone would leave. Then, over the cells of that table, which no value model here is
fitted on: the agreement of value models with the training losses of what methods made of one input, without random
changes. These models are the one its policies had learned on, and those of the fourth round fitted on the same
trainings. No test accuracy is read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.answers import INPUT, split_name, title_over
from experiments.lib.learned import learned_from
from experiments.lib.schedules import rows_in
from experiments.lib.settings import RESULTS, Experiment, Reads, write_results
from experiments.lib.statistics import Values, paired, with_interval
from experiments.lib.trainer import arch_of, read_trained
from experiments.lib.values import LATER_MODELS, before, loss_scores, value_model
from experiments.table_random import METHODS, OURS, POLICIES, name_of
from natpp.arch.graph import Architecture

TABLE = 1  # round of table_random
LARGEST = 0.5  # training loss; networks above it have hardly learned
KINDS = (INPUT, *(name for name in METHODS if not name.startswith("random")))
Figures = dict[int, tuple[float, float]]  # accuracy and training loss, by seed


@dataclass(frozen=True, kw_only=True)
class Losses(Reads):
    out: Path = RESULTS / "losses.json"


def trainings(runs: Path, number: int) -> dict[Architecture, Figures]:
    """Validation accuracy and training loss of all longer trainings before a round."""
    found: defaultdict[Architecture, Figures] = defaultdict(dict)
    for row in rows_in(runs, "longer", *before(number)):
        if row["accuracy"] is not None:
            found[arch_of(row).essence()][row["seed"]] = float(row["accuracy"]), float(row["curve"][-1])
    return dict(found)


def by_seeds(found: dict[Architecture, Figures]) -> dict[str, Any]:
    """The spread of both figures over seeds, and how well training losses explain accuracies."""
    found = {arch: one for arch, one in found.items() if np.mean(list(one.values()), axis=0)[1] < LARGEST}
    several = [np.array(list(one.values())) for one in found.values() if len(one) > 1]
    squares = sum(((one - one.mean(axis=0)) ** 2).sum(axis=0) for one in several)
    noise = np.sqrt(squares / sum(len(one) - 1 for one in several))
    means = {arch: np.mean(list(one.values()), axis=0) for arch, one in found.items()}
    accuracy, loss = np.array(list(means.values())).T
    line = np.polynomial.Polynomial.fit(loss, accuracy, 2)
    return {
        "networks": len(found),
        "with_several_seeds": len(several),
        "accuracy_sd": float(accuracy.std()),
        "accuracy_by_seeds": float(noise[0]),
        "loss_sd": float(loss.std()),
        "loss_by_seeds": float(noise[1]),
        "left_of_accuracy": float((accuracy - line(loss)).std()),
        "left_by_seeds_alone": float(noise[0] * np.sqrt(np.mean([1 / len(one) for one in found.values()]))),
        "points_per_loss": float(line.deriv()(np.median(loss))),
    }


def within(groups: list[tuple[list[float], list[float]]]) -> dict[str, Any] | None:
    """Correlation of two figures within groups, minus the group means; bootstrap over the groups."""

    def statistic(chosen: Values) -> float:
        columns = [
            np.concatenate([np.subtract(groups[int(i)][k], np.mean(groups[int(i)][k])) for i in chosen]) for k in (0, 1)
        ]
        return float(np.corrcoef(*columns)[0, 1])

    return with_interval(statistic, np.arange(len(groups)))


def on_fresh(runs: Path, points_per_loss: float) -> dict[str, Any]:
    """The table's answers by training loss, and the agreement of value models with these losses."""
    number = POLICIES[TABLE]
    rows = read_trained(runs / f"{name_of(TABLE)}.json")[1]
    losses: defaultdict[str, dict[str, float]] = defaultdict(dict)
    archs: defaultdict[str, dict[str, Architecture]] = defaultdict(dict)
    for (name, _), row in rows.items():
        subject, kind = split_name(name)
        if kind in KINDS:
            losses[subject][kind] = float(row["curve"][-1])
            archs[subject][kind] = arch_of(row).essence()
    for subject in [subject for subject, some in losses.items() if len(some) < len(KINDS)]:
        del losses[subject], archs[subject]  # incomplete
    cheap, dear, _, learned_on = learned_from(runs, number)
    known = {arch: value for arch, value in loss_scores(runs, number).items() if arch in dear}
    models = {name: value_model(cheap, dear, name, losses=known) for name in dict.fromkeys([learned_on, *LATER_MODELS])}
    agreement = {}
    for title, model in models.items():
        groups = [
            (model.expected(list(some.values())).tolist(), [-np.log(losses[subject][kind]) for kind in some])
            for subject, some in archs.items()
        ]
        agreement[title] = within(groups)
    columns = {kind: [losses[subject][kind] * points_per_loss for subject in losses] for kind in KINDS}
    differences = {
        title_over(one, kind): paired(columns[one], columns[kind])
        for place, one in enumerate(OURS)
        for kind in KINDS
        if kind not in OURS[place:]
    }
    return {"inputs": len(losses), "trainings": len(dear), "agreement": agreement, "differences": differences}


def measure(settings: Losses) -> None:
    """Write both parts."""
    seeds = by_seeds(trainings(settings.runs, POLICIES[TABLE] + 1))
    found = {"seeds": seeds, "fresh": on_fresh(settings.runs, seeds["points_per_loss"])}
    write_results(settings.out, found)
    for title, one in found["fresh"]["agreement"].items():
        print(f"{title}: {one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})")


EXPERIMENT = Experiment(Losses, (measure,))
