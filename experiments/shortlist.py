"""Short trainings of what methods propose, as a part of the score that picks from it.

Samples of one policy for one input are much alike, and a value model, which knows of others, hardly tells them apart.
So each of them is trained itself, for seconds, side by side with the others; so are random ones, since one score is for
all. How much that counts beside the value model is fitted, by least squares, on cells that have a short and a longer
training both, with a value model that has seen neither them nor what they come from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from answers import Tried
from policies import learned_from, learned_in
from together import arch_of, read_trained
from truth_cells import SCHEDULES, pick_of_search
from values import Known, Pick, before, came_from, families_of, left_out, loss_of

from natpp.arch.graph import Architecture
from natpp.improve.predict import normal_scores
from natpp.improve.scorer import Scores

NAME = "{}_short"  # of what is kept
UNFITTED: dict[str, Any] = {"weights": (1.0, 1.0), "cells": 0}


def listed(proposals: Mapping[str, Sequence[Architecture]]) -> dict[str, Architecture]:
    """All that a score has to pick from, by names such as `random 3, nat++ best of 10, 7`."""
    return {
        f"{name}, {number}": arch
        for name, some in proposals.items()
        for number, arch in enumerate(some)
        if len(some) > 1
    }


def tried(runs: Path, name: str, pick: Pick, weights: tuple[float, float]) -> Tried:
    """What short trainings of a table found."""
    rows = read_trained(runs / f"{NAME.format(name)}.json")[1].values()
    return Tried(scores_of(rows, pick), weights)


def scores_of(rows: Collection[Mapping[str, Any]], pick: Pick) -> Known:
    """Minus the logarithms of losses, of trainings that did not fail."""
    return {arch_of(row).essence(): -math.log(loss_of(row, pick.fitting)) for row in rows if row["value"] is not None}


def fitted(runs: Path, number: int | None = None) -> dict[str, Any]:
    """Weights of the value model of a round, by default the last, and of a short training, and how far each agrees.

    That is with accuracies, over the differences of cells to the mean of those that come from the same one.
    """
    cheap, dear, losses, model = learned_from(runs, number)
    pick, origin = pick_of_search(runs), came_from(runs, before(learned_in(runs, number)[0]["round"]))
    files = (f"short_{list(SCHEDULES).index(pick.schedule)}", "direct")
    short = scores_of([row for file in files for row in read_trained(runs / f"{file}.json")[1].values()], pick)
    predicted = left_out(cheap, dear, model, origin, losses=losses)
    truth = dict(zip(dear, normal_scores(np.array(list(dear.values()))), strict=True))
    both = [arch for arch in short if arch in dear]
    families = [some for some in families_of(both, origin).values() if len(some) > 1]
    if not families:
        return UNFITTED
    said = np.stack([within(families, values) for values in (predicted, short)], axis=1)
    wanted = within(families, truth)
    weights = np.maximum(np.linalg.lstsq(said, wanted, rcond=None)[0], 0)

    def correlation(values: Scores) -> float:
        return float(np.corrcoef(values, wanted)[0, 1])

    return {
        "weights": tuple(weights.tolist()),
        "cells": len(wanted),
        "families": len(families),
        "value_model": correlation(said[:, 0]),
        "short_training": correlation(said[:, 1]),
        "both": correlation(said @ weights),
    }


def within(families: Sequence[Sequence[Architecture]], values: Known) -> Scores:
    """Values less the means of families."""
    columns = [np.array([values[arch] for arch in some]) for some in families]
    return np.concatenate([column - column.mean() for column in columns])
