"""What a training tells of an architecture: its accuracy moves with the seed, its training loss hardly does.

    python experiments/losses.py --runs FOLDER

FOLDER is that of `truth_cells.py`, with the first round of `table_random.py`. Over all longer trainings: how far seeds
move both figures, and what is left of accuracies where the training loss is known, beside what seeds alone would leave.
Then, over the cells of that table, which no value model here is fitted on: how far value models agree with the training
losses of what methods made of one input, random changes left out. Those are the model that its policies had learned on,
and the ones of the fourth round, fitted on the same trainings. Nothing here looks at a test accuracy. Writes
`results/losses.json`, on a CPU in seconds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from answers import INPUT, split_name
from figures import Values, paired, with_interval
from policies import learned_from
from table_random import METHODS, OURS, POLICIES, name_of
from together import arch_of, read_trained
from values import LATER_MODELS, before, loss_scores, value_model

from natpp.arch.graph import Architecture
from natpp.files import write_whole

RESULTS = Path(__file__).parent / "results" / "losses.json"
TABLE = 1  # the round of table_random.py that is looked at
LARGEST = 0.5  # training loss; what is above has hardly learned
KINDS = (INPUT, *(name for name in METHODS if not name.startswith("random")))
Figures = dict[int, tuple[float, float]]  # accuracy and training loss, by seed


def trainings(runs: Path, number: int) -> dict[Architecture, Figures]:
    """Validation accuracy and training loss of every longer training before a round."""
    found: defaultdict[Architecture, Figures] = defaultdict(dict)
    for name in ("longer", *before(number)):
        for row in read_trained(runs / f"{name}.json")[1].values():
            if row["accuracy"] is not None:
                found[arch_of(row).essence()][row["seed"]] = float(row["accuracy"]), float(row["curve"][-1])
    return dict(found)


def by_seeds(found: dict[Architecture, Figures]) -> dict[str, Any]:
    """How far seeds move both figures, and how far accuracies follow from training losses."""
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
    """Correlation of two figures of those that are together, less their means; bootstrap over the groups."""

    def statistic(chosen: Values) -> float:
        columns = [
            np.concatenate([np.subtract(groups[int(i)][k], np.mean(groups[int(i)][k])) for i in chosen]) for k in (0, 1)
        ]
        return float(np.corrcoef(*columns)[0, 1])

    return with_interval(statistic, np.arange(len(groups)))


def on_fresh(runs: Path, points_per_loss: float) -> dict[str, Any]:
    """The table's answers by their training losses, and how far value models agree with these."""
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
        del losses[subject], archs[subject]  # not all of it is trained
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
        f"`{one}` over {'the inputs' if kind == INPUT else f'`{kind}`'}": paired(columns[one], columns[kind])
        for place, one in enumerate(OURS)
        for kind in KINDS
        if kind not in OURS[place:]
    }
    return {"inputs": len(losses), "trainings": len(dear), "agreement": agreement, "differences": differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of truth_cells.py")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    seeds = by_seeds(trainings(arguments.runs, POLICIES[TABLE] + 1))
    found = {"seeds": seeds, "fresh": on_fresh(arguments.runs, seeds["points_per_loss"])}
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for title, one in found["fresh"]["agreement"].items():
        print(f"{title}: {one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})")


if __name__ == "__main__":
    main()
