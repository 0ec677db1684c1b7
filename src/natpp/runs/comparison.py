"""Methods against a table of trained networks: how much each improves held-out inputs, and how many scores it used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from natpp import methods  # noqa: F401 (registers the methods)
from natpp.arch.cost import Counts, counts
from natpp.arch.formats import NASBENCH201_OPS
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.errors import SettingError, counted
from natpp.methods.base import picked
from natpp.methods.learning import PRESETS, LearnConfig
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import encode
from natpp.registry import METHODS
from natpp.runs.benchmark import Benchmark
from natpp.scorers.base import Score, Task
from natpp.scorers.predicted import PredictConfig, predicted
from natpp.scorers.table import Table, TableScorer, read_table
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs

if TYPE_CHECKING:
    from natpp.run import Watch

SPACE_OPS = tuple(NASBENCH201_OPS.values())
CANDIDATES = 10


def compare(table_file: str | Path, config: Benchmark, watch: Watch | None = None) -> dict[str, Any]:
    """Runs the methods; figures as JSON data, means and standard deviations over seeds."""
    for name in config.methods:
        METHODS.given(name)  # raises if unknown
    table = read_table(table_file, sorted({config.reward, config.score}))
    where = setting("nasbench201")
    held_out, training = held_out_split(table, config.holdout, config.split_seed)
    tasks = {
        rule: Task(rule, where, config.strict)
        for rule in {config.rule, *(_rule(name, config) for name in config.methods)}
    }
    train = {rule: Inputs(training, task, SPACE_OPS) for rule, task in tasks.items()}
    test = {rule: Inputs(held_out, task, SPACE_OPS) for rule, task in tasks.items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in config.methods}
    for seed in range(config.seeds):
        for place, name in enumerate(config.methods):
            if watch is not None:
                watch("methods", seed * len(config.methods) + place, config.seeds * len(config.methods), {})
            rule = _rule(name, config)
            if config.evaluations is None or METHODS.given(name).asks:
                runs[name].append(_run(name, config, table, train[rule], test[rule], seed))
    reward_oracle, score_oracle = _oracles(config, table, test[config.rule])
    inputs = mean_score(table, config.score, held_out)
    return {
        "inputs": inputs,
        "oracle_by_reward": reward_oracle,
        "oracle_by_score": score_oracle,
        "methods": {name: _summary(found, inputs, reward_oracle) for name, found in runs.items()},
    }


def held_out_split(table: Table, count: int, seed: int) -> tuple[list[Architecture], list[Architecture]]:
    """Inputs to evaluate on and to learn from, drawn from the product order of all architectures."""
    if count >= len(table):
        raise SettingError(f"holdout is {count}, but the table has {counted(len(table), 'architecture')}")
    order = sorted(range(len(table)), key=lambda row: _place(table.archs[row]))
    drawn = np.random.default_rng(seed).permutation(len(table))
    archs = [table.archs[order[number]] for number in drawn.tolist()]
    return archs[:count], archs[count:]


def _run(name: str, config: Benchmark, table: Table, train: Inputs, test: Inputs, seed: int) -> dict[str, Any]:
    """One method with one seed: fitted on training inputs, evaluated on the others."""
    generator = np.random.default_rng(seed)
    start = time.perf_counter()
    scorer = TableScorer(table, config.reward, config.evaluations)
    score: Score = scorer
    if config.evaluations is not None:
        score = predicted(train, scorer, PredictConfig(), generator).careful
    method = METHODS.given(name)
    if isinstance(method, PolicyMethod) and method.learn == LearnConfig():
        method = replace(method, learn=PRESETS[config.preset]())
    method = method.fit(train, score, generator)
    rows = method.one_shot(test, score, generator)
    seconds = time.perf_counter() - start
    several = method.candidates(test, CANDIDATES, generator)
    after = _architectures(test, rows)
    found = {
        "one_shot": mean_score(table, config.score, after),
        "best_of_10": None,
        "queries": scorer.queries,
        "seconds": seconds,
        **_changes(test, after),
    }
    if several is not None:
        best = picked(test, several, score)
        found["best_of_10"] = mean_score(table, config.score, _architectures(test, best))
        found["queries"] = scorer.queries
    return found


def _rule(name: str, config: Benchmark) -> str:
    return METHODS.given(name).rule or config.rule


def _place(arch: Architecture) -> tuple[int, ...]:
    """The position of an architecture in the order of all products of operations over edges."""
    return tuple(encode(arch, SPACE_OPS).ops.tolist())


def _architectures(inputs: Inputs, rows: Sequence[Row]) -> list[Architecture]:
    return [inputs.transformed(index, row) for index, row in enumerate(rows)]


def mean_score(table: Table, column: str, archs: Sequence[Architecture]) -> float:
    """The mean of a column over architectures."""
    return float(table.column(column)[[table.row(arch) for arch in archs]].mean())


def _changes(inputs: Inputs, after: Sequence[Architecture]) -> dict[str, float]:
    """Mean relative change of living parameters and multiply-adds."""
    known: dict[Architecture, Counts] = {}

    def counted(arch: Architecture) -> Counts:
        if arch not in known:
            known[arch] = counts(arch, inputs.task.where)
        return known[arch]

    pairs = [(counted(old), counted(new)) for old, new in zip(inputs.archs, after, strict=True)]
    return {
        "params_change": float(np.mean([new.live_params / old.live_params - 1 for old, new in pairs])),
        "madds_change": float(np.mean([new.live_madds / old.live_madds - 1 for old, new in pairs])),
    }


def _oracles(config: Benchmark, table: Table, inputs: Inputs) -> tuple[float, float]:
    """Mean score of the best reachable architecture, by reward and by score."""
    reward, score = table.column(config.reward), table.column(config.score)
    places = [_place(arch) for arch in table.archs]
    alike: dict[int, list[int]] = {}  # rows with so many edges, in the order of products
    for row in sorted(range(len(places)), key=places.__getitem__):
        alike.setdefault(len(places[row]), []).append(row)
    ops = {edges: np.array([places[row] for row in rows]) for edges, rows in alike.items()}  # (rows, edges) each
    by_reward, by_score = [], []
    for index, mask in enumerate(inputs.masks):
        edges = len(mask)
        allowed = np.flatnonzero(mask[np.arange(edges), ops[edges]].all(axis=1))
        inputs.count([index] * len(allowed), [*ops[edges][allowed]])
        reachable = [alike[edges][i] for i in allowed.tolist() if inputs.fits(index, ops[edges][i])]
        by_reward.append(score[reachable[int(reward[reachable].argmax())]])
        by_score.append(score[reachable].max())
    return float(np.mean(by_reward)), float(np.mean(by_score))


def _summary(runs: list[dict[str, Any]], inputs: float, oracle: float) -> dict[str, Any] | None:
    if not runs:
        return None

    def mean(name: str) -> float:
        return float(np.mean([run[name] for run in runs]))

    def spread(name: str) -> dict[str, float] | None:
        if runs[0][name] is None:
            return None
        values = [run[name] for run in runs]
        return {"mean": mean(name), "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}

    return {
        "one_shot": spread("one_shot"),
        "best_of_10": spread("best_of_10"),
        "share_of_oracle": (mean("one_shot") - inputs) / (oracle - inputs) if oracle != inputs else None,
        **{name: mean(name) for name in ("params_change", "madds_change", "queries", "seconds")},
    }
