"""Value models of the space of cells, fitted on kept scores, and the features that they see.

Cheap scores are short trainings: those of searches, and those of cells that are not set aside. Dear scores are longer
trainings of these cells; a second round adds all that the first one trained, and the cells set aside, which have been
judged by then. A value model is fitted on the cheap scores, the dear ones, or both. Which model is used, and which
losses make a score, is picked by cross-validation on what the round may see. From the fourth round on, models also see
the training losses of the dear scores, which vary little between seeds (`choices/losses.py`), and models of all three
kinds of scores are averaged.
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.answers import INPUT, split_name
from experiments.lib.cells import set_aside, truth_cells
from experiments.lib.schedules import Known, Pick, rows_in, scored, scores_in
from experiments.lib.statistics import Values, partial, spearman, with_interval
from experiments.lib.trainer import AGAIN, arch_of, read_trained
from natpp.arch.cost import counts
from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.networks import setting
from natpp.core.scores import Scores
from natpp.scorers.features import Features, Name, flow_features, walk_features
from natpp.scorers.predicted import PredictConfig, Prediction, View

WHERE = setting("cifar", channels=16, cells=8, classes=10, size=32)  # network of the longer trainings
MOST_SEEN = 1 << 16
TYPES = ("sep", "dil", "conv", "max", "avg", "skip")  # how the names of operations begin
COST = " with cost"  # a model whose prior is the mean of networks of similar cost
BESIDE = " beside cost"  # a model that sees the flow through the graph and its cost at once
FIRST_MODELS = ("short", "mixture", "longer", f"short{COST}", f"mixture{COST}")  # of the first two rounds
MODELS = (*FIRST_MODELS, f"short{BESIDE}", f"mixture{BESIDE}")
BY_LOSS = 4  # first round that knows training losses
PARTS = ("losses", "losses by flow", "places", f"mixture{BESIDE}")  # models that are averaged; the first two by losses
TOGETHER = "together"
LATER_MODELS = (*PARTS, TOGETHER)  # from round BY_LOSS on
FOLDS = 9
CAUTION = 0.5  # standard deviations that an improvement has to exceed


@functools.lru_cache(MOST_SEEN)
def cost_features(arch: Architecture) -> Features:
    """Logarithms of the live cost of an architecture."""
    cost = counts(arch, WHERE)
    return {("params",): math.log1p(cost.live_params), ("madds",): math.log1p(cost.live_madds)}


@functools.lru_cache(MOST_SEEN)
def place_features(arch: Architecture) -> Features:
    """Counts of operations by place, and the receptive field.

    For each kind of cell: the count of each operation, and of each type at the cell's inputs and further in; by how
    many pixels the receptive field grows on a random path back from an output, and on the widest one; and the summed
    sizes of depthwise kernels.
    """
    found: defaultdict[Name, float] = defaultdict(float)
    for kind, graph in arch.cells():
        nodes, concat = graph.living()
        mean, widest = [0.0] * NUM_INPUTS, [0] * NUM_INPUTS
        for inputs in nodes:
            mean.append(sum(mean[source] + grown(op) for op, source in inputs) / max(len(inputs), 1))
            widest.append(max((widest[source] + grown(op) for op, source in inputs), default=0))
            for op, source in inputs:
                type_of = next((name for name in TYPES if op.startswith(name)), "other")
                found[kind, "op", op] += 1
                found[kind, "type", type_of] += 1
                found[kind, "at inputs" if source < NUM_INPUTS else "further in", type_of] += 1
                found[kind, "depthwise"] += (1 + grown(op)) * (type_of in ("sep", "dil"))
        outputs = [node for node in concat if nodes[node - NUM_INPUTS]]
        found[kind, "field"] = sum(mean[node] for node in outputs) / max(len(outputs), 1)
        found[kind, "widest field"] = max((widest[node] for node in outputs), default=0)
    return dict(found)


def grown(op: str) -> int:
    """Pixels by which an operation widens the receptive field."""
    size = max((int(part) for part in op.split("_")[-1].split("x") if part.isdigit()), default=1) - 1
    return 2 * size if op.startswith(("sep", "dil")) else size  # two in a row, or dilated by 2


PLACES = (place_features, walk_features, cost_features)
FLOW = (flow_features, walk_features, cost_features)


def searched(runs: Path) -> Known:
    """Scores of all searches."""
    found: Known = {}
    for file in sorted(runs.glob("search_[0-9]*.json")):
        found |= scores_in(json.loads(file.read_text()))
    return found


def cheap_scores(runs: Path, pick: Pick) -> Known:
    """All scores by short trainings of the picked schedule, without the cells set aside."""
    known = searched(runs) | scored(rows_in(runs, pick.stem), pick.fitting)
    return {arch: value for arch, value in known.items() if arch not in set_aside()}


def dear_scores(runs: Path, number: int = 1) -> Known:
    """Mean accuracies over seeds of longer trainings before a round; the first round has no cells set aside."""
    found: dict[Architecture, dict[int, float]] = {}
    for row in rows_in(runs, "longer", *before(number)):
        if row["accuracy"] is not None:
            found.setdefault(arch_of(row).essence(), {})[row["seed"]] = float(row["accuracy"])
    aside = set_aside() if number == 1 else frozenset()
    return {arch: float(np.mean(list(seeds.values()))) for arch, seeds in found.items() if arch not in aside}


def loss_scores(runs: Path, number: int) -> Known:
    """Minus the mean logarithm of final training losses over seeds, for all trainings before a round.

    Tables have a recipe of their own: a line through networks trained with both maps their losses to the longer recipe.
    """
    longer = mean_losses(runs, ["longer", *(name for name in before(number) if not name.startswith("table"))])
    shorter = mean_losses(runs, [name for name in before(number) if name.startswith("table")])
    slope, height = line_between(runs, longer)
    found = {arch: height + slope * value for arch, value in shorter.items()} | longer
    return {arch: -value for arch, value in found.items()}


def line_between(runs: Path, longer: Known) -> tuple[float, float]:
    """Slope and height of the line that maps losses of the tables' recipe to those of the longer one."""
    shorter = mean_losses(runs, ["table_cells_1"], seeds=(0,))
    both = [arch for arch in shorter if arch in longer]
    if len(both) < 2:
        return 1.0, 0.0
    slope, height = np.polyfit([shorter[arch] for arch in both], [longer[arch] for arch in both], 1)
    return float(slope), float(height)


def mean_losses(runs: Path, names: Sequence[str], seeds: Collection[int] | None = None) -> Known:
    """Mean logarithms of final training losses over seeds, or over some seeds."""
    found: dict[Architecture, dict[int, float]] = {}
    for row in rows_in(runs, *names):
        if row["value"] is not None and (seeds is None or row["seed"] in seeds):
            found.setdefault(arch_of(row).essence(), {})[row["seed"]] = math.log(row["curve"][-1])
    return {arch: float(np.mean(list(one.values()))) for arch, one in found.items()}


def before(number: int) -> list[str]:
    """Names of what the rounds before one trained; the answers of the third were those of the first table."""
    found = [f"{name}_{done}" for done in range(1, number) for name in ("worth", "harm")]
    tables = [f"table_random_{done - 2}" for done in range(3, number)]
    return [*found, *(form.format(table) for table in tables for form in ("{}", AGAIN))]


def came_from(runs: Path, names: Sequence[str]) -> dict[Architecture, Architecture]:
    """The origin of each change, both in canonical form: among the cells, and in some files of trainings."""
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
    """A value model of a kind, fitted on the scores `without` some architectures."""
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
    """The mean of several value models; their disagreement adds to the uncertainty."""

    def __init__(self, parts: Sequence[Prediction]):
        self.parts, self.config = parts, parts[0].config

    def differences(self, before: Sequence[Hashable], after: Sequence[Hashable]) -> tuple[Scores, Scores]:
        return self._mean(np.array([part.differences(before, after) for part in self.parts]))

    def _both(self, archs: Sequence[Hashable]) -> Scores:
        return np.stack(self._mean(np.array([part._both(archs).T for part in self.parts])), axis=1)

    @staticmethod
    def _mean(found: Scores) -> tuple[Scores, Scores]:
        """Mean and deviation from those of the parts: (parts, 2, architectures)."""
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
    """Cross-validated predictions for all cells with a longer training, whole families left out together.

    A family is all cells with the same origin, as `came_from` has it.
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
    """Cells by their origin."""
    found: dict[Architecture, list[Architecture]] = {}
    for arch in archs:
        found.setdefault(came_from.get(arch, arch), []).append(arch)
    return found


def agreement(said: Values, truth: Values, madds: Values, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Spearman with the truth, the same given MAdds, and Spearman of paired differences."""
    said, truth = np.asarray(said, dtype=float), np.asarray(truth, dtype=float)
    return {
        "spearman": spearman(said, truth),
        "partial_given_madds": partial(said, truth, madds),
        "paired_spearman": spearman(*(differences(values, pairs) for values in (said, truth))),
    }


def differences(values: Scores, pairs: Sequence[tuple[int, int]]) -> Scores:
    """Value of each change minus the value of its origin."""
    return np.array([values[change] - values[parent] for change, parent in pairs])


def parents() -> dict[Architecture, Architecture]:
    """Changes among the cells and their origins, in canonical form."""
    cells = truth_cells()
    by_name = {cell.name: cell.arch.essence() for cell in cells}
    return {cell.arch.essence(): by_name[cell.parent] for cell in cells if cell.parent is not None}


def pairs_among(archs: Sequence[Architecture], came_from: Mapping[Architecture, Architecture]) -> list[tuple[int, int]]:
    """Index pairs of a change and its origin, where both are present and differ."""
    place = {arch: number for number, arch in enumerate(archs)}
    return [
        (number, place[came_from[arch]])
        for number, arch in enumerate(archs)
        if arch in came_from and came_from[arch] in place and came_from[arch] != arch
    ]


def best_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the best agreement: the highest mean of Spearman and Spearman given MAdds."""

    def worth(name: str) -> float:
        return float(np.mean([found[name][figure] or 0.0 for figure in ("spearman", "partial_given_madds")]))

    return max(found, key=worth)


def compared_models(
    cheap: Known,
    dear: Known,
    origin: Mapping[Architecture, Architecture],
    names: Sequence[str] = FIRST_MODELS,
    losses: Known | None = None,
) -> dict[str, Any]:
    """Cross-validated agreement of value models with longer trainings."""
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
    """Agreement with intervals of predictions (`said`), and of direct scores (`by_itself`) where there are any.

    `whole` has the judged cells and their origins in the order that `pairs` index.
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


def live_madds(archs: Sequence[Architecture]) -> Scores:
    """Living multiply-adds in the network of the longer trainings."""
    return np.array([counts(arch, WHERE).live_madds for arch in archs], dtype=float)


def live_params(archs: Sequence[Architecture]) -> Scores:
    """Living parameters in that network."""
    return np.array([counts(arch, WHERE).live_params for arch in archs], dtype=float)
