"""What tables of trained networks share: methods beside inputs, costs and latencies, and scores against the truth."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import natpp
from experiments.lib.answers import INPUT, Knowledge, split_name, title_over
from experiments.lib.machine import machine
from experiments.lib.schedules import Pick, rows_in, scored, scores_in
from experiments.lib.settings import read_results
from experiments.lib.statistics import mean_sd, paired, spearman, with_interval
from experiments.lib.trainer import AGAIN, Trained, arch_of, read_trained
from natpp.arch.cost import counts
from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.files import write_whole
from natpp.zoo import Published

TITLES = {"supernet": "a supernet", "paper": "the supernet of preset `paper`"}  # of the rivals of images_cells
PASSES = 5  # of latency measurements
COSTS = ("params", "madds", "live_params", "live_madds", "latency_ms")  # of a network, if its row has them
TOLD = ("seed", "test_accuracy", *COSTS, "seconds", "curve")  # of each training
PUBLISHED = ("darts", "enas", "naonet", "pc_darts_cifar")  # cells that tables begin with
Rows = Mapping[tuple[str, int], Mapping[str, Any]]  # kept trainings by name and seed


def gathered(said: Mapping[str, Any]) -> dict[str, Any]:
    """What results keep of a file of trainings: recipe, network, images, machine and groups."""
    return {key: said[key] for key in ("recipe", "network", "images", "machine", "groups")}


def asked_inputs(said: Mapping[str, Any], methods: Sequence[str]) -> int:
    """Number of inputs that a trainer was given, each with one answer per method."""
    return int(said["asked"]) // (1 + len(methods))


def compared(rows: Rows, methods: Sequence[str], ours: Sequence[str], figure: str, *, asked: int) -> dict[str, Any]:
    """Means of each method over the inputs that are complete, and paired differences of `ours` to the others."""
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
                found["differences"][title_over(one, name)] = paired(*of_both(by_seed[one], by_seed[name]))
    found["rows"] = {
        one: {name: {key: column[name][key][place] for key in column[name]} for name in names}
        for place, one in enumerate(whole)
    }
    return found


def figures_by_seed(rows: Rows, name: str, figure: str) -> dict[int, float]:
    """A figure of a network by seed."""
    return {seed: row[figure] for (one, seed), row in rows.items() if one == name and row[figure] is not None}


def of_both(ones: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """Means of each pair over the seeds that both have."""
    found: list[list[float]] = [[], []]
    for pair in zip(ones, others, strict=True):
        seeds = pair[0].keys() & pair[1].keys()
        for side, one in zip(found, pair, strict=True):
            side.append(statistics.fmean(one[seed] for seed in seeds))
    return found


def beside_originals(rows: Rows, kinds: Sequence[str], figure: str) -> dict[str, Any]:
    """Originals beside their results: accuracy over seeds, mean change, and mean cost."""
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


def tell_differences(rounds: Mapping[Any, Mapping[str, Any]]) -> None:
    """Print the paired differences of all rounds."""
    for number, found in rounds.items():
        for name, one in found.get("differences", {}).items():
            print(f"round {number}, {name:<40} {one['value']:+.2f} ({one['low']:+.2f} to {one['high']:+.2f})")


def tell_originals(found: Mapping[str, Any]) -> None:
    """Print the accuracy of each original and of its results."""
    for name, kinds in found.items():
        for kind, one in kinds.items():
            print(f"{name}, {kind}: {one['accuracy']['mean']:.2f} ({one['change']:+.2f})")


def published_figures(row: Published) -> dict[str, float | None]:
    """Accuracy on CIFAR-10 and size in a row of the paper's tables."""
    return {"accuracy": row.accuracy["CIFAR-10"], "params_m": row.params_m, "madds_m": row.madds_m}


def read_tables(file: Path) -> Trained:
    """What a trainer kept of a table, with the trainings by further seeds."""
    said, rows = read_trained(file)
    more, others = read_trained(file.with_stem(AGAIN.format(file.stem)))
    return (said | {"groups": said["groups"] + more["groups"]} if others else said), rows | others


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """What results keep of a training."""
    return {key: row[key] for key in TOLD}


def of_network(rows: Rows, name: str) -> dict[str, Any]:
    """What results keep of a network: mean accuracy over seeds, costs, and all trainings."""
    trainings = [told(row) for (other, _), row in rows.items() if other == name]
    known = [one["test_accuracy"] for one in trainings if one["test_accuracy"] is not None]
    mean = {"test_accuracy": statistics.fmean(known)}
    return mean | {key: trainings[0][key] for key in COSTS} | {"trainings": trainings}


def with_trainings(found: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Originals and their results, each with all trainings."""
    return {
        subject: {
            kind: {**one, "trainings": [told(row) for (name, _), row in rows.items() if name == f"{subject}, {kind}"]}
            for kind, one in kinds.items()
        }
        for subject, kinds in found.items()
    }


def with_costs(rows: Rows, where: Setting, file: Path, *, smoke: bool = False) -> tuple[Rows, str]:
    """Rows of cells with their costs in a network, and the machine of the latencies, which `file` keeps."""
    keys = {name: to_json(arch_of(row).essence()) for (name, _), row in rows.items()}
    inside = dataclasses.replace(where, network="cifar")

    def measured(arch: Architecture) -> float:
        return natpp.cost(arch, inside, latency=True).latency_ms or 0.0

    measures = {keys[name]: functools.partial(measured, arch_of(row)) for (name, _), row in rows.items()}
    times, on = least_latencies(file, measures, smoke=smoke)
    found = {
        (name, seed): {**row, **counts(arch_of(row), where)._asdict(), "latency_ms": times[keys[name]]}
        for (name, seed), row in rows.items()
    }
    return found, on


def least_latencies(
    file: Path, measures: Mapping[str, Callable[[], float]], *, smoke: bool = False
) -> tuple[dict[str, float], str]:
    """Milliseconds of a forward pass of one image by network, and the machine; `file` keeps them.

    Other processes may use the machine, so all networks are measured in turn, several times, and the minimum counts.
    """
    on = machine()["gpu"] or f"one {machine()['processor']} CPU"
    kept = read_results(file)
    if not set(measures) <= set(kept.get("milliseconds", {})):  # times of two machines or hours cannot be compared
        found = dict.fromkeys(measures, float("inf"))
        for _ in range(1 if smoke else PASSES):
            for name, measure in measures.items():
                found[name] = min(found[name], measure())
        kept = {"on": on, "milliseconds": found}
        write_whole(file, json.dumps(kept) + "\n")
    return kept["milliseconds"], kept["on"]


def agreement(runs: Path, known: Mapping[int, Knowledge], pick: Pick) -> dict[str, Any]:
    """Spearman of each score with test accuracy, over the networks of all tables that the score is known for.

    These include random architectures, finalists that were not picked, and NAS cells; networks that compute the same
    are one, with the mean accuracy over seeds. The value model of a round is judged on networks that it was not fitted
    on, short trainings on those trained by the schedule of searches. Random changes are easy to tell from others, so
    scores are also compared among the other answers to each input, minus the mean of that input.
    """
    rows: defaultdict[Architecture, dict[int, Any]] = defaultdict(dict)
    answers: defaultdict[tuple[str, str], dict[Architecture, None]] = defaultdict(dict)  # by table and input
    names = ("table_random_[0-9]", "table_random_[0-9]_finals", "table_random_[0-9]_default", "table_cells_[0-9]")
    for file in sorted(file for name in names for file in runs.glob(f"{name}.json")):
        for row in read_tables(file)[1].values():
            if row["test_accuracy"] is not None:
                arch, (subject, method) = arch_of(row).essence(), split_name(row["name"])
                rows[arch][row["seed"]] = row
                table = file.stem.removesuffix("_default")
                if table.startswith("table_random") and table[-1].isdigit() and not method.startswith("random"):
                    answers[table, subject][arch] = None
    archs = list(rows)
    truth = {arch: statistics.fmean(row["test_accuracy"] for row in rows[arch].values()) for arch in archs}
    said: dict[str, Mapping[Architecture, float]] = {
        "live parameters": {arch: next(iter(rows[arch].values()))["live_params"] for arch in archs},
        "live MAdds": {arch: next(iter(rows[arch].values()))["live_madds"] for arch in archs},
    }
    tables = sorted(file.stem for file in runs.glob("table_random_[0-9]_short.json"))
    short = scored(rows_in(runs, pick.stem, "direct", *tables), pick.fitting)
    said |= {"a short training": short} if short else {}
    for number, one in known.items():
        fresh = [arch for arch in archs if arch not in one.seen]
        said[f"the value model of round {number}"] = dict(
            zip(fresh, one.prediction.expected(fresh).tolist(), strict=True)
        )
    ours = set(said)
    for name, title in TITLES.items():
        for file in sorted(runs.glob(f"direct_{name}_[0-9]*.json")):
            said[f"{title}, seed {file.stem.rpartition('_')[2]}"] = scores_in(json.loads(file.read_text()))
    common = [arch for arch in archs if all(arch in said[name] for name in ours)]

    def over(some: Sequence[Architecture], values: Mapping[Architecture, float]) -> dict[str, Any] | None:
        return with_interval(spearman, [values[arch] for arch in some], [truth[arch] for arch in some])

    def among(values: Mapping[Architecture, float]) -> dict[str, Any] | None:
        """Spearman among the answers to each input."""
        columns: list[list[float]] = [[], []]
        for some in answers.values():
            both = [arch for arch in some if arch in values]
            if len(both) > 1:
                for column, of in zip(columns, (values, truth), strict=True):
                    mean = statistics.fmean(of[arch] for arch in both)
                    column += [of[arch] - mean for arch in both]
        return with_interval(spearman, *columns)

    found: dict[str, Any] = {"networks": len(archs), "common": len(common), "inputs": len(answers), "scores": {}}
    for name, values in said.items():
        both = [arch for arch in archs if arch in values]
        found["scores"][name] = {
            "networks": len(both),
            "spearman": over(both, values),
            "common": over(common, values) if set(common) <= values.keys() else None,
            "among_answers": among(values),
        }
    return found
