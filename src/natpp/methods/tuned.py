"""Tune a policy on one module and its data, Eq. (1) of the paper, to find the best candidate.

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

from natpp.config import At, Config
from natpp.core.budget import Budget, BudgetError
from natpp.core.decision import Plan
from natpp.core.learned import Learned, Scored
from natpp.core.measures import COUNTED, figures_of
from natpp.core.result import Result
from natpp.data.batches import Batches
from natpp.data.loader import moved_to
from natpp.errors import SettingError
from natpp.fx.sites import Keep
from natpp.methods.learning import LearnConfig, Learner
from natpp.nets.policy import GraphBatch, Policy
from natpp.scorers.base import Scores
from natpp.scorers.features import Features
from natpp.scorers.module_supernet import Expanded
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.scorers.short import WORST, ShortTunings
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.module import Key, Row
from natpp.subjects.module_answer import Asked, Table, perturbed, said
from natpp.subjects.module_budget import Descent
from natpp.training.recipe import ShortConfig
from natpp.training.task import Task as TrainingTask
from natpp.training.task import inputs_of
from natpp.training.together import Trial

SCHEDULE = ShortConfig(steps=32, learning_rate=0.02, clip=5.0, together=16)  # batches are the loader's
MOST_TRAINED = 64  # fine-tunings whose steps a supernet is trained for, however many candidates are scored
FIRST = 32  # candidates drawn before the time is planned
TRIES = 8  # draws per candidate
TEMPERATURE = 3.0  # of the policy at first: flatter, since it was learned elsewhere


@dataclass(frozen=True)
class TuneConfig(Config):
    """How a module's policy is tuned."""

    scorer: Literal["short", "supernet"] = "short"
    """short fine-tunings with inherited weights, or a supernet made of the module"""
    evaluations: Annotated[int, At(least=2)] = 32
    """candidates that are scored"""
    minutes: Annotated[float | None, At(above=0)] = None
    """time limit: no candidates are scored after it"""
    random_share: Annotated[float, At(above=0, most=1)] = 0.4
    """share of the candidates drawn before the first prediction"""
    probes: Annotated[float, At(least=0, most=1)] = 0.5
    """if the module is over its budget: share of these with few changes, scored only for the prediction"""
    rounds: Annotated[int, At(least=1)] = 4
    """rounds in which the others are chosen"""
    finalists: Annotated[int, At(least=0)] = 4
    """with short fine-tunings: how many of the best are fine-tuned again for longer; the best of these is the result"""
    longer: Annotated[int, At(least=1)] = 4
    """factor on the steps of these longer fine-tunings"""
    learn: LearnConfig = LearnConfig(inputs=1, samples=16, steps=120, learning_rate=1e-3, entropy=0.1)
    """how the policy learns on predicted scores"""
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
) -> Result:
    """The best that was found for a module on its data, within rule and budget, with inherited weights.

    Statistics of batch norms are recomputed from training batches.
    """
    schedule = schedule or SCHEDULE
    device = next((one.device for one in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    data = task.kept(device, schedule.steps * config.longer)
    task.check(module, data.take(np.arange(2)) if isinstance(data, Batches) else moved_to(data.train[0], device))
    asked = Asked(module, example_input, policy, rule, budget, keep, share_blocks, measure_latency)
    if asked.limits:  # the error reports the closest result if the limits cannot be met
        asked.within(asked.log_probs)
    learned, plan = None, (0,) * len(asked.module.decisions)
    if asked.module.blocks:
        trial = Trial(data, schedule, device, seed, task.loss, say=say)
        plan, learned = ModuleSearch(asked, policy, trial, config, watch)()
    settings = {"seed": seed, "learned": asdict(config), "schedule": asdict(schedule)}
    return asked.result(plan, inputs_of(data, device), settings, learned)


class Candidates:
    """The candidates for a module within its limits, and how they are drawn."""

    def __init__(self, asked: Asked, limits: Mapping[str, float]):
        self.asked, self.module, self.before, self.limits = asked, asked.module, asked.before, limits
        self.counted = all(name in COUNTED for name in self.limits)

    def drawn(self, table: Table) -> Plan:
        """The most preferred candidate within the limits."""
        if not self.limits:
            return self.asked.repaired(self.module.plan(table.argmax(axis=1)))
        if self.counted:
            descent = self._descent((0,) * len(self.module.decisions), table)
            if not descent.over() or (descent.count_down() and not descent.over()):
                return descent.plan
        try:
            return self.asked.within(table)
        except BudgetError:  # with these preferences no further change saves anything
            return self.asked.within(self.asked.log_probs)

    def repaired(self, plan: Plan, table: Table) -> Plan:
        """A plan made connected and, where costs are counted, brought within the limits by further changes."""
        descent = self._descent(self.asked.repaired(plan), table)
        if descent.over():
            descent.count_down()
        return descent.plan

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is connected and keeps the limits that are counted."""
        return self.module.fits(plan) and not self._descent(plan, self.asked.log_probs).over()

    def allowed(self, plan: Plan) -> bool:
        """Whether a plan that fits also keeps limits that have to be measured."""
        if self.counted or not self.fits(plan):
            return self.fits(plan)
        _, cost = self.module.built(plan, self.module.copied, latency="latency" in self.limits)
        found = figures_of(cost)
        return all(found[name] <= limit for name, limit in self.limits.items())

    def mutated(self, plan: Plan, table: Table, generator: np.random.Generator) -> Plan:
        """A plan with some decisions drawn anew, brought within the limits."""
        noisy, changed = perturbed(table, generator, TEMPERATURE), list(plan)
        free = [number for number, allowed in enumerate(self.module.allowed) if len(allowed) > 1]
        for place in generator.choice(len(free), size=min(1 + generator.poisson(1.0), len(free)), replace=False):
            number = free[int(place)]
            others = [option for option in self.module.allowed[number] if option != changed[number]]
            changed[number] = int(generator.choice(others))
        return self.repaired(tuple(changed), noisy)

    def features(self, key: Key) -> Features:
        """Features for a prediction: the operation at each site, and the count of each operation."""
        found: Features = {}
        for place, (block, ops) in enumerate(zip(self.module.blocks, key, strict=False)):
            for index, (op, own) in enumerate(zip(ops, block.ops, strict=True)):
                if op != own:
                    found["at", str(place), str(index), op] = 1.0
                    found["became", own, op] = found.get(("became", own, op), 0.0) + 1.0
                    found["changes",] = found.get(("changes",), 0.0) + 1.0
        return found

    def madds(self, plan: Plan) -> float:
        """Multiply-adds."""
        return float(self.module.living(plan)["madds"])

    def _descent(self, plan: Plan, table: Table) -> Descent:
        return Descent(self.module, plan, self.before, self.limits, self.module.preferences(table))


class Decisions:
    """The one input that a policy learns for: all decisions of a module as one row."""

    def __init__(self, candidates: Candidates):
        self.candidates, self.module = candidates, candidates.module
        self.encoded = [SimpleNamespace(ops=self.module.before)]
        graph = self.module.graph()
        self.graph = graph._replace(owners=torch.zeros_like(graph.owners), size=1)
        self.table = candidates.asked.log_probs

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
            now = self.module.row(self.candidates.repaired(self.module.plan(drawn), self.table))[: len(drawn)]
            found.append((0, drawn, drawn if (now == drawn).all() else now))
        return found

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Callable[[Sequence[Key]], Scores]) -> Scores:
        return score([self.module.key(self.module.plan(row)) for row in rows])


class ModuleSearch:
    """The search for what a module should become."""

    def __init__(
        self,
        asked: Asked,
        policy: Policy,
        trial: Trial,
        config: TuneConfig,
        watch: Callable[[str, int, int, dict[str, float]], None] | None = None,
    ):
        self.asked, self.module, self.config, self.trial, self.watch = asked, asked.module, config, trial, watch
        self.candidates = Candidates(asked, asked.limits)
        self.learner = Learner(policy.ops, config.learn, number(trial.seed, Use.START, 3), policy)
        self.decisions = Decisions(self.candidates)
        self.known: dict[Key, float] = {}
        self.probed: dict[Key, float] = {}  # over the budget: scored, but not eligible
        self.plans: dict[Key, Plan] = {}
        self.expected: dict[Key, float] = {}  # of candidates that a prediction chose
        self.policy_curve: list[tuple[float, float]] = []
        self._made, self._seconds = 0, 0.0  # number of scores, and their seconds
        self._over = False  # whether the module is over the budget, and scored for comparison only
        self.started = time.perf_counter()
        self.scorer: ShortTunings | Expanded = (
            ShortTunings(self.module, trial) if config.scorer == "short" else Expanded(self.module, trial)
        )

    def __call__(self) -> tuple[Plan, Learned]:
        """The best candidate, and all that was learned."""
        original = (0,) * len(self.module.decisions)
        if isinstance(self.scorer, Expanded):
            steps = min(self.config.evaluations, MOST_TRAINED) * self.trial.schedule.steps
            chances = functools.partial(generator, self.trial.seed, Use.DRAW, 3)
            self.scorer.train(lambda step: self._random(chances(step)), steps, lambda: self._late(0.5))
        trained = time.perf_counter() - self.started if isinstance(self.scorer, Expanded) else 0.0
        chance = generator(self.trial.seed, Use.SCORE, 3)
        allowed = self.candidates.allowed(original)
        self._over = not allowed
        first = max(round(min(self.config.evaluations, FIRST) * self.config.random_share), 2)
        usual = self.candidates.drawn(self.asked.log_probs)
        share = 0.0 if allowed else self.config.probes
        drawn = self._new([usual], round((1 - share) * (first - 1)) + self._over, lambda: self._random(chance))
        drawn = drawn or [usual]
        self._score([original, *drawn])
        own = self.known[self.module.key(original)]
        if max(self.known.values()) <= WORST:
            raise SettingError(
                "the loss of the module and of all candidates is not a number: look at data and loss, or give a lower "
                "learning_rate"
            )
        if not allowed:  # over the budget: scored for comparison and to learn from
            key = self.module.key(original)
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
                break  # every candidate has been scored
        best, finals = self._best()
        scored = [
            Scored(score, tuple(self.module.block_ops(self.plans[key])), self.candidates.madds(self.plans[key]))
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
        return self.plans[best], learned

    def _random(self, chance: np.random.Generator) -> Plan:
        """A candidate drawn from the policy made flatter, or uniformly from all that are allowed."""
        table = self.asked.log_probs if chance.random() < 0.5 else self._flat()
        return self.candidates.drawn(perturbed(table, chance, TEMPERATURE))

    def _flat(self) -> Table:
        """Uniform preferences over all that is allowed."""
        return np.where(self.module.mask, 0.0, -1e9)

    def _probe(self, count: int, chance: np.random.Generator) -> None:
        """Score the module with one to three decisions redrawn, ignoring the budget."""
        free = Candidates(self.asked, {})
        found: dict[Key, Plan] = {}
        for _ in range(TRIES * count):
            if len(found) >= count:
                break
            plan = free.mutated((0,) * len(self.module.decisions), self._flat(), chance)
            key = self.module.key(plan)
            if key not in self.known and key not in self.probed:
                found[key] = plan
        scores = self._scores(list(found.values()))
        self.probed |= dict(zip(found, scores, strict=False))

    def _round(self, steps: int, wanted: int, chance: np.random.Generator) -> None:
        """Tune the policy on the prediction so far, and score the most promising candidates."""
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
        _, table = said(self.learner.policy, self.module)
        self.decisions.table = table
        best = sorted(keys, key=self.known.__getitem__, reverse=True)[:3]

        def propose() -> Plan:
            if chance.random() < 0.5:
                return self.candidates.drawn(perturbed(table, chance))
            return self.candidates.mutated(self.plans[best[int(chance.integers(len(best)))]], table, chance)

        tries = TRIES if self.candidates.counted else 2  # building and measuring is expensive
        pool = self._new([self.candidates.drawn(table)], tries * wanted, propose)
        worth = prediction.hopeful([self.module.key(plan) for plan in pool]) if pool else np.zeros(0)
        order = np.argsort(-worth, kind="stable")
        chosen = [pool[int(place)] for place in order[:wanted]]
        keys = [self.module.key(plan) for plan in chosen]
        self.expected |= dict(zip(keys, prediction.expected(keys).tolist(), strict=True)) if keys else {}
        self._score(chosen)

    def _best(self) -> tuple[Key, dict[Key, float]]:
        """The best candidate; if some are fine-tuned for longer, by their scores after that."""
        order = sorted(self.known, key=self.known.__getitem__, reverse=True)
        some = order[: self.config.finalists]
        if len(some) < 2 or not isinstance(self.scorer, ShortTunings) or self._late():
            return order[0], {}
        begin = time.perf_counter()
        scores = self.scorer([self.plans[key] for key in some], self.config.longer)
        self._seconds += time.perf_counter() - begin
        finals = dict(zip(some, scores, strict=True))
        return max(finals, key=finals.__getitem__), finals

    def _new(self, given: Sequence[Plan], count: int, draw: Callable[[], Plan]) -> list[Plan]:
        """This many candidates that were not scored before: the given ones, then drawn ones."""
        found: dict[Key, Plan] = {}
        waiting = list(given)
        for _ in range(TRIES * max(count, 1)):
            if len(found) >= count:
                break
            plan = waiting.pop(0) if waiting else draw()
            key = self.module.key(plan)
            if key not in self.known and key not in found and self.candidates.allowed(plan):
                found[key] = plan
        return list(found.values())

    def _planned(self) -> int:
        """How many candidates fit into the time, judging by those scored so far."""
        minutes, total = self.config.minutes, self.config.evaluations
        if minutes is None:
            return total
        left = 60 * minutes - (time.perf_counter() - self.started)
        more = int(left * self._made / max(self._seconds, 1e-9))
        if isinstance(self.scorer, ShortTunings):
            more -= self.config.finalists * self.config.longer
        return min(total, len(self.known) + max(more, 0))

    def _score(self, candidates: Sequence[Plan]) -> None:
        """Score as many candidates as fit into the time."""
        for plan, score in zip(candidates, self._scores(candidates), strict=False):
            key = self.module.key(plan)
            self.known[key], self.plans[key] = score, plan
            if self.watch is not None:
                best = {"best": max(self.known.values())}
                done = len(self.known) + len(self.probed) - self._over
                self.watch("scores", done, self.config.evaluations, best)

    def _scores(self, candidates: Sequence[Plan]) -> Iterator[float]:
        """Scores of as many as fit into the time, but at least two: the first may be for comparison only."""
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
