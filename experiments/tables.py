"""What tables of trained networks share: costs and times, what is told of a training, and scores against its truth."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from answers import Knowledge, split_name
from figures import spearman, with_interval
from together import AGAIN, arch_of, read_trained
from truth_cells import SCHEDULES
from truth_nasbench201 import machine
from values import Pick, scored, scores_in
from worth import COSTS, Rows

import natpp
from natpp.arch.cost import counts
from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.files import write_whole

TITLES = {"supernet": "a supernet", "paper": "the supernet of preset `paper`"}  # of rivals of truth_cells.py
PASSES = 5  # in which latencies are measured
TOLD = ("seed", "test_accuracy", *COSTS, "seconds", "curve")  # of every training


def read_tables(file: Path) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """What a trainer kept of a table, with what was trained again by other seeds."""
    said, rows = read_trained(file)
    more, others = read_trained(file.with_stem(AGAIN.format(file.stem)))
    return (said | {"groups": said["groups"] + more["groups"]} if others else said), rows | others


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a table's results keep of a training."""
    return {key: row[key] for key in TOLD}


def of_network(rows: Rows, name: str) -> dict[str, Any]:
    """What a table's results keep of a network: its mean accuracy over seeds, costs, and all of its trainings."""
    trainings = [told(row) for (other, _), row in rows.items() if other == name]
    known = [one["test_accuracy"] for one in trainings if one["test_accuracy"] is not None]
    mean = {"test_accuracy": statistics.fmean(known)}
    return mean | {key: trainings[0][key] for key in COSTS} | {"trainings": trainings}


def with_trainings(found: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Originals and what became of them, each with all of its trainings, one for each seed."""
    return {
        subject: {
            kind: {**one, "trainings": [told(row) for (name, _), row in rows.items() if name == f"{subject}, {kind}"]}
            for kind, one in kinds.items()
        }
        for subject, kinds in found.items()
    }


def with_costs(rows: Rows, where: Setting, file: Path, *, smoke: bool = False) -> tuple[Rows, str]:
    """Rows of cells with what they cost in a network, and on what their latencies were measured; `file` keeps these."""
    keys = {name: to_json(arch_of(row).essence()) for (name, _), row in rows.items()}
    size = dataclasses.replace(where, network="cifar")

    def measured(arch: Architecture) -> float:
        return natpp.cost(arch, size, latency=True).latency_ms or 0.0

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
    """Milliseconds of a forward pass of one image, of every network, and on what; all measured on it, and kept.

    Somebody else may use the machine for a while: so all are measured in turn, some times, and the least counts.
    """
    on = machine()["gpu"] or f"one {machine()['processor']} CPU"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not set(measures) <= set(kept.get("milliseconds", {})):  # of two machines or hours, times say nothing
        found = dict.fromkeys(measures, float("inf"))
        for _ in range(1 if smoke else PASSES):
            for name, measure in measures.items():
                found[name] = min(found[name], measure())
        kept = {"on": on, "milliseconds": found}
        write_whole(file, json.dumps(kept) + "\n")
    return kept["milliseconds"], kept["on"]


def agreement(runs: Path, known: Mapping[int, Knowledge], pick: Pick) -> dict[str, Any]:
    """Spearman of scores with test accuracy, every score over those it knows of the networks that tables trained.

    Random architectures, finalists that were not picked and NAS cells are among them; what computes the same is one
    network, with its mean accuracy over seeds. The value model of a round is judged over those that it was not fitted
    on, a short training over those that had one by the schedule that searches use. Random changes are easily told
    from others: so scores are also compared over the other answers to each input, less what these have in common.
    """
    rows: defaultdict[Architecture, dict[int, Any]] = defaultdict(dict)
    answers: defaultdict[tuple[str, str], dict[Architecture, None]] = defaultdict(dict)  # to an input of a table
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
    stems = (f"short_{list(SCHEDULES).index(pick.schedule)}", "direct", "table_random_[0-9]_short")
    files = [file for stem in stems for file in sorted(runs.glob(f"{stem}.json"))]
    short = scored([row for file in files for row in read_trained(file)[1].values()], pick.fitting)
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
        """The same among the answers to each input."""
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
