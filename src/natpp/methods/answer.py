"""The result of a method's answer: costs, changes, reasons and notes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from natpp.core.budget import SAVES_NOTHING, Budget
from natpp.core.result import Result
from natpp.core.subject import Subject
from natpp.methods.base import Answer

SMALLEST = 1e-300  # probabilities are clamped to at least this


def result_of(subject: Subject, answer: Answer, budget: Budget, settings: Mapping[str, Any]) -> Result:
    """The subject under an answer's plan: costs, changes, reasons and notes."""
    plan, chances, timed = answer.plan, answer.chances, budget.timed or "latency" in budget.limits
    before = subject.own_cost(latency=timed)
    after, cost = subject.made(plan, latency=timed)
    saves = cost.live_params < before.live_params or cost.live_madds < before.live_madds
    log_prob = None
    if chances is not None:
        picked = (max(own[option], SMALLEST) for own, option in zip(chances, plan, strict=True))
        log_prob = math.fsum(map(math.log, picked))
    return Result(
        subject=subject,
        plan=plan,
        after=after,
        cost_before=before,
        cost_after=cost,
        changes=subject.changes(plan, chances),
        log_prob=log_prob,
        chances=chances,
        settings=dict(settings),
        notes=(*subject.notes, *([] if saves or budget.limits or not plan else [SAVES_NOTHING])),
        learned=answer.learned,
    )
