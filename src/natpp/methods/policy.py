"""NAT and NAT++: a policy learned by policy gradient, one forward pass for an answer.

`greedy` takes the most likely transition of every edge, `sample` draws once for every edge as the paper does, `best-of`
draws several times and keeps what a scorer likes best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from natpp.config import Among, At, Form, Plain
from natpp.core.decision import Plan
from natpp.core.scores import Score
from natpp.core.subject import Row, Subject, Table
from natpp.errors import SettingError
from natpp.methods.base import Answer, Method, picked
from natpp.methods.learning import LearnConfig, learn
from natpp.nets.policy import Policy, Transitions
from natpp.policies import default, load_named
from natpp.registry import METHODS, RULES
from natpp.run import Run
from natpp.subjects.many import Subjects

SAMPLES, LARGEST_SAMPLES = 10, 1_000_000  # draws of best-of: default and maximum


@dataclass(frozen=True)
class PolicyMethod(Method):
    """A policy: the most likely transition of every edge, or samples.

    Examples:
        >>> from natpp.methods.policy import PolicyMethod
        >>> method = PolicyMethod("nat++", policy="cifar10_accurate")
        >>> method == natpp.registry.METHODS.given("nat++:policy=cifar10_accurate")
        True
        >>> len(natpp.optimize("darts", method).changes)
        3
    """

    rule: Annotated[str, Among(RULES)] | None = None  # type: ignore[misc]
    """rule of the policy"""
    policy: Annotated[str | Path | None, Form("NAME|FILE|RUN")] = None
    """a policy that ships, a policy's file or a run's folder; by default the one that ships"""
    mode: Literal["greedy", "sample", "best-of"] = "greedy"
    """greedy: the likeliest transitions; sample: draw once for every edge; best-of: the best draw by a scorer"""
    samples: Annotated[int, At(1, LARGEST_SAMPLES)] = SAMPLES
    """number of draws of best-of"""
    learn: LearnConfig = LearnConfig()
    """how it learns"""
    learned: Annotated[Policy | None, Plain] = None
    """the learned policy; None before"""
    samples_many = True

    def check(self) -> None:
        if self.mode != "best-of" and self.samples != SAMPLES:
            raise SettingError(f"samples can only be given with the mode best-of, not with {self.mode}")

    @property
    def needs_scores(self) -> bool:  # type: ignore[override]
        """To learn, or to choose among samples."""
        return self.learned is None or self.mode == "best-of"

    @property
    def ops(self) -> tuple[str, ...] | None:
        """The operations that the policy knows."""
        return None if self.learned is None else self.learned.ops

    @property
    def source(self) -> str:
        """Where the policy comes from, for settings."""
        return "given" if self.policy is None and self.learned is not None else str(self.policy)

    def ready(self, rule: str) -> PolicyMethod:
        """The method with its policy loaded; by default the one that ships for the rule."""
        if self.learned is not None:
            return self
        return replace(self, policy=self.policy or default(rule), learned=load_named(self.policy, rule))

    def fit(self, subjects: Subjects, score: Score, chance: np.random.Generator) -> PolicyMethod:
        """Learn the policy."""
        return replace(self, learned=learn(subjects, score, self.learn, chance))

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """The most likely transformation of every subject; with a count above 1, samples of the policy."""
        transitions = self._transitions(subjects)
        choices = transitions.greedy()[None]
        if count > 1:
            choices = transitions.sample(count, torch.Generator().manual_seed(int(chance.integers(2**31))))
        rows = subjects.rows(range(len(subjects)), choices.numpy(), transitions.probabilities(choices))
        found = [row for *_, row in rows]
        return [found[start : start + len(choices)] for start in range(0, len(found), len(choices))]

    def answer(self, subjects: Subjects, score: Any, run: Run) -> Answer:
        """The answer for the only one of some subjects, by a policy that has learned; with limits, within them."""
        (subject,), limits, greedy = subjects.subjects, subjects.limits(0), self.mode == "greedy"
        settings: dict[str, Any] = {"policy": self.source, "mode": self.mode}
        settings |= {} if self.mode != "best-of" else {"samples": self.samples}
        table = table_of(self.learned, subjects)
        noise = None if greedy else np.random.default_rng(run.seed)
        rows: list[Row] = [np.zeros(0, dtype=np.int64)]  # there may be nothing that a policy sees
        if subject.seen:
            transitions, drawn = self._transitions(subjects), torch.Generator().manual_seed(run.seed)
            count = self.samples if self.mode == "best-of" else 1
            rows = [*(transitions.greedy()[None] if greedy else transitions.sample(count, drawn)).numpy()]
        subjects.count([0] * len(rows), rows)
        plans: list[Plan] = []
        for row in rows:
            plan = subject.repaired(subject.plan(row), table[np.arange(len(row)), row].tolist())
            plan = subject.at_least_one(plan, table) if greedy else plan
            plans.append(subject.chosen(plan, table, limits, noise) if limits else plan)
        if self.mode == "best-of":
            (best,) = picked(subjects, [[subject.row(plan) for plan in plans]], score)
            plans = [subject.plan(best)]
        return Answer(plans[0], chances(subject, table), settings)

    def explained(self, subjects: Subjects, plan: Plan) -> Answer:
        """A plan, however it was found, with the probabilities of the policy."""
        return Answer(plan, chances(subjects.subjects[0], table_of(self.learned, subjects)))

    def _transitions(self, subjects: Subjects) -> Transitions:
        assert self.learned is not None
        with torch.no_grad():
            found: Transitions = self.learned(subjects.batch(range(len(subjects))))
        return found


def table_of(policy: Policy | None, subjects: Subjects) -> Table:
    """The log-probabilities of a policy for the only one of some subjects."""
    (subject,) = subjects.subjects
    assert policy is not None
    if not subject.seen:
        return subject.extended(np.zeros((0, len(policy.ops))))
    with torch.no_grad():
        found: Transitions = policy(subjects.batch([0]))
    return subject.extended(found.log_probs.double().numpy())


def chances(subject: Subject, table: Table) -> list[list[float]]:
    """Per decision, the probability of every option."""
    return [row.tolist() for row in subject.preferences(np.exp(table))]


METHODS.add("nat++", PolicyMethod("nat++"))
METHODS.add("nat", PolicyMethod("nat"))
