"""Short trainings of proposals as part of the score that picks one, and a final of the best two.

Samples of one policy for one input are similar, and a value model fitted on other cells hardly tells them apart. So
each is trained for some seconds, side by side with the others; random proposals are, too, since all methods share one
score. The weight of these trainings beside the value model is a least-squares fit on cells that have a short and a
longer training, with a value model that has seen neither them nor their origins. The two best of an input are then
trained with the table's own recipe, and the one with the lower final training loss is the answer; test images play no
part in that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.answers import CLOSE, Tried, split_name
from experiments.lib.learned import learned_from, learned_in, pick_of_search
from experiments.lib.schedules import LOSSES, Known, Pick, loss_of, rows_in
from experiments.lib.trainer import arch_of, read_trained
from experiments.lib.values import before, came_from, families_of, left_out
from natpp.arch.graph import Architecture
from natpp.core.scores import Scores
from natpp.files import write_whole
from natpp.scorers.gaussian import normal_scores

NAME, FINALS = "{}_short", "{}_finals"  # names of the files
FINALISTS = 2
UNFITTED: dict[str, Any] = {"weights": (1.0, 1.0), "cells": 0}
Families = Sequence[Sequence[Architecture]]


def listed(proposals: Mapping[str, Sequence[Architecture]]) -> dict[str, Architecture]:
    """All proposals that compete, by names such as `random 3, nat++ best of 10, 7`."""
    return {
        f"{name}, {number}": arch
        for name, some in proposals.items()
        for number, arch in enumerate(some)
        if len(some) > 1
    }


def tried(runs: Path, name: str, pick: Pick, weights: tuple[float, float]) -> Tried:
    """Scores of the short trainings of a table."""
    return Tried(scores_of(whole(runs / f"{NAME.format(name)}.json"), pick.fitting), weights)


def finalists(best_first: Mapping[str, Sequence[Architecture]]) -> dict[str, Architecture]:
    """The best competing proposals by names such as `random 3, nat++ best of 10, 1`, and the others as they are."""
    few = {name: some[:FINALISTS] for name, some in best_first.items()}
    return {name: some[0] for name, some in few.items() if len(some) == 1} | listed(few)


def of_finals(answers: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """The finalists among answers."""
    return {name: arch for name, arch in answers.items() if split_name(name)[1].isdigit()}


def settled(runs: Path, name: str, answers: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """Answers of a table, with the finalist of lowest training loss in place of its group."""
    finals = of_finals(answers)
    rows = whole(runs / f"{FINALS.format(name)}.json") if finals else []
    scores = scores_of(rows, LOSSES["training"])
    found = {one: arch for one, arch in answers.items() if one not in finals}
    for one, arch in sorted(finals.items(), key=lambda item: -scores.get(item[1].essence(), -math.inf)):
        found.setdefault(split_name(one)[0], arch)
    return found


def whole(file: Path) -> Collection[Mapping[str, Any]]:
    """Rows of a file of trainings, which must be complete."""
    said, rows = read_trained(file)
    if len(rows) < said.get("asked", 1):
        raise SystemExit("the proposals to pick from are not all trained yet: run train first, with the same folder")
    return rows.values()


def scores_of(rows: Collection[Mapping[str, Any]], fitting: float) -> Known:
    """Minus the logarithm of the loss of each training that did not fail; `fitting` weights the training loss."""
    return {arch_of(row).essence(): -math.log(loss_of(row, fitting)) for row in rows if row["value"] is not None}


def kept_fit(file: Path, runs: Path, number: int | None = None) -> dict[str, Any]:
    """The fit of a file, or a new one that is kept in it, so that it stays the same."""
    if not file.exists():
        write_whole(file, json.dumps(fitted(runs, number)) + "\n")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def fitted(runs: Path, number: int | None = None) -> dict[str, Any]:
    """Weights of the value model of a round, by default the last, and of a short training, and their agreement.

    Both are fitted on differences of cells to the mean of their family. Agreement is given for all cells, and for the
    similar ones: inputs, and what a policy or a map made of them. Weights are fitted on accuracy; agreement is also
    given for training losses, which vary little between seeds.
    """
    cheap, dear, losses, model = learned_from(runs, number)
    earlier = before(learned_in(runs, number)[0]["round"])
    pick, origin = pick_of_search(runs), came_from(runs, earlier)
    short = scores_of(rows_in(runs, pick.stem, "direct"), pick.fitting)
    said = left_out(cheap, dear, model, origin, losses=losses), short
    truths = {"accuracy": on_normal_scale(dear), "training loss": on_normal_scale(losses)}
    both, close = [arch for arch in short if arch in dear], close_in(runs, earlier)
    families = in_families(both, origin)
    if len(families) < 2:  # weights are judged on other families
        return UNFITTED
    found: dict[str, Any] = {
        "weights": weights_on(families, said, truths["accuracy"]),
        "cells": sum(map(len, families)),
        "families": len(families),
        "agreement": {},
    }
    for title, some in {
        "all": families,
        "close": in_families([arch for arch in both if arch in close], origin),
    }.items():
        for name, truth in truths.items():
            if some and all(arch in truth for family in some for arch in family):
                found["agreement"][f"{title}, {name}"] = agreement(some, families, said, truth, truths["accuracy"])
    return found


def on_normal_scale(known: Known) -> Known:
    """Scores on the normal scale that value models use."""
    return dict(zip(known, normal_scores(np.array(list(known.values()))).tolist(), strict=True)) if known else {}


def close_in(runs: Path, names: Sequence[str]) -> set[Architecture]:
    """Canonical forms of inputs and of what a policy or a map made of them, among kept trainings."""
    rows = (item for name in names for item in read_trained(runs / f"{name}.json")[1].items())
    return {arch_of(row).essence() for (name, _), row in rows if split_name(name)[1] in CLOSE}


def in_families(archs: Sequence[Architecture], origin: Mapping[Architecture, Architecture]) -> list[list[Architecture]]:
    """Families with more than one member."""
    return [some for some in families_of(archs, origin).values() if len(some) > 1]


def weights_on(families: Families, said: Sequence[Known], truth: Known) -> tuple[float, ...]:
    """Least-squares weights, negative ones set to 0."""
    columns = np.stack([within(families, values) for values in said], axis=1)
    return tuple(np.maximum(np.linalg.lstsq(columns, within(families, truth), rcond=None)[0], 0).tolist())


def agreement(
    families: Families, known: Families, said: Sequence[Known], truth: Known, fitted_on: Known
) -> dict[str, Any]:
    """Correlation with the truth of the value model, of short trainings, and of both with cross-validated weights."""
    both = []
    for family in families:
        others = [other for other in known if not set(other) & set(family)]
        columns = np.stack([within([family], values) for values in said], axis=1)
        both.append(columns @ np.array(weights_on(others, said, fitted_on)))
    wanted = within(families, truth)
    columns = [*(within(families, values) for values in said), np.concatenate(both)]
    names = ("value_model", "short_training", "both")
    found = {name: float(np.corrcoef(one, wanted)[0, 1]) for name, one in zip(names, columns, strict=True)}
    return found | {"cells": len(wanted)}


def within(families: Families, values: Known) -> Scores:
    """Values minus the mean of their family."""
    columns = [np.array([values[arch] for arch in some]) for some in families]
    return np.concatenate([column - column.mean() for column in columns])
