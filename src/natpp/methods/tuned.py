"""Find the best candidate for one module on its data.

Within a budget, the best plans of the knapsack are fine-tuned side by side (`shortlist`). Without one, in a supernet,
or if only operations and terms may change, a policy is tuned, Eq. (1) of the paper. Scoring a candidate is expensive,
so few are scored and a prediction fitted on them ranks the others. In each round the policy is tuned on the prediction,
candidates are drawn from it and from the best so far, and the most promising are scored. If the module is over its
budget, some that change little and still exceed it are scored too, for comparison. The best few are fine-tuned for
longer, which decides.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from torch import Tensor

from natpp.arch.decisions import Decisions
from natpp.config import At, Form, Plain
from natpp.core.budget import Budget
from natpp.core.decision import Plan
from natpp.core.learned import Learned, Scored
from natpp.core.measures import COUNTED
from natpp.core.subject import Table
from natpp.errors import SettingError
from natpp.methods.base import Answer, Method
from natpp.methods.candidates import TEMPERATURE, Candidates, Tuning, View, by_keys
from natpp.methods.learning import LearnConfig, Learner
from natpp.methods.policy import PolicyMethod, chances, table_of
from natpp.methods.rounds import in_rounds
from natpp.methods.shortlist import NODES, PLANS, Shortlist
from natpp.nets.policy import Policy
from natpp.registry import METHODS
from natpp.run import Run
from natpp.scorers.module_supernet import Expanded
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.scorers.short import WORST, ShortTunings
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.many import Subjects
from natpp.subjects.module import Key, Module
from natpp.subjects.rows import perturbed

EVALUATIONS, MOST_EVALUATIONS = 32, 1000  # candidates scored by default, and at most if there is a time limit
MOST_TRAINED = 64  # fine-tunings whose steps a supernet is trained for, however many candidates are scored
FIRST = 32  # candidates drawn before the time is planned
TRIES = 8  # draws per candidate


@dataclass(frozen=True)
class Tuned(Method):
    """A policy tuned on one module, on predictions from a few scored candidates.

    Examples:
        >>> from natpp.methods.tuned import Tuned
        >>> natpp.registry.METHODS.given("tuned:evaluations=16,minutes=5") == Tuned(evaluations=16, minutes=5)
        True
    """

    evaluations: Annotated[int | None, At(least=2)] = None
    """candidates that are scored; auto: 32, or 12 plans of the knapsack, or as many as fit if `minutes` is given"""
    minutes: Annotated[float | None, At(above=0)] = None
    """time limit: no candidates are scored after it"""
    policy: Annotated[str | Path | None, Form("NAME|FILE|RUN")] = None
    """the policy to start from: one that ships, a policy's file or a run's folder"""
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
    """how scores are predicted"""
    learned: Annotated[Policy | None, Plain] = None
    """the policy to start from, once it is loaded"""
    needs_scores: ClassVar[bool] = True
    refuses: ClassVar[dict[str, str]] = {
        "architecture": "tuned works on modules. For an architecture, use natpp.search(task, on=arch)"
    }

    @property
    def longest(self) -> int:  # type: ignore[override]
        """The factor on the steps of the longer fine-tunings."""
        return self.longer

    @property
    def most(self) -> int:
        """Maximum number of candidates to score."""
        if self.evaluations is not None:
            return self.evaluations
        return EVALUATIONS if self.minutes is None else MOST_EVALUATIONS

    @property
    def ops(self) -> tuple[str, ...] | None:
        """The operations that the policy knows."""
        return None if self.learned is None else self.learned.ops

    def takes_all(self, budget: Budget, scorer: str, single: bool) -> bool:
        """Within a budget on what is counted, if candidates are fine-tuned and have one input."""
        counted = bool(budget.limits) and all(name in COUNTED for name in budget.limits)
        return counted and single and scorer.partition(":")[0] == "short"

    def ready(self, rule: str) -> Tuned:
        """The method with its initial policy loaded."""
        policy = PolicyMethod(rule, self.policy, learned=self.learned).ready(rule)
        return replace(self, policy=policy.policy, learned=policy.learned)

    def answer(self, subjects: Subjects, score: Any, run: Run) -> Answer:
        """The best candidate found for a module on its data."""
        (module,) = subjects.subjects
        if isinstance(score, ShortTunings) and self._lists(subjects, score):
            return self._listed(subjects, score, run)
        settings = {"policy": str(self.policy or "given"), "schedule": score.schedule.to_dict()}
        if not module.seen:
            return Answer(subjects.within(0, (0,) * len(module.before)), None, settings)
        view = View(subjects, self.learned)
        if view.limits:  # the error reports the closest result if the limits cannot be met
            view.within(view.table)
        plan, learned = ModuleSearch(view, score, self, run)()
        return Answer(plan, chances(module, view.table), settings, learned)

    def _lists(self, subjects: Subjects, score: Any) -> bool:
        """Whether the knapsack lists plans to fine-tune: only if there are decisions that no policy sees."""
        module = cast(Module, subjects.subjects[0])
        unseen = set(module.ask.kinds) - set(Decisions().full().kinds)
        single = isinstance(module.traced.example, Tensor)
        fits = isinstance(score, ShortTunings) and score.make_fidelity is not None
        return bool(unseen) and fits and self.takes_all(subjects.budget, score.name, single)

    def _listed(self, subjects: Subjects, score: ShortTunings, run: Run) -> Answer:
        """The best plan of a shortlist."""
        found = Shortlist(
            subjects,
            score,
            run,
            rounds=self.rounds,
            finalists=self.finalists,
            longer=self.longer,
            minutes=self.minutes,
        )
        plan, learned = found(PLANS if self.evaluations is None and self.minutes is None else self.most)
        stopped = {} if found.proved else {"stopped": f"the program, after {NODES} nodes"}
        schedule = {"schedule": score.schedule.to_dict() | {"learning_rate": found.rate}}
        return Answer(plan, settings={**schedule, **stopped}, learned=learned)


class ModuleSearch:
    """The search for what a module should become."""

    def __init__(
        self,
        view: View,
        scorer: ShortTunings | Expanded,
        config: Tuned,
        run: Run,
    ):
        self.view, self.module, self.config, self.seed = view, view.module, config, run.seed
        self.scorer, self.watch = scorer, run.watch
        self.candidates = Candidates(view, view.limits)
        self.learner = Learner(view.policy.ops, config.learn, number(run.seed, Use.START, 3), view.policy)
        self.tuning = Tuning(self.candidates)
        self.known: dict[Key, float] = {}
        self.probed: dict[Key, float] = {}  # over the budget: scored, but not eligible
        self.plans: dict[Key, Plan] = {}
        self.expected: dict[Key, float] = {}  # of candidates that a prediction chose
        self.policy_curve: list[tuple[float, float]] = []
        self._made, self._seconds = 0, 0.0  # number of scores, and their seconds
        self._over = False  # whether the module is over the budget, and scored for comparison only
        self.started = time.perf_counter()

    def __call__(self) -> tuple[Plan, Learned]:
        """The best candidate, and all that was learned."""
        original = (0,) * len(self.module.decisions)
        if isinstance(self.scorer, Expanded):
            steps = min(self.config.most, MOST_TRAINED) * self.scorer.schedule.steps
            chances = functools.partial(generator, self.seed, Use.DRAW, 3)
            self.scorer.train(lambda step: self._random(chances(step)), steps, lambda: self.late(0.5))
        trained = time.perf_counter() - self.started if isinstance(self.scorer, Expanded) else 0.0
        chance = generator(self.seed, Use.SCORE, 3)
        allowed = self.candidates.allowed(original)
        self._over = not allowed
        first = max(round(min(self.config.most, FIRST) * self.config.random_share), 2)
        usual = self.candidates.drawn(self.view.table)
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
        self.chance = chance
        in_rounds(self, total, self.config.rounds)
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
            self.scorer.name,
            spent,
            [self.expected.get(key) for key in self.known],
            self.policy_curve,
            {**scoring, "predicting and learning": spent - sum(scoring.values()) - trained} | weights,
            {list(self.known).index(key): score for key, score in finals.items()},
        )
        return self.plans[best], learned

    def _random(self, chance: np.random.Generator) -> Plan:
        """A candidate drawn from the policy made flatter, or uniformly from all that are allowed."""
        table = self.view.table if chance.random() < 0.5 else self._flat()
        return self.candidates.drawn(perturbed(table, chance, TEMPERATURE))

    def _flat(self) -> Table:
        """Uniform preferences over all that is allowed."""
        return np.where(self.module.mask, 0.0, -1e9)

    def _probe(self, count: int, chance: np.random.Generator) -> None:
        """Score the module with one to three decisions redrawn, ignoring the budget."""
        free = Candidates(self.view, {})
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

    def __len__(self) -> int:
        return len(self.known)

    def score_promising(self, count: int) -> None:
        """Tune the policy on the prediction so far, and score the most promising candidates."""
        keys, seen, chance = list(self.known), self.known | self.probed, self.chance
        steps = -(-self.config.learn.steps // self.config.rounds)
        prediction = Prediction(
            list(seen), np.array(list(seen.values())), self.config.predict, (self.candidates.features,)
        )
        for _ in range(min(steps, self.config.learn.steps - self.learner.steps)):
            step = self.learner.steps
            figures = self.learner.step(
                self.tuning,
                by_keys(prediction.careful),
                generator(self.seed, Use.LEARN, 3, step),
                torch_generator(self.seed, Use.LEARN, 3, step),
            )
            self.policy_curve.append(figures)
        table = table_of(self.learner.policy, self.tuning)
        self.tuning.table = table
        best = sorted(keys, key=self.known.__getitem__, reverse=True)[:3]

        def propose() -> Plan:
            if chance.random() < 0.5:
                return self.candidates.drawn(perturbed(table, chance))
            return self.candidates.mutated(self.plans[best[int(chance.integers(len(best)))]], table, chance)

        tries = TRIES if self.candidates.counted else 2  # building and measuring is expensive
        pool = self._new([self.candidates.drawn(table)], tries * count, propose)
        worth = prediction.hopeful([self.module.key(plan) for plan in pool]) if pool else np.zeros(0)
        order = np.argsort(-worth, kind="stable")
        chosen = [pool[int(place)] for place in order[:count]]
        keys = [self.module.key(plan) for plan in chosen]
        self.expected |= dict(zip(keys, prediction.expected(keys).tolist(), strict=True)) if keys else {}
        self._score(chosen)

    def _best(self) -> tuple[Key, dict[Key, float]]:
        """The best candidate; if some are fine-tuned for longer, by their scores after that."""
        order = sorted(self.known, key=self.known.__getitem__, reverse=True)
        some = order[: self.config.finalists]
        if len(some) < 2 or not isinstance(self.scorer, ShortTunings) or self.late():
            return order[0], {}
        begin = time.perf_counter()
        scores = self.scorer.tuned([self.module.candidate(self.plans[key]) for key in some], self.config.longer)
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
        minutes, total = self.config.minutes, self.config.most
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
                self.watch("scores", done, self.config.most, best)

    def _scores(self, candidates: Sequence[Plan]) -> Iterator[float]:
        """Scores of as many as fit into the time, but at least two: the first may be for comparison only."""
        for start in range(0, len(candidates), self.scorer.at_once):
            if self.late() and self._made > 1:
                return
            some, begin = candidates[start : start + self.scorer.at_once], time.perf_counter()
            scores = self.scorer.tuned([self.module.candidate(plan) for plan in some])
            self._seconds += time.perf_counter() - begin
            self._made += len(some)
            yield from scores

    def late(self, share: float = 1.0) -> bool:
        """Whether a share of the time is over."""
        minutes = self.config.minutes
        return minutes is not None and time.perf_counter() - self.started > 60 * minutes * share


METHODS.add("tuned", Tuned())
