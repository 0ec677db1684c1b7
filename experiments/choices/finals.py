"""How many of ten candidates should meet in a final, and how different samples should be: simulated.

Needs: the folder of images_cells; a CPU, a minute

The true worth of architectures is drawn from the distribution of a value model, given all that it was fitted on. A
short training shows it with the noise seen on cells that also have a longer training, a final with the noise of the
loss of a longer training. There are forty fresh cells and the policy of the fourth round, sampled at several
temperatures; candidates are picked as in `lib/shortlist.py`. The results of the table's real finals, by training
losses, are added when all are trained. No network is trained here, and no test accuracy is read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.lib import shortlist
from experiments.lib.answers import CANDIDATES, Knowledge, answers_of, split_name
from experiments.lib.learned import knowledge, learned_from, pick_of_search
from experiments.lib.machine import machine
from experiments.lib.schedules import LOSSES, loss_of, rows_in
from experiments.lib.settings import RESULTS, Experiment, Reads, write_results
from experiments.lib.trainer import read_trained
from experiments.lib.values import PARTS, WHERE, before, came_from
from experiments.table_random import POLICIES, fit_in, name_of
from natpp.arch.graph import Architecture
from natpp.arch.space import CellSpace
from natpp.core.scores import Scores
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Transitions, masked_log_softmax
from natpp.registry import OPS
from natpp.scorers.predicted import Prediction
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

TABLE = 2  # round of table_random that has finals
FRESH, SEED, DRAWS = 40, 1402, 100  # cells, seed, and draws of the truth for each cell
TEMPERATURES = (1.0, 1.5, 2.0)
FINALISTS = (1, 2, 3, CANDIDATES)
NOISE_OF_LOSSES = 0.06  # standard deviation over seeds of the loss of a longer training, from `losses`
TRUTHS = {"losses": PARTS[:2], "accuracies": PARTS[2:]}  # value models that truths are drawn from


@dataclass(frozen=True, kw_only=True)
class Finals(Reads):
    out: Path = RESULTS / "finals.json"


def of_short(runs: Path) -> tuple[float, float]:
    """Slope and noise of the score of a short training against the normal score of the loss of a longer one.

    Fitted on similar answers, minus the means of families.
    """
    _, _, losses, _ = learned_from(runs, POLICIES[TABLE])
    pick, earlier = pick_of_search(runs), before(POLICIES[TABLE])
    short = shortlist.scores_of(rows_in(runs, pick.stem, "direct"), pick.fitting)
    close = shortlist.close_in(runs, earlier)
    families = shortlist.in_families(
        [arch for arch in short if arch in close and arch in losses], came_from(runs, earlier)
    )
    shown, true = (shortlist.within(families, values) for values in (short, shortlist.on_normal_scale(losses)))
    slope = float(shown @ true / (true @ true))
    return slope, float((shown - slope * true).std() / slope)


def sampled(subjects: Subjects, known: Knowledge, temperature: float) -> list[list[Architecture]]:
    """For each input the most likely plan of a policy and nine samples at a temperature."""
    method = PolicyMethod("nat++", learned=known.policies["nat++"])
    likely = answers_of(method, subjects, known.prediction.reward(), np.random.default_rng(0))
    batch, count = subjects.batch(range(len(subjects))), CANDIDATES - 1
    with torch.no_grad():
        log_probs = known.policies["nat++"](batch).log_probs
    cooled = Transitions(batch, masked_log_softmax(log_probs.masked_fill(~batch.mask, 0) / temperature, batch.mask))
    choices = cooled.sample(count, torch.Generator().manual_seed(SEED))
    rows = [row for *_, row in subjects.rows(range(len(subjects)), choices.numpy(), cooled.probabilities(choices))]
    return [
        [subjects.transformed(index, row) for row in (likely[index], *rows[index * count : (index + 1) * count])]
        for index in range(len(subjects))
    ]


def possible(model: Prediction, origin: Architecture, archs: Sequence[Architecture]) -> tuple[Scores, Scores]:
    """Expected improvements over the origin, and a square root of their covariance."""
    size = len(archs)
    mean, deviation = model.differences([origin] * size, archs)
    pairs = [[one for one in archs for _ in archs], [other for _ in archs for other in archs]]
    apart = model.differences(*pairs)[1].reshape(size, size)
    covariance = (deviation[:, None] ** 2 + deviation[None] ** 2 - (apart**2 + apart.T**2) / 2) / 2
    values, vectors = np.linalg.eigh(covariance)
    return mean, vectors * np.sqrt(values.clip(min=0))


def simulated(
    model: Prediction,
    known: Knowledge,
    origin: Architecture,
    some: Sequence[Architecture],
    mapped: Architecture,
    short: tuple[float, float],
    weights: Sequence[float],
    generator: np.random.Generator,
) -> Scores:
    """Mean improvements by one shot, a map, the best of ten by finals of several sizes, and a single sample."""
    distinct = list(dict.fromkeys(arch.essence() for arch in (*some, mapped)))
    place = {arch: number for number, arch in enumerate(distinct)}
    candidates = list(dict.fromkeys(place[arch.essence()] for arch in some))
    mean, root = possible(model, origin, distinct)
    said = known.prediction.gains([origin] * len(distinct), distinct, caution=0.0)
    found = []
    for _ in range(DRAWS):
        true = mean + root @ generator.standard_normal(len(distinct))
        shown = short[0] * (true + short[1] * generator.standard_normal(len(distinct)))
        score = weights[0] * said + weights[1] * shown
        last = true + NOISE_OF_LOSSES * generator.standard_normal(len(distinct))
        order = sorted(candidates, key=lambda one: -score[one])
        winners = [max(order[:count], key=lambda one: last[one]) for count in FINALISTS]
        picked = [place[some[0].essence()], place[mapped.essence()], *winners]
        found.append([*true[picked], true[[place[arch.essence()] for arch in some]].mean()])
    return np.mean(found, axis=0)


def shown(runs: Path) -> dict[str, Any]:
    """For the finals of each method: how often the first by the score won, and the loss the winner gains over it."""
    said, rows = read_trained(runs / f"{shortlist.FINALS.format(name_of(TABLE))}.json")
    if len(rows) < said.get("asked", 1):
        return {}
    losses: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, _), row in sorted(rows.items()):  # the first by the score first
        subject, method = split_name(split_name(name)[0])
        losses[method][subject].append(math.inf if row["value"] is None else loss_of(row, LOSSES["training"]))
    return {
        method: {
            "finals": len(some),
            "first_won": sum(one[0] == min(one) for one in some.values()),
            "loss_below_first": float(np.mean([one[0] - min(one) for one in some.values()])),
        }
        for method, some in losses.items()
    }


def measure(settings: Finals) -> None:
    """Simulate finals at several temperatures."""
    known = knowledge(settings.runs, POLICIES[TABLE])
    weights = fit_in(settings.runs, TABLE)["weights"]
    short = of_short(settings.runs)
    drawn = CellSpace().draw(2 if settings.smoke else FRESH, np.random.default_rng([SEED, TABLE]))
    subjects = Subjects(cells_of(drawn, Frame("nat++", WHERE), tuple(OPS)))
    rows = answers_of(known.constant, subjects, known.prediction.reward(), np.random.default_rng(0))
    mapped = [subjects.transformed(index, row) for index, row in enumerate(rows)]
    models = dict(zip(PARTS, known.prediction.parts, strict=True))
    found: dict[str, Any] = {
        "table": name_of(TABLE),
        "inputs": len(drawn),
        "draws": DRAWS,
        "finalists": FINALISTS,
        "short": {"slope": short[0], "noise": short[1]},
        "weights": weights,
        "shown": shown(settings.runs),
        "machine": machine(),
        "temperatures": {},
    }
    for temperature in TEMPERATURES[: 1 if settings.smoke else None]:
        some = sampled(subjects, known, temperature)
        one: dict[str, Any] = {"distinct": float(np.mean([len({arch.essence() for arch in ten}) for ten in some]))}
        for truth, names in TRUTHS.items():
            generator = np.random.default_rng(SEED)
            means = np.mean(
                [
                    simulated(models[name], known, drawn[index], ten, mapped[index], short, weights, generator)
                    for name in names
                    for index, ten in enumerate(some)
                ],
                axis=0,
            ).tolist()
            one[truth] = {"one_shot": means[0], "map": means[1], "best": means[2:-1], "sample": means[-1]}
        found["temperatures"][str(temperature)] = one
        print(f"temperature {temperature}: {one}", flush=True)
    write_results(settings.out, found)


EXPERIMENT = Experiment(Finals, (measure,))
