"""NAS cells: published cells, the results that the authors of NAT and NAT++ published, and ours, by one recipe.

    python experiments/table_cells.py train --root DIR --runs FOLDER [--seconds 540] [--ray] [--round 1]
    python experiments/table_cells.py judge --runs FOLDER [--round 1]

FOLDER is that of `truth_cells.py`, with the policies that `policies.py learn` left there. All are trained as in
`table_random.py`, two seeds each: same recipe, width and depth for all. The policies are those of a round of that
table; what another round trained is not trained again. `judge` writes `results/table_cells.json`. `--smoke` does it on
digits, without a command all of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from answers import INPUT, kept_answers
from table_random import POLICIES, RECIPE, known_in, mark_in
from tables import with_costs, with_trainings
from together import Trainer, carry_out, command_line, read_trained
from truth_cells import WHERE
from worth import PUBLISHED, beside_originals, published_figures, tell_originals

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.files import write_whole
from natpp.registry import ZOO

RESULTS = Path(__file__).parent / "results" / "table_cells.json"
FIRST, SEEDS = "table_cells_1", (0, 1)
THEIRS = {"published NAT": "nat_{}", "published NAT++": "natpp_{}"}
OURS = {"ours, `nat`": "nat", "ours, `nat++`": "nat++"}


def name_of(number: int) -> str:
    """The name that a round's files have."""
    return f"table_cells_{number}"


def answers(arguments: argparse.Namespace) -> dict[str, Architecture]:
    """Every cell of the table, by names such as `darts, published NAT`."""

    def make() -> dict[str, Architecture]:
        known = known_in(arguments, POLICIES[arguments.round])
        found: dict[str, Architecture] = {}
        for name in PUBLISHED[: 2 if arguments.smoke else None]:
            found[f"{name}, {INPUT}"] = natpp.load(name)
            for kind, form in THEIRS.items():
                if form.format(name) in ZOO:
                    found[f"{name}, {kind}"] = natpp.load(form.format(name))
            for rule in OURS.values():
                ours = natpp.optimize(name, known.policies[rule], rule, network=WHERE)
                found[f"{name}, {rule}"] = ours.after
        return found

    return kept_answers(
        arguments.runs / f"{name_of(arguments.round)}_answers.json", mark_in(arguments, POLICIES[arguments.round]), make
    )


def train(arguments: argparse.Namespace) -> None:
    Trainer(arguments)(name_of(arguments.round), RECIPE, answers(arguments), SEEDS, store=FIRST)


def judge(arguments: argparse.Namespace) -> None:
    """All rounds that are there."""
    titles, found = {rule: title for title, rule in OURS.items()}, {}
    for file in sorted(arguments.runs.glob(f"{name_of(0)[:-1]}[0-9].json")):
        said, kept = read_trained(file)
        if not kept:
            continue
        rows, on = with_costs(
            kept, Setting(**said["network"]), file.with_name(f"{file.stem}_latency.json"), smoke=arguments.smoke
        )
        cells = with_trainings(beside_originals(rows, (INPUT, *THEIRS, *OURS.values()), "test_accuracy"), rows)
        number = int(file.stem.rpartition("_")[2])
        found[number] = {
            "cells": {
                name: {titles.get(kind, kind): one for kind, one in kinds.items()} for name, kinds in cells.items()
            },
            "policies": POLICIES[number],
            "trainings": len(rows),
            "latency_on": on,
            **{key: said[key] for key in ("recipe", "network", "images", "machine", "groups")},
        }
    if not found:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    subjects = dict.fromkeys(name for one in found.values() for name in one["cells"])
    told = {"rounds": found, "paper": {name: papers(name) for name in subjects}}
    write_whole(arguments.out, json.dumps(told, indent=1) + "\n")
    for one in found.values():
        tell_originals(one["cells"])


def papers(name: str) -> dict[str, dict[str, float | None]]:
    """What the paper's table says of a cell and of its own results on CIFAR-10: accuracy, and the size it had there.

    With the share of the original's MAdds that a result has in one network: the paper's own may be of two.
    """
    found: dict[str, dict[str, float | None]] = {}
    before = natpp.cost(name).madds
    for kind, entry in {INPUT: name, **{kind: form.format(name) for kind, form in THEIRS.items()}}.items():
        for row in ZOO[entry].published if entry in ZOO else ():
            if row.data == "CIFAR" and "CIFAR-10" in row.accuracy:
                found[kind] = published_figures(row) | {"madds_of_original": natpp.cost(entry).madds / before}
    return found


def main() -> None:
    answering = {"type": int, "choices": POLICIES, "default": 1, "help": "of table_random.py, whose policies answer"}
    parser = command_line(__doc__, (train, judge), RESULTS, round=answering)
    carry_out(parser, whole=(train, judge))


if __name__ == "__main__":
    main()
