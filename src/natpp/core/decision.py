"""Decisions about a subject, each with its options, and plans that pick one option for each decision."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from natpp.errors import SettingError, did_you_mean

Plan = tuple[int, ...]  # one option number per decision; all zeros: the unchanged subject
REASONS = {
    "rule": "the rule does not allow it",
    "ops": "it is not one of the requested operations",
    "cost": "it would raise the cost here",
    "shape": "its shape does not fit here",
    "connection": "it would disconnect the network",
    "kept": "it was set to stay unchanged",
}


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
    """empty if it is allowed; otherwise one of `REASONS`"""

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
        return [option.value for option in self.options].index(value)


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
