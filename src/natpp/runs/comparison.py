"""Methods against a table of trained networks: how much each improves held-out inputs, and how many scores it used."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from natpp import methods  # noqa: F401 (registers the methods)
from natpp.arch.cost import counts
from natpp.arch.formats import NASBENCH201_OPS
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.core.budget import Budget
from natpp.core.scores import Score
from natpp.core.subject import Row
from natpp.errors import SettingError, counted
from natpp.methods.base import picked
from natpp.methods.learning import PRESETS, LearnConfig
from natpp.methods.policy import PolicyMethod
from natpp.methods.rounds import predicted
from natpp.nets.policy import encode
from natpp.registry import METHODS
from natpp.runs.benchmark import Benchmark
from natpp.scorers.predicted import PredictConfig
from natpp.scorers.table import Table, TableScorer, read_table
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

if TYPE_CHECKING:
    from natpp.run import Watch

SPACE_OPS = tuple(NASBENCH201_OPS.values())
CANDIDATES = 10


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    sd: float
    """standard deviation; 0 for a single seed"""

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f}"


@dataclass(frozen=True)
class Worth:
    """How well a method did on held-out inputs."""

    one_shot: Spread
    """score of its answers"""
    best_of_10: Spread | None
    """score of the best of ten answers by the reward; None for a method that has only one answer"""
    share_of_oracle: float | None
    """part of the possible improvement that the answers reach; None if nothing can be improved"""
    params_change: float
    """mean relative change of living parameters"""
    madds_change: float
    """the same for multiply-adds"""
    queries: float
    """scores that were looked up"""
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Methods compared on held-out inputs of a table.

    Examples:
        >>> from natpp.runs.comparison import Comparison, Spread, Worth
        >>> worth = Worth(Spread(91.5, 0.1), None, 0.9, -0.2, -0.3, queries=0, seconds=1.0)
        >>> found = Comparison(87.3, 91.8, 92.0, {"constant": worth}, natpp.Benchmark(methods=("constant",)))
        >>> print(str(found).splitlines()[0])
        inputs 87.30, best reachable by val_200 91.80, by test_200 92.00
        >>> found.to_dict()["methods"]["constant"]["one_shot"]
        {'mean': 91.5, 'sd': 0.1}
    """

    inputs: float
    """mean score of the inputs"""
    oracle_by_reward: float
    """mean score of the architectures with the best reward among those that the rule can reach"""
    oracle_by_score: float
    """mean of the best reachable score"""
    methods: Mapping[str, Worth | None]
    """by name; None for a method that does not need scores, if their number is limited"""
    config: Benchmark
    """what was compared, and how"""

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        found = asdict(self)
        del found["config"]
        return found

    def __str__(self) -> str:
        from natpp.report.text import new_table, table_text

        table = new_table(
            "method", "one shot", "best of 10", "share of oracle", "live params", "live MAdds", "queries", "seconds"
        )
        for name, row in self.methods.items():
            if row is None:
                table.add_row(name, *["–"] * 7)
                continue
            share = "–" if row.share_of_oracle is None else f"{row.share_of_oracle:.1%}"
            changes = (f"{change:+.1%}" for change in (row.params_change, row.madds_change))
            shots = (str(row.one_shot), str(row.best_of_10 or "–"))
            table.add_row(name, *shots, share, *changes, f"{row.queries:,.0f}", f"{row.seconds:.1f}")
        return (
            f"inputs {self.inputs:.2f}, best reachable by {self.config.reward} {self.oracle_by_reward:.2f}, "
            f"by {self.config.score} {self.oracle_by_score:.2f}\n{table_text(table)}"
        )


def compare(table_file: str | Path, config: Benchmark, watch: Watch | None = None) -> Comparison:
    """Run the methods; means and standard deviations over seeds."""
    for name in config.methods:
        METHODS.given(name)  # raises if unknown
    table = read_table(table_file, sorted({config.reward, config.score}))
    where = setting("nasbench201")
    held_out, training = held_out_split(table, config.holdout, config.split_seed)
    frames = {
        rule: Frame(rule, where, config.strict)
        for rule in {config.rule, *(_rule(name, config) for name in config.methods)}
    }
    budget = Budget(strict=config.strict)
    train, test = (
        {rule: Subjects(cells_of(some, frame, SPACE_OPS), budget) for rule, frame in frames.items()}
        for some in (training, held_out)
    )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in config.methods}
    for seed in range(config.seeds):
        for place, name in enumerate(config.methods):
            if watch is not None:
                watch("methods", seed * len(config.methods) + place, config.seeds * len(config.methods), {})
            rule = _rule(name, config)
            if config.evaluations is None or METHODS.given(name).needs_scores:
                runs[name].append(_run(name, config, table, train[rule], test[rule], seed))
    reward_oracle, score_oracle = _oracles(config, table, test[config.rule])
    inputs = mean_score(table, config.score, held_out)
    worth = {name: _summary(found, inputs, reward_oracle) for name, found in runs.items()}
    return Comparison(inputs, reward_oracle, score_oracle, worth, config)


def held_out_split(table: Table, count: int, seed: int) -> tuple[list[Architecture], list[Architecture]]:
    """Subjects to evaluate on and to learn from, drawn from the product order of all architectures."""
    if count >= len(table):
        raise SettingError(f"holdout is {count}, but the table has {counted(len(table), 'architecture')}")
    order = sorted(range(len(table)), key=lambda row: _place(table.archs[row]))
    drawn = np.random.default_rng(seed).permutation(len(table))
    archs = [table.archs[order[number]] for number in drawn.tolist()]
    return archs[:count], archs[count:]


def _run(name: str, config: Benchmark, table: Table, train: Subjects, test: Subjects, seed: int) -> dict[str, Any]:
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
    rows = [one for one, *_ in method.propose(test, 1, score, generator)]
    seconds = time.perf_counter() - start
    several = method.propose(test, CANDIDATES, score, generator) if method.samples_many else None
    after = _architectures(test, rows)
    best = None if several is None else _architectures(test, picked(test, several, score))
    return {
        "one_shot": mean_score(table, config.score, after),
        "best_of_10": None if best is None else mean_score(table, config.score, best),
        "queries": scorer.queries,
        "seconds": seconds,
        **_changes(test, after),
    }


def _rule(name: str, config: Benchmark) -> str:
    return METHODS.given(name).rule or config.rule


def _place(arch: Architecture) -> tuple[int, ...]:
    """The position of an architecture in the order of all products of operations over edges."""
    return tuple(encode(arch, SPACE_OPS).ops.tolist())


def _architectures(inputs: Subjects, rows: Sequence[Row]) -> list[Architecture]:
    return [inputs.transformed(index, row) for index, row in enumerate(rows)]


def mean_score(table: Table, column: str, archs: Sequence[Architecture]) -> float:
    """The mean of a column over architectures."""
    return float(table.column(column)[[table.row(arch) for arch in archs]].mean())


def _changes(inputs: Subjects, after: Sequence[Architecture]) -> dict[str, float]:
    """Mean relative change of living parameters and multiply-adds."""
    counted = functools.cache(lambda arch: counts(arch, setting("nasbench201")))
    pairs = [(counted(old), counted(new)) for old, new in zip(inputs.given, after, strict=True)]
    return {
        "params_change": float(np.mean([new.live_params / old.live_params - 1 for old, new in pairs])),
        "madds_change": float(np.mean([new.live_madds / old.live_madds - 1 for old, new in pairs])),
    }


def _oracles(config: Benchmark, table: Table, inputs: Subjects) -> tuple[float, float]:
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


def _summary(runs: list[dict[str, Any]], inputs: float, oracle: float) -> Worth | None:
    if not runs:
        return None

    def mean(name: str) -> float:
        return float(np.mean([run[name] for run in runs]))

    def spread(name: str) -> Spread:
        values = [run[name] for run in runs]
        return Spread(mean(name), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)

    return Worth(
        one_shot=spread("one_shot"),
        best_of_10=None if runs[0]["best_of_10"] is None else spread("best_of_10"),
        share_of_oracle=(mean("one_shot") - inputs) / (oracle - inputs) if oracle != inputs else None,
        **{name: mean(name) for name in ("params_change", "madds_change", "queries", "seconds")},
    )
