"""What the experiments in the space of cells know of an architecture: value models fitted on kept scores.

Cheap scores are short trainings: of a search, and of the cells that are not set aside. Dear ones are longer trainings
of those cells; in a second round, all that the first one trained, those set aside too, once they are judged. A value
model is fitted on the cheap ones, on the dear ones, or on both; which one is used, and which losses make a score, is
picked by folds over what it may see. From the fourth round on there are the training losses of the dear ones too, which
seeds hardly move (`losses.py`), and value models of all three kinds of scores are asked together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from answers import INPUT, split_name
from cells import set_aside, truth_cells
from figures import Values, partial, spearman
from together import AGAIN, arch_of, read_trained
from views import cost_features, place_features

from natpp.arch.formats import from_dict
from natpp.arch.graph import Architecture
from natpp.scorers.base import Scores
from natpp.scorers.features import flow_features, walk_features
from natpp.scorers.predicted import PredictConfig, Prediction, View

LOSSES = {"validation": 0.0, "both": 0.5, "training": 1.0}  # the share of the training loss in a score
COST = " with cost"  # a model that expects what costs as much, before it looks at the graph
BESIDE = " beside cost"  # one that sees what flows through the graph and what it costs at once
FIRST_MODELS = ("short", "mixture", "longer", f"short{COST}", f"mixture{COST}")  # of the first two rounds
MODELS = (*FIRST_MODELS, f"short{BESIDE}", f"mixture{BESIDE}")
BY_LOSS = 4  # the round from which on training losses are known too
PLACES = (place_features, walk_features, cost_features)
FLOW = (flow_features, walk_features, cost_features)
PARTS = ("losses", "losses by flow", "places", f"mixture{BESIDE}")  # what is asked together; the first two by losses
TOGETHER = "together"
LATER_MODELS = (*PARTS, TOGETHER)  # from then on
FOLDS = 9
MOST_SECONDS = 3.5  # a short training may take, on a GPU, to be picked
CAUTION = 0.5  # standard deviations that an improvement has to be sure by
Known = dict[Architecture, float]  # scores by what an architecture computes


@dataclass(frozen=True)
class Pick:
    """What was picked on the cells that are not set aside."""

    schedule: str
    losses: str

    @property
    def fitting(self) -> float:
        """The share of the training loss in a score."""
        return LOSSES[self.losses]


def loss_of(row: Mapping[str, Any], fitting: float) -> float:
    """The loss that makes the score of a kept training."""
    last = float(row["curve"][-1])
    return last if row["loss"] is None else (1 - fitting) * float(row["loss"]) + fitting * last


def scored(rows: Collection[Mapping[str, Any]], fitting: float) -> Known:
    """Scores of kept short trainings; those that failed have none."""
    return {arch_of(row).essence(): -loss_of(row, fitting) for row in rows if row["value"] is not None}


def scores_in(said: Mapping[str, Any]) -> Known:
    """Scores that a search made."""
    return {from_dict(arch).essence(): float(value) for arch, value in said["scores"]}


def searched(runs: Path) -> Known:
    """Scores that searches made."""
    found: Known = {}
    for file in sorted(runs.glob("search_[0-9]*.json")):
        found |= scores_in(json.loads(file.read_text()))
    return found


def cheap_scores(runs: Path, number: int, fitting: float) -> Known:
    """All scores by short trainings of one schedule, set-aside cells never among them."""
    rows = read_trained(runs / f"short_{number}.json")[1].values()
    known = searched(runs) | scored(list(rows), fitting)
    return {arch: value for arch, value in known.items() if arch not in set_aside()}


def dear_scores(runs: Path, number: int = 1) -> Known:
    """Accuracies of longer trainings before a round, means over seeds: in the first without cells set aside."""
    found: dict[Architecture, dict[int, float]] = {}
    for row in (row for name in ("longer", *before(number)) for row in read_trained(runs / f"{name}.json")[1].values()):
        if row["accuracy"] is not None:
            found.setdefault(arch_of(row).essence(), {})[row["seed"]] = float(row["accuracy"])
    aside = set_aside() if number == 1 else frozenset()
    return {arch: float(np.mean(list(seeds.values()))) for arch, seeds in found.items() if arch not in aside}


def loss_scores(runs: Path, number: int) -> Known:
    """Minus the logarithms of training losses at the end of all trainings before a round, means over seeds.

    Tables have a recipe of their own: their losses become those of the longer one by a line through what both trained.
    """
    longer = mean_losses(runs, ["longer", *(name for name in before(number) if not name.startswith("table"))])
    shorter = mean_losses(runs, [name for name in before(number) if name.startswith("table")])
    slope, height = line_between(runs, longer)
    found = {arch: height + slope * value for arch, value in shorter.items()} | longer
    return {arch: -value for arch, value in found.items()}


def line_between(runs: Path, longer: Known) -> tuple[float, float]:
    """Slope and height of the line that brings losses of the tables' recipe to those of the longer one."""
    shorter = mean_losses(runs, ["table_cells_1"], seeds=(0,))
    both = [arch for arch in shorter if arch in longer]
    if len(both) < 2:
        return 1.0, 0.0
    slope, height = np.polyfit([shorter[arch] for arch in both], [longer[arch] for arch in both], 1)
    return float(slope), float(height)


def mean_losses(runs: Path, names: Sequence[str], seeds: Collection[int] | None = None) -> Known:
    """Logarithms of training losses at the end of kept trainings, means over seeds, of some where they are named."""
    found: dict[Architecture, dict[int, float]] = {}
    for row in (row for name in names for row in read_trained(runs / f"{name}.json")[1].values()):
        if row["value"] is not None and (seeds is None or row["seed"] in seeds):
            found.setdefault(arch_of(row).essence(), {})[row["seed"]] = math.log(row["curve"][-1])
    return {arch: float(np.mean(list(one.values()))) for arch, one in found.items()}


def before(number: int) -> list[str]:
    """Names of what was trained in the rounds before one; the third one's answers were those of the first table."""
    found = [f"{name}_{done}" for done in range(1, number) for name in ("worth", "harm")]
    tables = [f"table_random_{done - 2}" for done in range(3, number)]
    return [*found, *(form.format(table) for table in tables for form in ("{}", AGAIN))]


def came_from(runs: Path, names: Sequence[str]) -> dict[Architecture, Architecture]:
    """What changes come from, by what they compute: among the cells, and of what some files say was trained."""
    found = parents()
    for name in names:
        kept = read_trained(runs / f"{name}.json")[1]
        inputs = {
            split_name(one)[0]: arch_of(row).essence() for (one, _), row in kept.items() if split_name(one)[1] == INPUT
        }
        for (one, _), row in kept.items():
            if (subject := split_name(one)[0]) in inputs:
                found.setdefault(arch_of(row).essence(), inputs[subject])
    return found


def value_model(
    cheap: Known,
    dear: Known,
    model: str,
    *,
    losses: Known | None = None,
    config: PredictConfig | None = None,
    without: Collection[Architecture] = (),
) -> Prediction:
    """A value model of a kind, fitted on scores without those of some architectures."""
    config = config or PredictConfig(caution=CAUTION)
    if model == TOGETHER:
        return Mean([value_model(cheap, dear, part, losses=losses, config=config, without=without) for part in PARTS])
    views = (flow_features, cost_features) if model.endswith(BESIDE) else None

    def fitted(known: Known, prior: Prediction | None = None, views: Sequence[View] | None = views) -> Prediction:
        kept = {arch: value for arch, value in known.items() if arch not in without}
        return Prediction(list(kept), np.array(list(kept.values())), config, views, prior)

    if model.startswith("losses"):
        return fitted(losses or {}, views=FLOW if model.endswith("flow") else PLACES)
    if model == "places":
        return fitted(dear, views=PLACES)
    if model.startswith("longer"):
        return fitted(dear)
    short = fitted(cheap, fitted(cheap, views=(cost_features,)) if model.endswith(COST) else None)
    return short if model.startswith("short") or len(dear) < 2 else fitted(dear, short)


class Mean(Prediction):
    """Several value models at once: the mean of what they expect, and where they differ is doubt too."""

    def __init__(self, parts: Sequence[Prediction]):
        self.parts, self.config = parts, parts[0].config

    def differences(self, before: Sequence[Hashable], after: Sequence[Hashable]) -> tuple[Scores, Scores]:
        return self._mean(np.array([part.differences(before, after) for part in self.parts]))

    def _both(self, archs: Sequence[Hashable]) -> Scores:
        return np.stack(self._mean(np.array([part._both(archs).T for part in self.parts])), axis=1)

    @staticmethod
    def _mean(found: Scores) -> tuple[Scores, Scores]:
        """Of expected values and deviations: (parts, 2, architectures)."""
        expected, deviation = found[:, 0], found[:, 1]
        return expected.mean(axis=0), np.sqrt(np.square(deviation).mean(axis=0) + expected.var(axis=0))


def left_out(
    cheap: Known,
    dear: Known,
    model: str,
    came_from: Mapping[Architecture, Architecture],
    folds: int = FOLDS,
    losses: Known | None = None,
) -> Known:
    """What a value model says of every cell with a longer training that has seen neither it nor its family.

    That are the cells which come from the same one, as far as `came_from` knows.
    """
    families = families_of(dear, came_from)
    names, folds = list(families), min(folds, len(families))
    order = np.random.default_rng(0).permutation(len(names)).tolist()
    found: Known = {}
    for fold in range(folds):
        some = [arch for place in order[fold::folds] for arch in families[names[place]]]
        prediction = value_model(cheap, dear, model, losses=losses, without=set(some))
        found |= zip(some, prediction.expected(some).tolist(), strict=True)
    return {arch: found[arch] for arch in dear}


def families_of(
    archs: Collection[Architecture], came_from: Mapping[Architecture, Architecture]
) -> dict[Architecture, list[Architecture]]:
    """Cells by the one that they come from, as far as `came_from` knows."""
    found: dict[Architecture, list[Architecture]] = {}
    for arch in archs:
        found.setdefault(came_from.get(arch, arch), []).append(arch)
    return found


def agreement(said: Values, truth: Values, madds: Values, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Spearman with the truth, what is left of it given MAdds, and Spearman of the differences of pairs."""
    said, truth = np.asarray(said, dtype=float), np.asarray(truth, dtype=float)
    return {
        "spearman": spearman(said, truth),
        "partial_given_madds": partial(said, truth, madds),
        "paired_spearman": spearman(*(differences(values, pairs) for values in (said, truth))),
    }


def differences(values: Scores, pairs: Sequence[tuple[int, int]]) -> Scores:
    """Of every change less what it came from."""
    return np.array([values[change] - values[parent] for change, parent in pairs])


def parents() -> dict[Architecture, Architecture]:
    """Changes among the cells, and what they are changes of, by what they compute."""
    cells = truth_cells()
    by_name = {cell.name: cell.arch.essence() for cell in cells}
    return {cell.arch.essence(): by_name[cell.parent] for cell in cells if cell.parent is not None}


def pairs_among(archs: Sequence[Architecture], came_from: Mapping[Architecture, Architecture]) -> list[tuple[int, int]]:
    """Numbers of a change and of what it came from, where both are there and differ."""
    place = {arch: number for number, arch in enumerate(archs)}
    return [
        (number, place[came_from[arch]])
        for number, arch in enumerate(archs)
        if arch in came_from and came_from[arch] in place and came_from[arch] != arch
    ]


def best_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of what agrees best: by the mean of Spearman and of its part given MAdds."""

    def worth(name: str) -> float:
        return float(np.mean([found[name][figure] or 0.0 for figure in ("spearman", "partial_given_madds")]))

    return max(found, key=worth)
