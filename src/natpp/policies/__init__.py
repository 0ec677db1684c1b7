"""Policies that ship: learned once, ready for any architecture. Each is one file, named for what it learned from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from natpp.errors import FormatError, did_you_mean, shortened

if TYPE_CHECKING:
    from natpp.nets.policy import Policy

BY_RULE = {"nat++": "cifar10", "nat": "cifar10_nat"}  # which one answers where none is named
DEFAULT = BY_RULE["nat++"]
FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The policies there are."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def default(rule: str = "nat++") -> str:
    """The policy that ships for a rule; one of the user's own is answered like `nat++`."""
    return BY_RULE.get(rule, DEFAULT)


def card(name: str) -> str | None:
    """What is said about a policy that ships: data, settings, results, and what it must not be used for."""
    file = FOLDER / f"{name}.md"
    return file.read_text(encoding="utf-8") if name in names() and file.exists() else None


def load_named(given: str | Path | None = None, rule: str = "nat++") -> Policy:
    """A policy by its name, or from its file; by default the one that ships for the rule."""
    from natpp.nets.policy import Policy

    if given is None or given in names():
        return Policy.load(FOLDER / f"{given or default(rule)}.safetensors")
    if not os.path.exists(given) and not Path(given).suffix:
        raise FormatError(
            f"unknown policy {shortened(str(given))}. {did_you_mean(str(given), names())} "
            "Or give a policy's file or a run's folder."
        )
    return Policy.load(given)
