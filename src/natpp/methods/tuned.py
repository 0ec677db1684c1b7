"""Tuning a policy on one module and its data, Eq. (1) of the paper: which of all it may become is best there?

Scoring a candidate is expensive, so few are scored and a prediction fitted on them ranks the others. In each round the
policy is tuned on the prediction, candidates are drawn from it and from the best so far, and the most promising are
scored. If the module is over its budget, some that change little and still exceed it are scored too, for comparison.
The best few are fine-tuned for longer, which decides.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from natpp.arch.graph import NULL
from natpp.config import At, Config
from natpp.core.budget import Budget, BudgetError
from natpp.core.learned import Learned, Scored
from natpp.core.measures import Cost, figures_of
from natpp.data.batches import Batches
from natpp.data.loader import moved_to
from natpp.errors import SettingError
from natpp.fx.rewrite import rewrite
from natpp.fx.sites import Keep
from natpp.methods.learning import LearnConfig, Learner
from natpp.nets.measure import module_cost
from natpp.nets.policy import GraphBatch, Policy
from natpp.scorers.base import Scores
from natpp.scorers.features import Features
from natpp.scorers.module_supernet import Expanded
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.scorers.short import WORST, Rows, ShortTunings
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.module import Task
from natpp.subjects.module_budget import Descent, within
from natpp.subjects.module_problem import Problem, Row, Table, perturbed
from natpp.subjects.module_result import ModuleResult
from natpp.training.recipe import ShortConfig
from natpp.training.task import Task as TrainingTask
from natpp.training.task import inputs_of
from natpp.training.together import Trial

SCHEDULE = ShortConfig(steps=32, learning_rate=0.02, clip=5.0, together=16)  # batches are the loader's
MOST_TRAINED = 64  # fine-tunings whose steps a supernet is trained for, however many candidates are scored
FIRST = 32  # of which the first share is drawn before there is a plan for the time
TRIES = 8  # draws for each candidate that is wanted
TEMPERATURE = 3.0  # of the policy at first: flatter, since it was learned elsewhere
Key = tuple[tuple[str, ...], ...]  # what a candidate computes: per block, the operations that are alive


@dataclass(frozen=True)
class TuneConfig(Config):
    """How a module's policy is tuned."""

    scorer: Literal["short", "supernet"] = "short"
    """short fine-tunings with inherited weights, or a supernet made of the module"""
    evaluations: Annotated[int, At(least=2)] = 32
    """candidates that are scored"""
    minutes: Annotated[float | None, At(above=0)] = None
    """time after which no more are scored"""
    random_share: Annotated[float, At(above=0, most=1)] = 0.4
    """share of them that is drawn before anything is predicted"""
    probes: Annotated[float, At(least=0, most=1)] = 0.5
    """where the module is over its budget, the share of these that changes little: too dear, but one learns from it"""
    rounds: Annotated[int, At(least=1)] = 4
    """rounds in which the others are chosen"""
    finalists: Annotated[int, At(least=0)] = 4
    """of the best, how many are fine-tuned again for longer, if by short fine-tunings; the best of them is taken"""
    longer: Annotated[int, At(least=1)] = 4
    """times as many steps as before"""
    learn: LearnConfig = LearnConfig(inputs=1, samples=16, steps=120, learning_rate=1e-3, entropy=0.1)
    """of the policy, on predicted scores"""
    predict: PredictConfig = PredictConfig()


def learn_module(
    module: nn.Module,
    example_input: Any,
    policy: Policy,
    task: TrainingTask,
    *,
    config: TuneConfig,
    schedule: ShortConfig | None = None,
    rule: str = "nat++",
    seed: int = 0,
    budget: Budget = "strict",
    keep: Keep = (),
    share_blocks: bool | None = None,
    measure_latency: bool = False,
    watch: Callable[[str, int, int, dict[str, float]], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> ModuleResult:
    """The best that was found for a module on its data, within rule and budget, with inherited weights.

    Statistics of batch norms are recomputed from training batches.
    """
    schedule = schedule or SCHEDULE
    device = next((one.device for one in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    data = task.kept(device, schedule.steps * config.longer)
    task.check(module, data.take(np.arange(2)) if isinstance(data, Batches) else moved_to(data.train[0], device))
    asked = Task(module, example_input, policy, rule, budget, keep, share_blocks, measure_latency)
    problem = asked.problem
    if asked.limits:  # says how near one gets, where they cannot be met
        within(problem, problem.log_probs, asked.before, asked.limits)
    learned, rows = None, problem.before
    if problem.blocks:
        trial = Trial(data, schedule, device, seed, task.loss, say=say)
        rows, learned = ModuleSearch(problem, asked.before, asked.limits, policy, trial, config, watch)()
    made = rewrite(problem.traced, problem.blocks, problem.block_ops(rows))
    settings = {"seed": seed, "learned": asdict(config), "schedule": asdict(schedule)}
    return asked.result(made, rows, inputs_of(data, device), settings, learned)


class Candidates:
    """What a module may become within its limits, and how such things are drawn."""

    def __init__(self, problem: Problem, before: Cost, limits: Mapping[str, float]):
        self.problem, self.before, self.limits = problem, before, dict(limits)
        self.counted = all(name in ("params", "madds") for name in limits)

    def drawn(self, preferences: Sequence[Table]) -> Rows:
        """The most preferred candidate within the limits."""
        problem = self.problem
        if not self.limits:
            rows = (table.argmax(axis=1) for table in preferences)
            return [problem.repaired(number, row) for number, row in enumerate(rows)]
        if self.counted:
            descent = Descent(problem, problem.before, self.before, self.limits, preferences)
            if not descent.over() or (descent.count_down() and not descent.over()):
                return descent.rows
        try:
            return within(problem, preferences, self.before, self.limits)
        except BudgetError:  # these preferences lead to where nothing is left to save
            return within(problem, problem.log_probs, self.before, self.limits)

    def repaired(self, rows: Rows, preferences: Sequence[Table]) -> Rows:
        """Rows made connected and, as far as costs are counted, brought within the limits by further changes."""
        problem = self.problem
        rows = [problem.repaired(number, row) for number, row in enumerate(rows)]
        descent = Descent(problem, rows, self.before, self.limits, preferences)
        if descent.over():
            descent.count_down()
        return descent.rows

    def fits(self, rows: Rows) -> bool:
        """Whether rows keep the limits, as far as costs are counted, and every output gets something."""
        problem = self.problem
        if not all(problem.connected(number, row) for number, row in enumerate(rows)):
            return False
        return not Descent(problem, rows, self.before, self.limits, problem.log_probs).over()

    def allowed(self, rows: Rows) -> bool:
        """Whether rows that fit also keep limits that have to be measured."""
        if self.counted or not self.fits(rows):
            return self.fits(rows)
        problem = self.problem
        made = rewrite(problem.traced, problem.blocks, problem.block_ops(rows))
        found = figures_of(module_cost(made, problem.traced.example, latency="latency" in self.limits))
        return all(found[name] <= limit for name, limit in self.limits.items())

    def mutated(self, rows: Rows, preferences: Sequence[Table], generator: np.random.Generator) -> Rows:
        """Rows with some decisions drawn anew, brought within the limits."""
        problem = self.problem
        noisy = perturbed(preferences, generator, TEMPERATURE)
        changed = [row.copy() for row in rows]
        free = [(n, i) for n, mask in enumerate(problem.masks) for i in np.flatnonzero(mask.sum(axis=1) > 1)]
        for place in generator.choice(len(free), size=min(1 + generator.poisson(1.0), len(free)), replace=False):
            number, index = free[int(place)]
            others = np.flatnonzero(problem.masks[number][index])
            changed[number][index] = generator.choice(others[others != changed[number][index]])
        return self.repaired(changed, noisy)

    def key(self, rows: Rows) -> Key:
        """What counts as the same candidate: what is alive of it."""
        found = []
        for block, ops in zip(self.problem.blocks, self.problem.block_ops(rows), strict=True):
            live, _ = block.alive(ops)
            found.append(tuple(op if alive else NULL for op, alive in zip(ops, live, strict=True)))
        return tuple(found)

    def features(self, key: Key) -> Features:
        """What a prediction sees: which operation stands where, and how many there are of each."""
        found: Features = {}
        for place, (block, ops) in enumerate(zip(self.problem.blocks, key, strict=True)):
            for index, (op, own) in enumerate(zip(ops, block.ops, strict=True)):
                if op != own:
                    found["at", str(place), str(index), op] = 1.0
                    found["became", own, op] = found.get(("became", own, op), 0.0) + 1.0
                    found["changes",] = found.get(("changes",), 0.0) + 1.0
        return found

    def madds(self, rows: Rows) -> float:
        """Multiply-adds as counted."""
        return float(Descent(self.problem, rows, self.before, self.limits, self.problem.log_probs).total[1])


class Decisions:
    """The one input that a policy learns for: all decisions of a module as one row."""

    def __init__(self, candidates: Candidates):
        self.candidates, self.problem = candidates, candidates.problem
        self.encoded = [SimpleNamespace(ops=np.concatenate(self.problem.before))]
        graph = self.problem.graph
        self.graph = graph._replace(owners=torch.zeros_like(graph.owners), size=1)
        self.preferences: Sequence[Table] = self.problem.log_probs

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Sequence[int]) -> GraphBatch:
        assert len(indices) == 1
        return self.graph

    def rows(
        self, indices: Sequence[int], choices: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> list[tuple[int, Row, Row]]:
        """Choices as (index, row as drawn, row within the limits)."""
        found = []
        for drawn in choices:
            now = np.concatenate(self.candidates.repaired(self.problem.split(drawn), self.preferences))
            found.append((0, drawn, drawn if (now == drawn).all() else now))
        return found

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Callable[[Sequence[Key]], Scores]) -> Scores:
        return score([self.candidates.key(self.problem.split(row)) for row in rows])


class ModuleSearch:
    """The search for what a module should become."""

    def __init__(
        self,
        problem: Problem,
        before: Cost,
        limits: Mapping[str, float],
        policy: Policy,
        trial: Trial,
        config: TuneConfig,
        watch: Callable[[str, int, int, dict[str, float]], None] | None = None,
    ):
        self.problem, self.config, self.trial, self.watch = problem, config, trial, watch
        self.candidates = Candidates(problem, before, limits)
        self.learner = Learner(policy.ops, config.learn, number(trial.seed, Use.START, 3), policy)
        self.decisions = Decisions(self.candidates)
        self.known: dict[Key, float] = {}
        self.probed: dict[Key, float] = {}  # too dear to be taken
        self.rows: dict[Key, Rows] = {}
        self.expected: dict[Key, float] = {}  # of candidates that a prediction chose
        self.policy_curve: list[tuple[float, float]] = []
        self._made, self._seconds = 0, 0.0  # scores, and what they took
        self._over = False  # whether the module itself is too dear, and scored for comparison only
        self.started = time.perf_counter()
        self.scorer: ShortTunings | Expanded = (
            ShortTunings(problem, trial) if config.scorer == "short" else Expanded(problem, trial)
        )

    def __call__(self) -> tuple[Rows, Learned]:
        """The best candidate, and all that was learned."""
        original = [row.copy() for row in self.problem.before]
        if isinstance(self.scorer, Expanded):
            steps = min(self.config.evaluations, MOST_TRAINED) * self.trial.schedule.steps
            chances = functools.partial(generator, self.trial.seed, Use.DRAW, 3)
            self.scorer.train(lambda step: self._random(chances(step)), steps, lambda: self._late(0.5))
        trained = time.perf_counter() - self.started if isinstance(self.scorer, Expanded) else 0.0
        chance = generator(self.trial.seed, Use.SCORE, 3)
        allowed = self.candidates.allowed(original)
        self._over = not allowed
        first = max(round(min(self.config.evaluations, FIRST) * self.config.random_share), 2)
        usual = self.candidates.drawn(self.problem.log_probs)
        share = 0.0 if allowed else self.config.probes
        drawn = self._new([usual], round((1 - share) * (first - 1)) + self._over, lambda: self._random(chance))
        drawn = drawn or [usual]
        self._score([original, *drawn])
        own = self.known[self.candidates.key(original)]
        if max(self.known.values()) <= WORST:
            raise SettingError(
                "the loss of the module and of all candidates is not a number: look at data and loss, or give a lower "
                "learning_rate"
            )
        if not allowed:  # it was scored to be compared with, and to learn from
            key = self.candidates.key(original)
            self.probed[key] = self.known.pop(key)
        total = self._planned()
        random = max(round(total * self.config.random_share), 2)
        self._probe(round(share * (random - 1)), chance)
        total -= len(self.probed) - self._over
        self._score(self._new([], random - self._made + self._over, lambda: self._random(chance)))
        steps = -(-self.config.learn.steps // self.config.rounds)
        a_round = max(math.ceil((total - len(self.known)) / self.config.rounds), 1)
        while len(self.known) < total and not self._late():
            before = len(self.known)
            self._round(steps, min(a_round, total - before), chance)
            if len(self.known) == before:
                break  # everything there is has been scored
        best, finals = self._best()
        scored = [
            Scored(score, tuple(self.problem.block_ops(self.rows[key])), self.candidates.madds(self.rows[key]))
            for key, score in self.known.items()
        ]
        spent, scoring = time.perf_counter() - self.started, self.scorer.spent
        weights = {"training the supernet": trained} if trained else {}
        learned = Learned(
            scored,
            list(self.known).index(best),
            own,
            self.learner.policy.eval(),
            self.config.scorer,
            spent,
            [self.expected.get(key) for key in self.known],
            self.policy_curve,
            {**scoring, "predicting and learning": spent - sum(scoring.values()) - trained} | weights,
            {list(self.known).index(key): score for key, score in finals.items()},
        )
        return self.rows[best], learned

    def _random(self, chance: np.random.Generator) -> Rows:
        """A candidate drawn from the policy made flatter, or from anything that is allowed."""
        flat = [np.where(mask, 0.0, -1e9) for mask in self.problem.masks]
        tables = self.problem.log_probs if chance.random() < 0.5 else flat
        return self.candidates.drawn(perturbed(tables, chance, TEMPERATURE))

    def _probe(self, count: int, chance: np.random.Generator) -> None:
        """Score the module with one to three decisions drawn anew, whatever it costs."""
        free = Candidates(self.problem, self.candidates.before, {})
        flat = [np.where(mask, 0.0, -1e9) for mask in self.problem.masks]
        found: dict[Key, Rows] = {}
        for _ in range(TRIES * count):
            if len(found) >= count:
                break
            rows = free.mutated(self.problem.before, flat, chance)
            key = free.key(rows)
            if key not in self.known and key not in self.probed:
                found[key] = rows
        scores = self._scores(list(found.values()))
        self.probed |= dict(zip(found, scores, strict=False))

    def _round(self, steps: int, wanted: int, chance: np.random.Generator) -> None:
        """Tune the policy on the prediction so far, and score what is worth most."""
        keys, seen = list(self.known), self.known | self.probed
        prediction = Prediction(
            list(seen), np.array(list(seen.values())), self.config.predict, (self.candidates.features,)
        )
        for _ in range(min(steps, self.config.learn.steps - self.learner.steps)):
            step = self.learner.steps
            figures = self.learner.step(
                self.decisions,
                prediction.careful,
                generator(self.trial.seed, Use.LEARN, 3, step),
                torch_generator(self.trial.seed, Use.LEARN, 3, step),
            )
            self.policy_curve.append(figures)
        _, tables = self.problem.asked(self.learner.policy)
        self.decisions.preferences = tables
        best = sorted(keys, key=self.known.__getitem__, reverse=True)[:3]

        def propose() -> Rows:
            if chance.random() < 0.5:
                return self.candidates.drawn(perturbed(tables, chance))
            return self.candidates.mutated(self.rows[best[int(chance.integers(len(best)))]], tables, chance)

        tries = TRIES if self.candidates.counted else 2  # what has to be built and measured is dear
        pool = self._new([self.candidates.drawn(tables)], tries * wanted, propose)
        worth = prediction.hopeful([self.candidates.key(rows) for rows in pool]) if pool else np.zeros(0)
        order = np.argsort(-worth, kind="stable")
        chosen = [pool[int(place)] for place in order[:wanted]]
        keys = [self.candidates.key(rows) for rows in chosen]
        self.expected |= dict(zip(keys, prediction.expected(keys).tolist(), strict=True)) if keys else {}
        self._score(chosen)

    def _best(self) -> tuple[Key, dict[Key, float]]:
        """What is best: where some are fine-tuned for longer, by their scores after that."""
        order = sorted(self.known, key=self.known.__getitem__, reverse=True)
        some = order[: self.config.finalists]
        if len(some) < 2 or not isinstance(self.scorer, ShortTunings) or self._late():
            return order[0], {}
        begin = time.perf_counter()
        scores = self.scorer([self.rows[key] for key in some], self.config.longer)
        self._seconds += time.perf_counter() - begin
        finals = dict(zip(some, scores, strict=True))
        return max(finals, key=finals.__getitem__), finals

    def _new(self, given: Sequence[Rows], count: int, draw: Callable[[], Rows]) -> list[Rows]:
        """So many candidates that were not scored before: those given, then drawn ones."""
        found: dict[Key, Rows] = {}
        waiting = list(given)
        for _ in range(TRIES * max(count, 1)):
            if len(found) >= count:
                break
            rows = waiting.pop(0) if waiting else draw()
            key = self.candidates.key(rows)
            if key not in self.known and key not in found and self.candidates.allowed(rows):
                found[key] = rows
        return list(found.values())

    def _planned(self) -> int:
        """How many candidates there is time for, by those scored so far."""
        minutes, total = self.config.minutes, self.config.evaluations
        if minutes is None:
            return total
        left = 60 * minutes - (time.perf_counter() - self.started)
        more = int(left * self._made / max(self._seconds, 1e-9))
        if isinstance(self.scorer, ShortTunings):
            more -= self.config.finalists * self.config.longer
        return min(total, len(self.known) + max(more, 0))

    def _score(self, candidates: Sequence[Rows]) -> None:
        """Score candidates, as many as there is time for."""
        for rows, score in zip(candidates, self._scores(candidates), strict=False):
            key = self.candidates.key(rows)
            self.known[key], self.rows[key] = score, rows
            if self.watch is not None:
                best = {"best": max(self.known.values())}
                done = len(self.known) + len(self.probed) - self._over
                self.watch("scores", done, self.config.evaluations, best)

    def _scores(self, candidates: Sequence[Rows]) -> Iterator[float]:
        """Scores of as many as there is time for, but of two at least: the first may be there for comparison only."""
        for start in range(0, len(candidates), self.scorer.together):
            if self._late() and self._made > 1:
                return
            some, begin = candidates[start : start + self.scorer.together], time.perf_counter()
            scores = self.scorer(some)
            self._seconds += time.perf_counter() - begin
            self._made += len(some)
            yield from scores

    def _late(self, share: float = 1.0) -> bool:
        """Whether a share of the time is over."""
        minutes = self.config.minutes
        return minutes is not None and time.perf_counter() - self.started > 60 * minutes * share
