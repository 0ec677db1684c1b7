"""Decisions about a subject, each with its options, and plans that pick one option for each decision."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from natpp.errors import SettingError, UnknownNameError, counted, did_you_mean

Plan = tuple[int, ...]  # one option number per decision; all zeros: the unchanged subject
REASONS = ("rule", "ops", "shape", "cost", "connection", "kept")


@dataclass(frozen=True)
class Option:
    """One alternative, and the reason if it is not allowed.

    Examples:
        >>> from natpp.core.decision import Option
        >>> Option("skip_connect").allowed, Option("conv_3x3", why_not="rule").allowed
        (True, False)
    """

    value: Hashable
    why_not: str = ""
    """empty if it is allowed; otherwise rule, ops, shape, cost, connection or kept"""

    def __post_init__(self) -> None:
        if self.why_not and self.why_not not in REASONS:
            raise SettingError(f"unknown reason {self.why_not!r}. {did_you_mean(self.why_not, REASONS)}")

    @property
    def allowed(self) -> bool:
        """Whether a plan may pick it."""
        return not self.why_not


@dataclass(frozen=True)
class Decision:
    """One choice to make. Option 0 keeps the original; blocks that are decided together share a decision."""

    name: str
    kind: str
    """operation, term, width, rank or merge"""
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        if not self.options or not self.options[0].allowed:
            raise SettingError(f"option 0 of decision {self.name!r} must be the original, and allowed")
        if len({option.value for option in self.options}) < len(self.options):
            raise SettingError(f"decision {self.name!r} lists an option twice")

    @property
    def allowed(self) -> tuple[int, ...]:
        """The numbers of the options that a plan may pick."""
        return tuple(number for number, option in enumerate(self.options) if option.allowed)

    def number(self, value: Hashable) -> int:
        """The number of an option."""
        values = [option.value for option in self.options]
        if value not in values:
            raise UnknownNameError(
                f"unknown option {value!r} of {self.name!r}. {did_you_mean(str(value), map(str, values))}"
            )
        return values.index(value)


@dataclass(frozen=True)
class Change:
    """What changed at one place.

    Examples:
        >>> first = natpp.optimize("naonet").changes[0]
        >>> first.name, first.before, first.after, round(first.probability, 3)
        ('normal 1 → 2', 'avg_pool_5x5', 'max_pool_3x3', 0.999)
    """

    name: str
    """readable name of its place: an edge, a layer, a shortcut"""
    kind: str
    before: Hashable
    after: Hashable
    probability: float | None = None
    """the policy's probability; 1 for what was removed because its output is no longer used, None if unknown"""


def check_plan(decisions: Sequence[Decision], plan: Plan) -> Plan:
    """The plan itself, if it picks one allowed option for every decision."""
    if len(plan) != len(decisions):
        expected = f"expected one for each of {counted(len(decisions), 'decision')}"
        raise SettingError(f"the plan picks {counted(len(plan), 'option')}, {expected}")
    for decision, number in zip(decisions, plan, strict=True):
        if not 0 <= number < len(decision.options):
            raise SettingError(
                f"{decision.name!r} has {counted(len(decision.options), 'option')}, but the plan picks {number}"
            )
        if not (option := decision.options[number]).allowed:
            raise SettingError(f"{decision.name!r} cannot become {option.value!r}: forbidden by {option.why_not}")
    return plan


def changes_of(decisions: Sequence[Decision], plan: Plan) -> dict[str, Hashable]:
    """What a plan changes: the new value of each changed decision, by name.

    Examples:
        >>> from natpp.core.decision import Decision, Option, changes_of, plan_of
        >>> kernel, width = (Decision(name, "width", (Option(1), Option(0.5))) for name in ("kernel", "width"))
        >>> changes_of([kernel, width], (0, 1)), plan_of([kernel, width], {"width": 0.5})
        ({'width': 0.5}, (0, 1))
    """
    return {one.name: one.options[number].value for one, number in zip(decisions, plan, strict=True) if number}


def plan_of(decisions: Sequence[Decision], changes: Mapping[str, Hashable]) -> Plan:
    """The plan that makes these changes: the inverse of `changes_of`."""
    names = [decision.name for decision in decisions]
    if len(set(names)) < len(names):
        raise SettingError("two decisions have the same name")
    if unknown := sorted(changes.keys() - set(names)):
        raise UnknownNameError(f"unknown decision {unknown[0]!r}. {did_you_mean(unknown[0], names)}")
    plan = tuple(one.number(changes[one.name]) if one.name in changes else 0 for one in decisions)
    return check_plan(decisions, plan)
