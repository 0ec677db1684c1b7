"""Policies that ship: learned once, ready for any architecture. Each is one file, named for what it learned from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from natpp.errors import FormatError, did_you_mean, shortened

if TYPE_CHECKING:
    from natpp.nets.policy import Policy

DEFAULT = "digits"
FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The policies there are."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def load_named(given: str | Path | None = None) -> Policy:
    """A policy by its name, or from its file; by default the one that ships."""
    from natpp.nets.policy import Policy

    if given is None or given in names():
        return Policy.load(FOLDER / f"{given or DEFAULT}.safetensors")
    if not os.path.exists(given) and not Path(given).suffix:
        raise FormatError(
            f"unknown policy {shortened(str(given))}. {did_you_mean(str(given), names())} "
            "Or give a policy's file or a run's folder."
        )
    return Policy.load(given)
