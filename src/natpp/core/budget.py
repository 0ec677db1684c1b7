"""What a budget may limit, and how close a result comes.

A budget of params, madds, memory or latency is a fraction of the original's (at most 1), or a figure. `core.solve`
brings plans within it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from natpp.core.decision import Plan
from natpp.core.measures import Cost, figures_of
from natpp.errors import NatppError, SettingError, did_you_mean, shortened
from natpp.registry import MEASURES

if TYPE_CHECKING:
    from natpp.core.result import Result
    from natpp.core.subject import Subject

Limits = Mapping[str, float]  # the maximum of each figure
NAMED = ("strict", "rule")

SAVES_NOTHING = (
    "this saves neither parameters nor multiply-adds: the policy is not confident in any change that does. To save "
    "some, set a budget such as madds=0.7"
)


class BudgetError(NatppError):
    """A budget that no allowed result meets; it carries the nearest result.

    Examples:
        >>> try:
        ...     natpp.optimize("darts", budget=0.001)
        ... except natpp.BudgetError as error:
        ...     result = error.nearest
        >>> result.cost_after.live_madds < result.cost_before.live_madds
        True
    """

    subject: Subject
    plan: Plan
    """of the nearest result, for this subject"""
    above: float
    """relative excess of the nearest result over the budget"""
    shares: dict[str, float]
    """per exceeded measure, the nearest result's share of the original's"""
    said: str
    """what was asked for, the nearest result, and what stopped it"""
    make: Callable[[Subject, Plan], Result]
    """makes a result; set by `optimize`"""

    @functools.cached_property
    def nearest(self) -> Result:
        """The allowed result that comes closest to the budget, made when it is first read."""
        return self.make(self.subject, self.plan)


@dataclass(frozen=True)
class Budget:
    """What a result may cost.

    Examples:
        >>> natpp.Budget.of("madds=0.6").limits == natpp.Budget.of("0.6").limits == natpp.Budget.of(0.6).limits
        True
        >>> natpp.Budget.of("rule").strict
        False
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    """per measure, the most that is allowed: a fraction of the original's (at most 1), or a figure"""
    strict: bool = True
    """no change may cost more parameters or multiply-adds than what it replaces; else what the rule allows"""
    timed: bool = False
    """measure the latency before and after, even if it is not limited"""

    def __post_init__(self) -> None:
        for name, wanted in self.limits.items():
            if name not in MEASURES:
                raise SettingError(f"unknown cost {name!r} in the budget. {did_you_mean(name, MEASURES)}")
            if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 < wanted < float("inf"):
                raise SettingError(
                    f"the budget of {name} is {wanted!r}, expected a fraction of the original's (at most 1), or a "
                    "figure"
                )

    @staticmethod
    def of(given: Budget | str | float | Mapping[str, float]) -> Budget:
        """A budget from 'strict', 'rule', limits as a mapping or a text, or a fraction of the multiply-adds."""
        if isinstance(given, Budget):
            return given
        if isinstance(given, int | float) and not isinstance(given, bool):
            return Budget({"madds": given})
        if isinstance(given, Mapping):
            return Budget(dict(given))
        if not isinstance(given, str):
            raise SettingError(f"budget is {given!r}, expected 'strict', 'rule' or limits such as {{'madds': 0.6}}")
        if "=" in given:
            return Budget(_read(given))
        with contextlib.suppress(ValueError):
            return Budget({"madds": float(given)})
        if given not in NAMED:
            raise SettingError(f"unknown budget {given!r}. {did_you_mean(given, NAMED)} Or limits, such as madds=0.6")
        return Budget(strict=given == "strict")

    @property
    def said(self) -> str | dict[str, float]:
        """The budget as a result keeps it."""
        return dict(self.limits) or ("strict" if self.strict else "rule")


def _read(text: str) -> dict[str, float]:
    """Limits such as `madds=0.6,latency=0.8`."""
    try:
        limits = [(name.strip(), float(value)) for name, value in (part.split("=") for part in text.split(","))]
    except ValueError:
        raise SettingError(f"budget is {shortened(text)}, expected for example madds=0.6,latency=0.8") from None
    if len(dict(limits)) < len(limits):
        raise SettingError(f"budget is {shortened(text)}, which limits the same cost twice: give each cost once")
    return dict(limits)


def limits_of(wanted: Mapping[str, float], before: Cost) -> dict[str, float]:
    """Figures instead of fractions."""
    figures = figures_of(before)
    return {name: figures[name] * given if given <= 1 else given for name, given in wanted.items()}


def excess(cost: Cost, limits: Limits) -> float:
    """How far a cost exceeds the limit it exceeds most: 0.1 means by a tenth."""
    figures = figures_of(cost)
    return max(figures[name] / limits[name] - 1 for name in limits)


def no_dearer(before: tuple[Sequence[float], bool], after: tuple[Sequence[float], bool]) -> bool:
    """Whether no figure rises, and a connected network stays connected: the strict budget."""
    return all(map(operator.le, after[0], before[0])) and after[1] >= before[1]


def unreachable(subject: Subject, plan: Plan, costs: tuple[Cost, Cost], limits: Limits, why: str) -> BudgetError:
    """The error for a budget that cannot be met: what was asked, the nearest plan, and why there is none below it.

    `costs` are those of the subject and of the nearest plan.
    """
    own, near = map(figures_of, costs)
    over = {name: near[name] / max(own[name], 1e-12) for name in limits if near[name] > limits[name]}
    asked = [
        f"{_figure(name, limits[name])} {MEASURES[name].unit} were asked for, the nearest allowed result has "
        f"{_figure(name, near[name])} ({share:.3f} of the {subject.name}'s)"
        for name, share in over.items()
    ]
    said = f"the budget cannot be met: {'; '.join(asked)}. {why}."
    error = BudgetError(f"{said} Raise the budget, or take the nearest result, which is `.nearest` of this error")
    error.subject, error.plan, error.above = subject, plan, excess(costs[1], limits)
    error.shares, error.said = over, said
    return error


def _figure(name: str, figure: float) -> str:
    return f"{figure:,.4g}" if name == "latency" else f"{figure:,.0f}"
