"""Fronts of a part's changes, how the knapsack refines them, and what it does with finalists."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import natpp
from natpp.arch.decisions import Decisions
from natpp.core.budget import Budget
from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.fx.trace import trace
from natpp.methods.fronts import MOST, Front, Item, nothing
from natpp.methods.knapsack import Knapsack, Scored
from natpp.registry import KINDS
from natpp.run import Run
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from tests.fx.fx_models import SMALL


def module() -> Module:
    torch.manual_seed(0)
    ask = Decisions(kinds=tuple(KINDS), share_blocks=False)
    return Module(trace(SMALL["resnet"](), torch.randn(1, 3, 16, 16)), ask)


class Known:
    """A score that is known in closed form: what is saved is lost, times a weight for each decision."""

    def __init__(self, subject: Module):
        self.subject = subject
        self.whole = subject.living((0,) * len(subject.decisions))["madds"]
        self.asked: list[tuple[int, ...]] = []

    def estimated(self, changes: Mapping[int, int]) -> float | None:
        if any(number < self.subject.seen for number in changes):
            return None
        return float(sum(option * (1 + number % 3) for number, option in changes.items()))

    def __call__(self, candidates: Sequence[Candidate]) -> Scores:
        self.asked += [one.plan for one in candidates]
        return -np.array([sum(option * (1 + n % 3) for n, option in enumerate(one.plan)) for one in candidates], float)


def some_front(subject: Module) -> Front:
    known = Known(subject)

    def cost(changes: Mapping[int, int]) -> Any:
        found = subject.tried(changes)
        return None if found is None else np.array([found["madds"] - known.whole])

    part = max(subject.together, key=lambda one: sum(number >= subject.seen for number in one))
    return Front(subject, part, cost, known.estimated)


def test_changes_with_and_without_widths_have_a_front_each() -> None:
    subject = module()
    front = some_front(subject)
    alone, every = front.fronts
    leaves = set(front.leaves)
    assert all(item.changes.keys() <= leaves for item in alone)
    assert any(not item.changes.keys() <= leaves for item in every)
    for items in (alone, every):
        costs, losses = [item.cost.sum() for item in items], [item.loss for item in items]
        assert losses == sorted(losses)
        assert costs == sorted(costs, reverse=True)
    keys = [tuple(sorted(item.changes.items())) for item in front.combined()]
    assert len(keys) == len(set(keys)) <= MOST


def test_what_is_near_costs_about_as_much_and_is_not_known() -> None:
    front = some_front(module())
    known = front.combined()
    some = known[len(known) // 2]
    found = front.near(some, known, 3)
    seen = {tuple(sorted(item.changes.items())) for item in known}
    assert len(found) == 3
    assert all(tuple(sorted(item.changes.items())) not in seen for item in found)
    away = [float(abs(item.cost - some.cost).sum()) for item in found]
    assert away == sorted(away)
    assert not front.near(some, [item for one in front.fronts for item in one], 3)


def test_more_changes_are_scored_near_the_best() -> None:
    subject = module()
    subjects = Subjects([subject], Budget.of({"madds": 0.5}))
    scored = Scored(subjects, 0, Known(subject), Run())
    before = [{tuple(sorted(one.changes.items())) for one in items} for items in scored.items]
    scored.refine(subjects.limits(0), 100)
    after = [{tuple(sorted(one.changes.items())) for one in items} for items in scored.items]
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert sum(map(len, after)) > sum(map(len, before))


def test_the_best_finalist_is_the_answer() -> None:
    subject = module()
    limited = Subjects([subject], Budget.of({"madds": 0.6}))

    class Whole(Known):
        """The same for single parts; a plan of several parts is judged by another decision."""

        def __call__(self, candidates: Sequence[Candidate]) -> Scores:
            found = super().__call__(candidates)
            many = [sum(map(bool, one.plan)) > 3 for one in candidates]
            other = [float(sum(one.plan[-3:])) for one in candidates]
            return np.where(many, other, found)

    known = Whole(subject)
    found = Knapsack(finalists=3).answer(limited, known, natpp.Run())
    finalists = [plan for plan in known.asked[-3:] if sum(map(bool, plan)) > 3]
    assert len(set(finalists)) > 1
    assert sum(found.plan[-3:]) == max(sum(plan[-3:]) for plan in finalists)
    assert subject.living(found.plan)["madds"] <= 0.6 * known.whole


def test_nothing_is_an_item() -> None:
    one = nothing(lambda changes: np.zeros(1))
    assert one == Item({}, one.cost, 0.0)
