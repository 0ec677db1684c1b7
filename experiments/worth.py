"""What the policies that ship are worth on fresh random cells, and whether they harm published ones.

    python experiments/worth.py train --root DIR --runs FOLDER [--only worth|harm] [--seconds 540]
    python experiments/worth.py judge --runs FOLDER

FOLDER is that of `truth_cells.py`, with the policies that `policies.py learn` left there. Twelve fresh random inputs
are changed by one shot of `nat++`, a fixed map, one random transformation and the best of ten random ones by the same
score, the budget strict for all; then all are trained by the longer recipe of `truth_cells.py`. So are `darts`, `enas`,
`naonet` and `pc_darts_cifar`, what the policy makes of them, and the published results of NAT++, with three seeds.
Accuracies are those of the 5,000 validation images. `judge` writes `results/worth.json`. `--smoke` does it on digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from answers import INPUT, answered, kept_answers, split_name
from figures import mean_sd, paired
from policies import knowledge, mark_of
from together import LONGER, Trainer, command_line, given_to, read_trained
from truth_cells import WHERE

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.space import CellSpace
from natpp.files import write_whole
from natpp.registry import ZOO
from natpp.zoo import Published

RESULTS = Path(__file__).parent / "results" / "worth.json"
INPUTS, SEED = 12, 1201
METHODS = ("nat++", "constant", "random", "random best of 10")
PUBLISHED = ("darts", "enas", "naonet", "pc_darts_cifar")
SEEDS = (0, 1, 2)
OURS, THEIRS = "ours", "published NAT++"
COSTS = ("params", "madds", "live_params", "live_madds", "latency_ms")  # of a network, as far as its row has them
Rows = Mapping[tuple[str, int], Mapping[str, Any]]  # kept trainings by name and seed


def worth_answers(runs: Path, *, smoke: bool) -> dict[str, Architecture]:
    """Fresh inputs and what every method makes of them."""

    def make() -> dict[str, Architecture]:
        drawn = CellSpace().draw(INPUTS, np.random.default_rng(SEED))[: 4 if smoke else INPUTS]
        archs = {f"random {number}": arch for number, arch in enumerate(drawn)}
        return answered(archs, METHODS, knowledge(runs), WHERE, seed=SEED)

    return kept_answers(runs / "worth_answers.json", mark_of(runs), make)


def harm_answers(runs: Path, *, smoke: bool) -> dict[str, Architecture]:
    """Published cells, what the policy makes of them, and what the authors of NAT++ published."""

    def make() -> dict[str, Architecture]:
        known = knowledge(runs)
        found: dict[str, Architecture] = {}
        for name in PUBLISHED[: 2 if smoke else None]:
            ours = natpp.optimize(name, known.policies["nat++"], "nat++", network=WHERE)
            found |= {f"{name}, {INPUT}": natpp.load(name), f"{name}, {OURS}": ours.after}
            theirs = f"natpp_{name}"
            if theirs in ZOO:
                found[f"{name}, {THEIRS}"] = natpp.load(theirs)
        return found

    return kept_answers(runs / "harm_answers.json", mark_of(runs), make)


def train(arguments: argparse.Namespace) -> None:
    trainer = Trainer(arguments)
    if arguments.only in (None, "worth"):
        trainer("worth", LONGER, worth_answers(arguments.runs, smoke=arguments.smoke), store="longer")
    if arguments.only in (None, "harm"):
        seeds = SEEDS[:2] if arguments.smoke else SEEDS
        trainer("harm", LONGER, harm_answers(arguments.runs, smoke=arguments.smoke), seeds, store="longer")


def judge(arguments: argparse.Namespace) -> None:
    found: dict[str, Any] = {}
    said, worth = read_trained(arguments.runs / "worth.json")
    if worth:
        found |= compared(worth, METHODS, "nat++", "accuracy", asked=asked_inputs(said, METHODS))
        found["recipe"], found["machine"], found["network"] = said["recipe"], said["machine"], said["network"]
        found["groups"], found["trainings"] = said["groups"], len(worth)
    said, harm = read_trained(arguments.runs / "harm.json")
    if harm:
        found["harm"] = beside_originals(harm, (INPUT, OURS, THEIRS), "accuracy")
        found["harm_groups"], found["harm_machine"] = said["groups"], said["machine"]
    if not found:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for name, one in found.get("differences", {}).items():
        print(f"{name:<40} {one['value']:+.2f} ({one['low']:+.2f} to {one['high']:+.2f})")


def asked_inputs(said: Mapping[str, Any], methods: Sequence[str]) -> int:
    """How many inputs a trainer was given, each of them with what all methods make of it."""
    return int(said["asked"]) // (1 + len(methods))


def compared(rows: Rows, methods: Sequence[str], ours: str, figure: str, *, asked: int) -> dict[str, Any]:
    """Means of every method over the inputs that all methods have, of so many asked for, and paired differences."""
    names = ("input", *methods)
    subjects = sorted({split_name(name)[0] for name, _ in rows}, key=lambda name: (len(name), name))
    whole = [
        subject
        for subject in subjects
        if all(rows.get((f"{subject}, {name}", 0), {}).get(figure) is not None for name in names)
    ]
    found: dict[str, Any] = {"inputs": len(whole), "asked": asked, "methods": {}, "differences": {}}
    if not whole:
        return found
    keys = [figure, *(cost for cost in COSTS if cost in rows[f"{whole[0]}, {INPUT}", 0])]
    column = {name: {key: [rows[f"{one}, {name}", 0][key] for one in whole] for key in keys} for name in names}
    for name in names:
        found["methods"][name] = {key: mean_sd(values) for key, values in column[name].items()}
        found["methods"][name] |= {
            f"{key}_change": float(np.mean(np.divide(column[name][key], np.maximum(column[INPUT][key], 1))) - 1)
            for key in ("live_params", "live_madds")
        }
        found["methods"][name]["over_input"] = paired(column[name][figure], column[INPUT][figure])
    for name in names:
        if name != ours:
            title = "the inputs" if name == INPUT else f"`{name}`"
            found["differences"][f"`{ours}` over {title}"] = paired(column[ours][figure], column[name][figure])
    found["rows"] = {
        one: {name: {key: column[name][key][place] for key in column[name]} for name in names}
        for place, one in enumerate(whole)
    }
    return found


def beside_originals(rows: Rows, kinds: Sequence[str], figure: str) -> dict[str, Any]:
    """Published cells beside what became of them: accuracies over seeds, mean change, and mean cost."""
    found: dict[str, Any] = {}
    seeds = sorted({seed for _, seed in rows})
    for subject in dict.fromkeys(split_name(name)[0] for name, _ in rows):
        one: dict[str, Any] = {}
        for kind in kinds:
            name, original = f"{subject}, {kind}", f"{subject}, {INPUT}"
            both = [
                seed
                for seed in seeds
                if all(rows.get((one, seed), {}).get(figure) is not None for one in (name, original))
            ]
            if both:
                accuracy = [rows[name, seed][figure] for seed in both]
                before = [rows[original, seed][figure] for seed in both]
                one[kind] = {
                    "accuracy": mean_sd(accuracy),
                    "change": float(np.mean(accuracy) - np.mean(before)),
                    "seeds": len(both),
                    **{
                        cost: statistics.mean(rows[name, seed][cost] for seed in both)
                        for cost in COSTS
                        if cost in rows[name, both[0]]
                    },
                }
        found[subject] = one
    return found


def tell_originals(found: Mapping[str, Any]) -> None:
    """Say how what became of each original fares beside it."""
    for name, kinds in found.items():
        for kind, one in kinds.items():
            print(f"{name}, {kind}: {one['accuracy']['mean']:.2f} ({one['change']:+.2f})")


def published_figures(row: Published) -> dict[str, float | None]:
    """What a row of the paper's tables says on CIFAR-10: accuracy, and the size it had there."""
    return {"accuracy": row.accuracy["CIFAR-10"], "params_m": row.params_m, "madds_m": row.madds_m}


def main() -> None:
    parser = command_line(__doc__, (train, judge), RESULTS, only={"choices": ("worth", "harm")})
    arguments = given_to(parser)
    arguments.command(arguments)


if __name__ == "__main__":
    main()
