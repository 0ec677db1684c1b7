"""Random architectures: twenty sampled cells and what every method makes of them, trained from scratch by one recipe.

    python experiments/table_random.py train --root DIR --runs FOLDER [--seconds 540] [--ray] [--round 1]
    python experiments/table_random.py judge --runs FOLDER [--round 1]

FOLDER is that of `truth_cells.py`, with the policies that `policies.py learn` left there. Each of twenty cells is
changed by one shot of `nat` and of `nat++`, the best of ten by `nat++`, a fixed map, one random transformation and the
best of ten random ones; one score for all, strict budget. All are trained for 12 epochs with a full cosine on the whole
training set (8 cells, 16 channels), and the test images are read once, at the end. Every finished training is kept.
Another `--round` takes twenty fresh cells, after the policy or its score was changed; both are told. In the second one
a short training of each of the ten is a part of the score that picks from them, for random ones too, and the two best
meet in a final (`shortlist.py`); what is close to each other has three seeds: one is too few to tell differences of a
quarter of a point. Last in it comes one shot of the policy that answers where none is named, an earlier one. `judge`
writes `results/table_random.json`; scores are judged over the NAS cells of `table_cells.py` too, so it comes after
their training. `python experiments/table_random.py --smoke` does all of it on digits, in a few steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import shortlist
import torch
from answers import (
    CLOSE,
    INPUT,
    Knowledge,
    Tried,
    answered,
    fitted_constant,
    kept_answers,
    named_inputs,
    proposed,
    ranked,
    split_name,
)
from figures import paired
from policies import hash_of, knowledge, mark_of
from tables import agreement, of_network, read_tables, with_costs
from together import AGAIN, Trainer, arch_of, carry_out, command_line, full, read_trained
from truth_cells import SCHEDULES, WHERE, pick_of_search
from values import Pick
from worth import Rows, asked_inputs, compared, figures_by_seed, of_both

from natpp.arch.graph import SKIP, Architecture
from natpp.arch.networks import Setting
from natpp.arch.space import CellSpace
from natpp.files import write_whole
from natpp.nets.policy import Policy
from natpp.policies import DEFAULT, FOLDER, load_named
from natpp.registry import OPS
from natpp.scorers.base import Task
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.subjects.many import Inputs
from natpp.zoo.published import published_rows

RESULTS = Path(__file__).parent / "results" / "table_random.json"
CELLS, SEED = 20, 1401
EPOCHS, IMAGES = 12, 50_000
METHODS = ("nat", "nat++", "nat++ best of 10", "constant", "random", "random best of 10")
POLICIES = {1: 3, 2: 4}  # the round of policies.py whose policies answer in a round of this table
TRIED = (2,)  # rounds in which what is picked from is trained for a short while
SEEDS = {1: (0,), 2: (0, 1, 2)}  # by round; those after the first are of what is close
OURS = ("nat++", "nat++ best of 10")
BY_DEFAULT = f"nat++ by {DEFAULT}"  # one shot of the policy that answers where none is named
BESIDE = ("nat++", "constant")  # what it is compared with
RECIPE = full(EPOCHS, IMAGES, tested=True)
CONVERGED = 4  # originals whose curves are told
EARLY = 0.25  # of a training, after which losses are compared


def name_of(number: int) -> str:
    """The name that a round's files have."""
    return f"table_random_{number}"


def inputs_of(number: int, *, smoke: bool) -> dict[str, Architecture]:
    """The cells of a round."""
    drawn = CellSpace().draw(CELLS, np.random.default_rng([SEED, number]))[: 2 if smoke else CELLS]
    return {f"random {index}": arch for index, arch in enumerate(drawn)}


def answers(arguments: argparse.Namespace) -> dict[str, Architecture]:
    """The cells of a round and what every method makes of them."""
    name = name_of(arguments.round)

    def make() -> dict[str, Architecture]:
        if arguments.round in TRIED:
            return shortlist.settled(arguments.runs, name, finalists(arguments))
        known = known_in(arguments, POLICIES[arguments.round])
        return answered(*asked(arguments), known, WHERE, seed=SEED + arguments.round)

    return kept_answers(arguments.runs / f"{name}_answers.json", answered_by(arguments), make)


def finalists(arguments: argparse.Namespace) -> dict[str, Architecture]:
    """The same, with the best of what there is to pick from in place of the one that will be picked."""
    cells, methods = asked(arguments)

    def make() -> dict[str, Architecture]:
        known = replace(known_in(arguments, POLICIES[arguments.round]), tried=tried_in(arguments))
        best_first = ranked(cells, methods, known, WHERE, seed=SEED + arguments.round)
        return named_inputs(cells) | shortlist.finalists(best_first)

    name = shortlist.FINALS.format(name_of(arguments.round))
    return kept_answers(arguments.runs / f"{name}_answers.json", answered_by(arguments), make)


def answered_by(arguments: argparse.Namespace) -> str:
    """What tells answers of a round from those of others."""
    policies = mark_in(arguments, POLICIES[arguments.round])
    return f"{policies}, {shortlist.FINALISTS} finalists" if arguments.round in TRIED else policies


def asked(arguments: argparse.Namespace) -> tuple[dict[str, Architecture], Sequence[str]]:
    """The cells of a round and who is asked to change them."""
    return inputs_of(arguments.round, smoke=arguments.smoke), METHODS


def train(arguments: argparse.Namespace) -> None:
    trainer, name = Trainer(arguments), name_of(arguments.round)
    if arguments.round in TRIED:
        known = known_in(arguments, POLICIES[arguments.round])
        proposals = proposed(*asked(arguments), known, WHERE, seed=SEED + arguments.round)
        schedule = SCHEDULES[pick_in(arguments).schedule]
        if not trainer(shortlist.NAME.format(name), schedule, shortlist.listed(proposals)):
            return
        finals = shortlist.of_finals(finalists(arguments))
        if finals and not trainer(shortlist.FINALS.format(name), RECIPE, finals, store=name):
            return
    chosen = answers(arguments)
    first, *more = SEEDS[arguments.round]
    if trainer(name, RECIPE, chosen, [first]) and more:
        close = {one: arch for one, arch in chosen.items() if split_name(one)[1] in CLOSE}
        if trainer(AGAIN.format(name), RECIPE, close, more, store=name):
            trainer(f"{name}_default", RECIPE, by_default(arguments), SEEDS[arguments.round], store=name)


def by_default(arguments: argparse.Namespace) -> dict[str, Architecture]:
    """What the policy that answers where none is named makes of the cells of a round."""
    cells = inputs_of(arguments.round, smoke=arguments.smoke)

    def make() -> dict[str, Architecture]:
        known = replace(known_in(arguments, POLICIES[arguments.round]), policies={"nat++": load_named(DEFAULT)})
        found = answered(cells, ["nat++"], known, WHERE, seed=SEED + arguments.round)
        return {f"{cell}, {BY_DEFAULT}": found[f"{cell}, nat++"] for cell in cells}

    file = arguments.runs / f"{name_of(arguments.round)}_default_answers.json"
    return kept_answers(file, hash_of(FOLDER / f"{DEFAULT}.safetensors"), make)


def pick_in(arguments: argparse.Namespace) -> Pick:
    """The schedule and losses of short trainings."""
    return Pick(next(iter(SCHEDULES)), "training") if unlearned(arguments) else pick_of_search(arguments.runs)


def fit_in(arguments: argparse.Namespace, number: int) -> dict[str, Any]:
    """How much short trainings count in a round, and on what that was fitted."""
    if unlearned(arguments):
        return shortlist.UNFITTED
    file = arguments.runs / f"{shortlist.NAME.format(name_of(number))}_fit.json"
    return shortlist.kept_fit(file, arguments.runs, None if arguments.smoke else POLICIES[number])


def tried_in(arguments: argparse.Namespace) -> Tried:
    """What short trainings of a round found."""
    weights = fit_in(arguments, arguments.round)["weights"]
    return shortlist.tried(arguments.runs, name_of(arguments.round), pick_in(arguments), weights)


def known_in(arguments: argparse.Namespace, number: int | None = None) -> Knowledge:
    """What policies.py learned in a round, by default the last; in the small form it may have learned nothing."""
    if unlearned(arguments):
        return learned_nothing()
    return knowledge(arguments.runs, None if arguments.smoke else number)


def mark_in(arguments: argparse.Namespace, number: int | None = None) -> str:
    """What tells it from what else policies.py may learn."""
    return "" if unlearned(arguments) else mark_of(arguments.runs, None if arguments.smoke else number)


def unlearned(arguments: argparse.Namespace) -> bool:
    """Whether there is nothing to learn from, as there may be in the small form."""
    return bool(arguments.smoke) and not any(arguments.runs.glob("policies_[0-9].json"))


def learned_nothing() -> Knowledge:
    """Policies of fresh weights and a score that counts convolutions: to go all the way in the small form."""
    archs = CellSpace().draw(12, np.random.default_rng(0))
    counted = [float(sum("conv" in op for _, graph in arch.cells() for op in graph.ops)) for arch in archs]
    prediction = Prediction(archs, np.array(counted), PredictConfig(caution=1.0))
    inputs = Inputs(archs[:3], Task("nat++", WHERE, strict=True), tuple(OPS))
    constant = fitted_constant(inputs, prediction)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policies = {rule: Policy().eval() for rule in ("nat", "nat++")}
    return Knowledge(policies, constant, prediction, frozenset(arch.essence() for arch in archs))


def judge(arguments: argparse.Namespace) -> None:
    """All rounds that are there."""
    found: dict[str, Any] = {"rounds": {}, "paper": papers()}
    for file in sorted(arguments.runs.glob(f"{name_of(0)[:-1]}[0-9].json")):
        number = file.stem.rpartition("_")[2]
        said, kept = read_tables(file)
        more, others = read_trained(file.with_stem(f"{file.stem}_default"))
        rows, on = with_costs(
            kept | others,
            Setting(**said["network"]),
            file.with_name(f"{file.stem}_latency.json"),
            smoke=arguments.smoke,
        )
        one = compared(rows, METHODS, OURS, "test_accuracy", asked=asked_inputs(said, METHODS))
        if not one["inputs"]:
            continue
        one |= {
            "rows": {
                subject: {name: of_network(rows, f"{subject}, {name}") for name in (INPUT, *METHODS)}
                for subject in one["rows"]
            },
            "drawn_by": [SEED, int(number)],
            "policies": POLICIES[int(number)],
            "trainings": len(kept),
            "latency_on": on,
            "convergence": convergence(rows, list(one["rows"])),
            "bias": bias(rows, list(one["rows"])),
            "distinct": len({(arch_of(row).essence(), seed) for (_, seed), row in kept.items()}),
            **{key: said[key] for key in ("recipe", "network", "images", "machine", "groups")},
        }
        if int(number) in TRIED:
            said, short = read_trained(arguments.runs / f"{shortlist.NAME.format(file.stem)}.json")
            one["shortlist"] = {key: said[key] for key in ("recipe", "machine", "groups")} | {
                "candidates": len(short),
                "trainings": sum(group["trainings"] for group in said["groups"]),
                "losses": pick_in(arguments).losses,
                "fit": fit_in(arguments, int(number)),
                "finals": finals_in(arguments.runs / f"{shortlist.FINALS.format(file.stem)}.json"),
            }
            one["later_seeds"] = of_later_seeds(rows, list(one["rows"]))
        if others:
            one["default"] = of_default(rows, more)
        found["rounds"][number] = one
    if not found["rounds"]:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    known = {int(number): known_in(arguments, POLICIES[int(number)]) for number in found["rounds"]}
    found["agreement"] = agreement(arguments.runs, known, pick_in(arguments))
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for number, one in found["rounds"].items():
        for name, figures in one["differences"].items():
            print(
                f"round {number}, {name:<40} {figures['value']:+.2f} ({figures['low']:+.2f} to {figures['high']:+.2f})"
            )


def of_later_seeds(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Differences of the best of ten by other seeds than the first, which had a part in picking it."""
    later = {key: row for key, row in rows.items() if key[1] > 0}
    picked, found = OURS[-1], {}
    by_seed = {
        name: [figures_by_seed(later, f"{subject}, {name}", "test_accuracy") for subject in subjects] for name in CLOSE
    }
    for name in CLOSE:
        pairs = [pair for pair in zip(by_seed[picked], by_seed[name], strict=True) if pair[0].keys() & pair[1].keys()]
        if name != picked and pairs:
            title = "the inputs" if name == INPUT else f"`{name}`"
            found[f"`{picked}` over {title}"] = paired(*of_both(*zip(*pairs, strict=True)))
    return found


def of_default(rows: Rows, said: Mapping[str, Any]) -> dict[str, Any]:
    """The policy that answers where none is named beside others, over the cells and seeds that it is trained with."""
    seeds = {seed for name, seed in rows if split_name(name)[1] == BY_DEFAULT}
    same = {key: row for key, row in rows.items() if key[1] in seeds}
    found = compared(same, (*BESIDE, BY_DEFAULT), (BY_DEFAULT,), "test_accuracy", asked=said["asked"])
    found["rows"] = {subject: of_network(same, f"{subject}, {BY_DEFAULT}") for subject in found.get("rows", {})}
    return found | {key: said[key] for key in ("machine", "groups")} | {"seeds": sorted(seeds)}


def finals_in(file: Path) -> dict[str, Any] | None:
    """What a final took, where there was one."""
    said, rows = read_trained(file)
    if not rows:
        return None
    return {"finalists": shortlist.FINALISTS, "candidates": len(rows), "groups": said["groups"]}


def papers() -> dict[str, dict[str, Any]]:
    """The paper's table over twenty random architectures of its own: means and sds, after 600 epochs."""
    return {
        row.method or INPUT: {"accuracy": row.accuracy, "sd": row.sd, "params_m": row.params_m, "madds_m": row.madds_m}
        for row in published_rows()
        if row.table == "random" and row.data == "CIFAR"
    }


def convergence(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Training curves of the first originals that `nat++` changed and of its results, and their skips."""

    def unchanged(subject: str) -> bool:
        before, after = (arch_of(rows[f"{subject}, {name}", 0]).essence() for name in (INPUT, "nat++"))
        return before == after

    return {
        subject: {
            name: {
                "curve": rows[f"{subject}, {name}", 0]["curve"],
                "skips": skips(arch_of(rows[f"{subject}, {name}", 0])),
                "test_accuracy": rows[f"{subject}, {name}", 0]["test_accuracy"],
            }
            for name in (INPUT, "nat++")
        }
        for subject in sorted(subjects, key=unchanged)[:CONVERGED]
    }


def bias(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Over all inputs of a round, by the first seed: skips of what every method makes, and who trains faster.

    `ahead` counts the inputs of which a method's result has the lower training loss after a quarter of the training, of
    those that it changed.
    """
    found = {}
    for name in (INPUT, *METHODS):
        pairs = [(rows[f"{subject}, {INPUT}", 0], rows[f"{subject}, {name}", 0]) for subject in subjects]
        changed = [
            [row["curve"][max(round(len(row["curve"]) * EARLY) - 1, 0)] for row in pair]
            for pair in pairs
            if arch_of(pair[0]).essence() != arch_of(pair[1]).essence()
        ]
        found[name] = {
            "skips": statistics.fmean(skips(arch_of(after)) for _, after in pairs),
            "changed": len(changed),
            "ahead": sum(after < before for before, after in changed),
        }
    return found


def skips(arch: Architecture) -> int:
    """Living skip connections of both cells."""
    return sum(op == SKIP for _, graph in arch.cells() for node in graph.living()[0] for op, _ in node)


def main() -> None:
    fresh = {"type": int, "choices": POLICIES, "default": 1, "help": "of fresh cells"}
    parser = command_line(__doc__, (train, judge), RESULTS, round=fresh)
    carry_out(parser, whole=(train, judge))


if __name__ == "__main__":
    main()
