"""Pretrained policies, ready for any architecture. Each is one file, named after the data it was trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from natpp.errors import FormatError, did_you_mean, shortened
from natpp.folder import read_search

if TYPE_CHECKING:
    from natpp.nets.policy import Policy

BY_RULE = {"nat++": "cifar10", "nat": "cifar10_nat"}  # the default policy of each rule
DEFAULT = BY_RULE["nat++"]
FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the pretrained policies."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def default(rule: str = "nat++") -> str:
    """The pretrained policy of a rule; user-defined rules get that of `nat++`."""
    return BY_RULE.get(rule, DEFAULT)


def card(name: str) -> str | None:
    """The model card of a pretrained policy: data, settings, results and limits of use."""
    file = FOLDER / f"{name}.md"
    return file.read_text(encoding="utf-8") if name in names() and file.exists() else None


def load_named(given: str | Path | None = None, rule: str = "nat++") -> Policy:
    """A policy by name, from a file or from a run's folder; by default the pretrained one for the rule."""
    from natpp.nets.policy import Policy

    if given is None or given in names():
        return Policy.load(FOLDER / f"{given or default(rule)}.safetensors")
    if os.path.isdir(given):
        return Policy.load(run_policy(given))
    if not os.path.exists(given) and not Path(given).suffix:
        raise FormatError(
            f"unknown policy {shortened(str(given))}. {did_you_mean(str(given), names())} "
            "Or give the path of a policy file or a run folder."
        )
    return Policy.load(given)


def run_policy(folder: str | Path) -> Path:
    """The policy file of a run."""
    file = Path(folder) / "policy.safetensors"
    if not file.is_file():
        read_search(folder)  # raises if the folder is not a run
        raise FormatError(
            f"the run {str(folder)!r} has no policy yet, since it has not ended: continue it with --resume"
        )
    return file
