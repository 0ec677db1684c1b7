"""The best plans of the knapsack, fine-tuned side by side: what they reach corrects what the knapsack predicts.

Every plan is fitted to the original before it is fine-tuned, at a learning rate that suits such a start. After each
round, predicted losses are corrected by measured ones, and the program is solved again.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import fx

from natpp.core.decision import Plan
from natpp.core.learned import Learned, Scored
from natpp.core.program import Items
from natpp.errors import SettingError
from natpp.methods import knapsack
from natpp.methods.rounds import in_rounds
from natpp.run import Run
from natpp.scorers.short import WORST, ShortTunings
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.training.branch import Build

PLANS, FIRST = 12, 8  # plans that are fine-tuned by default, and those of them before any correction
RATES = (0.002, 0.006, 0.02)  # learning rates that are tried on the best plan
NODES = 3000  # of the program's search
NOISE = 0.1  # variance of a measured loss, relative to that of the correction of an item


class Shortlist:
    """Plans for a module within its limits, and the losses measured after fine-tuning them."""

    def __init__(
        self,
        subjects: Subjects,
        scorer: ShortTunings,
        run: Run,
        *,
        rounds: int,
        finalists: int,
        longer: int,
        minutes: float | None,
    ):
        self.module = cast(Module, subjects.subjects[0])
        self.scorer, self.run, self.rounds, self.finalists, self.longer = scorer, run, rounds, finalists, longer
        self.started = time.perf_counter()
        self.ends = None if minutes is None else self.started + 60 * minutes
        assert scorer.make_fidelity is not None
        self.near = scorer.make_fidelity()
        self.scored = knapsack.Scored(subjects, 0, self.near, run)
        self.limits = subjects.limits(0)
        self.scored.refine(self.limits, NODES)
        self.predicted = [[one.loss for one in items] for items in self.scored.items]
        self.known: dict[Plan, float] = {}
        self.items: dict[Plan, Items] = {}
        self.fitted: dict[Plan, fx.GraphModule] = {}
        self.proved = True
        self.rate: float | None = None

    def __call__(self, most: int) -> tuple[Plan, Learned]:
        """The best plan of at most so many, and all that was measured."""
        self.score_promising(min(FIRST, most))
        if max(self.known.values()) <= WORST:
            raise SettingError("the loss of every plan is not a number: look at data and loss")
        in_rounds(self, most, self.rounds)
        best, finals = self._best()
        (own,) = self.scorer.trained([self._build((0,) * len(best))], self.rate)
        plans, spent = list(self.known), time.perf_counter() - self.started
        scored = [
            Scored(score, tuple(self.module.block_ops(plan)), float(self.module.living(plan)["madds"]))
            for plan, score in self.known.items()
        ]
        phases = {**self.scorer.spent, "choosing and fitting": spent - sum(self.scorer.spent.values())}
        learned = Learned(
            scored,
            plans.index(best),
            own,
            None,
            self.scorer.name,
            spent,
            phases=phases,
            finals={plans.index(plan): score for plan, score in finals.items()},
        )
        return best, learned

    def __len__(self) -> int:
        return len(self.known)

    def late(self) -> bool:
        """Whether the time is up."""
        return self.ends is not None and time.perf_counter() > self.ends

    def score_promising(self, count: int) -> None:
        """Fine-tune the best plans that are not known yet, by losses that are corrected by those that are."""
        self._correct()
        found, proved = self.scored.within(self.limits, count + len(self.known), NODES)
        self.proved &= proved
        new = {plan: items for plan, items in found.items() if plan not in self.known}
        self.items |= dict(list(new.items())[:count])
        plans = [plan for plan in self.items if plan not in self.known]
        if self.rate is None and plans:
            self.rate = self._usual_rate(plans[0])
        step = self.scorer.at_once
        for start in range(0, len(plans), step):
            if self.late() and self.known:
                return
            some = plans[start : start + step]
            self.known |= dict(zip(some, self.scorer.trained([*map(self._build, some)], self.rate), strict=True))
            if self.run.watch is not None:
                self.run.watch("plans", len(self.known), len(self.items), {"best": max(self.known.values())})

    def _usual_rate(self, plan: Plan) -> float:
        """The learning rate that is best for a plan, unless one was given."""
        if self.scorer.rate is not None:
            return self.scorer.rate
        found = {rate: self.scorer.trained([self._build(plan)], rate)[0] for rate in RATES}
        return max(found, key=found.__getitem__)

    def _build(self, plan: Plan) -> Build:
        """A function that makes the module under a plan, fitted to the original once."""
        if plan not in self.fitted:
            self.fitted[plan] = self.near.fitted(plan)
        return functools.partial(copy.deepcopy, self.fitted[plan])

    def _best(self) -> tuple[Plan, Mapping[Plan, float]]:
        """The best plan; if some are fine-tuned for longer, by their losses after that."""
        order = sorted(self.known, key=self.known.__getitem__, reverse=True)
        some = order[: self.finalists]
        if len(some) < 2 or self.late():
            return order[0], {}
        scores = self.scorer.trained([*map(self._build, some)], self.rate, self.longer)
        finals = dict(zip(some, scores, strict=True))
        return max(finals, key=finals.__getitem__), finals

    def _correct(self) -> None:
        """Move the predicted losses of items towards what the plans that have them lose."""
        plans = [plan for plan, score in self.known.items() if score > WORST]
        if len(plans) < 3:
            return
        rows = [self.items[plan] for plan in plans]
        moved = corrected(self.predicted, rows, [-self.known[plan] for plan in plans])
        self.scored.items = [
            [one._replace(loss=float(loss)) for one, loss in zip(items, losses, strict=True)]
            for items, losses in zip(self.scored.items, moved, strict=True)
        ]


def corrected(
    predicted: Sequence[Sequence[float]], plans: Sequence[Items], losses: Sequence[float]
) -> list[NDArray[np.float64]]:
    """Predicted losses of the items of every part, corrected by the measured losses of some plans.

    A plan's loss is a constant, plus the predicted losses of its items to scale, plus a correction of each item:
    the smallest corrections that explain what was measured, up to noise.

    Examples:
        >>> from natpp.methods.shortlist import corrected
        >>> [part.round(1).tolist() for part in corrected([[0, 1], [0, 1]], [(1, 0), (0, 1), (1, 1)], [1, 2, 3])]
        [[0.0, 0.8], [0.0, 1.2]]
    """
    sums = np.array([sum(max(part[item], 0.0) for part, item in zip(predicted, plan, strict=True)) for plan in plans])
    measured = np.array(losses, dtype=np.float64)
    away = sums - sums.mean()
    scale = max(float(away @ measured) / max(float(away @ away), 1e-12), 1e-3)
    left = measured - measured.mean() - scale * away
    same = np.array([[sum(a == b for a, b in zip(one, other, strict=True)) for other in plans] for one in plans])
    shares = np.linalg.solve(same + NOISE * len(predicted) * np.eye(len(plans)), left)
    found = [np.maximum(np.array(part, dtype=np.float64), 0.0) for part in predicted]
    for plan, share in zip(plans, shares, strict=True):
        for part, item in enumerate(plan):
            if item:
                found[part][item] += share / scale
    return found
