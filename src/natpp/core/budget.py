"""What a budget may limit, and how close a result comes.

A budget of params, madds, memory or latency is a fraction of the original's (at most 1), or a figure. `core.solve`
brings plans within it.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from natpp.core.measures import Cost, figures_of
from natpp.errors import NatppError, SettingError, did_you_mean, shortened
from natpp.registry import MEASURES

Limits = Mapping[str, float]  # the maximum of each figure
NAMED = ("strict", "rule")

SAVES_NOTHING = (
    "this saves neither parameters nor multiply-adds: the policy is not confident in any change that does. To save "
    "some, set a budget such as madds=0.7"
)


class BudgetError(NatppError):
    """A budget that no allowed result meets."""

    above: float = float("inf")
    """relative excess of the nearest result over the budget"""


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


def unreachable(before: Cost, limits: Limits, nearest: Cost, whose: str, way: str) -> BudgetError:
    """The error for a budget that cannot be met: what was asked, the closest result, and `way`, what else to try."""
    own, near = figures_of(before), figures_of(nearest)
    said = [
        f"{_figure(name, limits[name])} {MEASURES[name].unit} were asked for, the nearest allowed result has "
        f"{_figure(name, near[name])} ({near[name] / max(own[name], 1e-12):.3f} of the {whose}'s)"
        for name in limits
        if near[name] > limits[name]
    ]
    error = BudgetError(f"the budget cannot be met: {'; '.join(said)}. {way}")
    error.above = excess(nearest, limits)
    return error


def _figure(name: str, figure: float) -> str:
    return f"{figure:,.4g}" if name == "latency" else f"{figure:,.0f}"
