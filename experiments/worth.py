"""What the policies that ship are worth on fresh random cells, and whether they harm published ones.

    python experiments/worth.py train --root DIR --runs FOLDER [--only worth|harm|rivals] [--seconds 540] [--round 2]
    python experiments/worth.py judge --runs FOLDER

FOLDER is that of `truth_cells.py`, with the policies that `policies.py learn` left there. Twelve fresh random inputs
are changed by one shot of `nat++`, a fixed map, one random transformation and the best of ten random ones by the same
score, the budget strict for all; then all are trained by the longer recipe of `truth_cells.py`. So are `darts`, `enas`,
`naonet` and `pc_darts_cifar`, what the policy makes of them, and the published results of NAT++, with three seeds; and
what the policies of the rivals of `truth_cells.py` make of `darts`.
Accuracies are those of the 5,000 validation images. Another `--round` takes twelve fresh inputs, after policies were
learned anew on what the rounds before it trained. `judge` writes all rounds to `results/worth.json`, with how far the
value model agreed with what was trained after it. `--smoke` does it on digits.
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
from figures import mean_sd, paired, spearman, with_interval
from policies import knowledge, learned_from, mark_of
from together import LONGER, Trainer, arch_of, carry_out, command_line, read_trained
from truth_cells import RIVALS, WHERE, figures_of
from values import came_from, differences, pairs_among, value_model

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.space import CellSpace
from natpp.files import write_whole
from natpp.nets.policy import Policy
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


def worth_answers(runs: Path, number: int, *, smoke: bool) -> dict[str, Architecture]:
    """Fresh inputs of a round and what every method makes of them."""
    seed = [SEED] if number == 1 else [SEED, number]

    def make() -> dict[str, Architecture]:
        drawn = CellSpace().draw(INPUTS, np.random.default_rng(seed))[: 4 if smoke else INPUTS]
        archs = {f"random {index}": arch for index, arch in enumerate(drawn)}
        return answered(archs, METHODS, knowledge(runs, number), WHERE, seed=sum(seed))

    return kept_answers(runs / f"worth_{number}_answers.json", mark_of(runs, number), make)


def harm_answers(runs: Path, number: int, *, smoke: bool) -> dict[str, Architecture]:
    """Published cells, what the policy makes of them, and what the authors of NAT++ published."""

    def make() -> dict[str, Architecture]:
        known = knowledge(runs, number)
        found: dict[str, Architecture] = {}
        for name in PUBLISHED[: 2 if smoke else None]:
            ours = natpp.optimize(name, known.policies["nat++"], "nat++", network=WHERE)
            found |= {f"{name}, {INPUT}": natpp.load(name), f"{name}, {OURS}": ours.after}
            theirs = f"natpp_{name}"
            if theirs in ZOO:
                found[f"{name}, {THEIRS}"] = natpp.load(theirs)
        return found

    return kept_answers(runs / f"harm_{number}_answers.json", mark_of(runs, number), make)


def rival_answers(runs: Path) -> dict[str, Architecture]:
    """What policies of rivals make of `darts`, those that there are."""
    found = {}
    for name in RIVALS:
        for file in sorted(runs.glob(f"{name}_[0-9].safetensors"))[:1]:
            found[f"darts, {name}"] = natpp.optimize("darts", Policy.load(file), "nat++", network=WHERE).after
    return found


def train(arguments: argparse.Namespace) -> None:
    trainer, number, seeds = Trainer(arguments), arguments.round, SEEDS[:2] if arguments.smoke else SEEDS
    if arguments.only in (None, "worth"):
        answers = worth_answers(arguments.runs, number, smoke=arguments.smoke)
        trainer(f"worth_{number}", LONGER, answers, store="longer")
    if arguments.only in (None, "harm"):
        answers = harm_answers(arguments.runs, number, smoke=arguments.smoke)
        trainer(f"harm_{number}", LONGER, answers, seeds, store="longer")
    if arguments.only in (None, "rivals") and (answers := rival_answers(arguments.runs)):
        trainer("harm_rivals", LONGER, answers, seeds, store="longer")


def judge(arguments: argparse.Namespace) -> None:
    files = [*arguments.runs.glob("worth_[0-9].json"), *arguments.runs.glob("harm_[0-9].json")]
    rounds = {str(number): judged(arguments.runs, number) for number in sorted({int(file.stem[-1]) for file in files})}
    if not rounds:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    write_whole(arguments.out, json.dumps({"rounds": rounds}, indent=1) + "\n")
    for number, found in rounds.items():
        for name, one in found.get("differences", {}).items():
            print(f"round {number}, {name:<40} {one['value']:+.2f} ({one['low']:+.2f} to {one['high']:+.2f})")


def judged(runs: Path, number: int) -> dict[str, Any]:
    """What a round found."""
    found: dict[str, Any] = {}
    said, worth = read_trained(runs / f"worth_{number}.json")
    if worth:
        found |= compared(worth, METHODS, ["nat++"], "accuracy", asked=asked_inputs(said, METHODS))
        found["recipe"], found["machine"], found["network"] = said["recipe"], said["machine"], said["network"]
        found["groups"], found["trainings"], found["images"] = said["groups"], len(worth), said["images"]
        found["agreement"] = agreement_with(runs, number, worth)
    said, harm = read_trained(runs / f"harm_{number}.json")
    if harm:
        found["harm"] = beside_originals(harm, (INPUT, OURS, THEIRS), "accuracy")
        found["harm_groups"], found["harm_machine"] = said["groups"], said["machine"]
    return found


def agreement_with(runs: Path, number: int, rows: Rows) -> dict[str, Any]:
    """How far the value model of a round agrees with what was trained in it, which it has not seen."""
    cheap, dear, losses, model = learned_from(runs, number)
    truth = {arch_of(row).essence(): row["accuracy"] for row in rows.values() if row["accuracy"] is not None}
    archs = [arch for arch in truth if arch not in dear and arch not in losses]
    said = dict(zip(archs, value_model(cheap, dear, model, losses=losses).expected(archs), strict=True))
    truth = {arch: truth[arch] for arch in archs}
    pairs = pairs_among(archs, came_from(runs, [f"worth_{number}"]))
    good = {arch_of(row).essence() for (name, _), row in rows.items() if split_name(name)[1] in ("nat++", "constant")}
    among = [pair for pair in pairs if archs[pair[0]] in good]
    columns = [differences(np.array([of[arch] for arch in archs]), among) for of in (said, truth)]
    return {
        "model": model,
        "dear_scores": len(dear),
        **figures_of(truth, truth, pairs, said, {}),
        "paired_of_learned": with_interval(spearman, *columns),
    }


def asked_inputs(said: Mapping[str, Any], methods: Sequence[str]) -> int:
    """How many inputs a trainer was given, each of them with what all methods make of it."""
    return int(said["asked"]) // (1 + len(methods))


def compared(rows: Rows, methods: Sequence[str], ours: Sequence[str], figure: str, *, asked: int) -> dict[str, Any]:
    """Means of every method over the inputs that all methods have, of so many asked for, and differences of ours."""
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
    costs = [cost for cost in COSTS if cost in rows[f"{whole[0]}, {INPUT}", 0]]
    column = {name: {key: [rows[f"{one}, {name}", 0][key] for one in whole] for key in costs} for name in names}
    by_seed = {name: [figures_by_seed(rows, f"{one}, {name}", figure) for one in whole] for name in names}
    for name in names:
        column[name] = {figure: [statistics.fmean(seeds.values()) for seeds in by_seed[name]]} | column[name]
    for name in names:
        found["methods"][name] = {key: mean_sd(values) for key, values in column[name].items()}
        found["methods"][name] |= {
            f"{key}_change": float(np.mean(np.divide(column[name][key], np.maximum(column[INPUT][key], 1))) - 1)
            for key in ("live_params", "live_madds")
        }
        found["methods"][name]["over_input"] = paired(*of_both(by_seed[name], by_seed[INPUT]))
    for place, one in enumerate(ours):
        for name in names:
            if name not in ours[place:]:
                title = "the inputs" if name == INPUT else f"`{name}`"
                found["differences"][f"`{one}` over {title}"] = paired(*of_both(by_seed[one], by_seed[name]))
    found["rows"] = {
        one: {name: {key: column[name][key][place] for key in column[name]} for name in names}
        for place, one in enumerate(whole)
    }
    return found


def figures_by_seed(rows: Rows, name: str, figure: str) -> dict[int, float]:
    """A figure of a network by seeds."""
    return {seed: row[figure] for (one, seed), row in rows.items() if one == name and row[figure] is not None}


def of_both(ones: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """Means of pairs over the seeds that both have."""
    found: list[list[float]] = [[], []]
    for pair in zip(ones, others, strict=True):
        seeds = pair[0].keys() & pair[1].keys()
        for side, one in zip(found, pair, strict=True):
            side.append(statistics.fmean(one[seed] for seed in seeds))
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
    fresh = {"type": int, "default": 1, "help": "of fresh inputs"}
    parser = command_line(__doc__, (train, judge), RESULTS, only={"choices": ("worth", "harm", "rivals")}, round=fresh)
    carry_out(parser)


if __name__ == "__main__":
    main()
