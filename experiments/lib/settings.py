"""The settings and steps of an experiment, and where its results go."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from natpp.config import Config
from natpp.files import write_whole

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results"  # NAME.json for experiment NAME
RUNS = HERE / "runs"  # published trainings, scores and policies
Step = Callable[[Any], None]


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """What every experiment takes."""

    smoke: bool = False
    """run the small form on a CPU and keep it apart from published results"""
    out: Path
    """file for the results"""


@dataclass(frozen=True, kw_only=True)
class Images(Settings):
    """What an experiment takes that trains on CIFAR-10; the small form trains on digits."""

    root: str | None = None
    """folder that `natpp data cifar10` made"""


@dataclass(frozen=True, kw_only=True)
class Tabled(Settings):
    """What an experiment takes that looks up NAS-Bench-201."""

    table: str | None = None
    """table of NAS-Bench-201, Parquet or CSV"""


@dataclass(frozen=True, kw_only=True)
class Keeps(Settings):
    """What an experiment takes that keeps finished pieces in a folder."""

    runs: Path
    """folder for everything that is finished; what is already there is not done again"""


@dataclass(frozen=True, kw_only=True)
class Reads(Settings):
    """What an experiment takes that only reads such a folder."""

    runs: Path = RUNS / "cells"
    """folder of images_cells with its trainings"""


@dataclass(frozen=True, kw_only=True)
class Trains(Keeps, Images):
    """What an experiment takes that trains groups of networks."""

    seconds: float | None = None
    """start no group of trainings that would end later than this"""
    ray: bool = False
    """train groups on a Ray cluster; ignores --seconds"""


@dataclass(frozen=True)
class Experiment:
    """Settings, and the steps that run with them."""

    settings: type[Settings]
    steps: tuple[Step, ...]
    """in order; one alone needs no name"""
    after: str | None = None
    """experiment whose folder of runs this one continues; without a folder, its small form runs first"""


def write_results(file: Path, found: object) -> None:
    """Write results as indented JSON."""
    write_whole(file, json.dumps(found, indent=1) + "\n")


def read_results(file: Path) -> dict[str, Any]:
    """Results of a file; empty if there is no file."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def flags_of(settings: Settings) -> list[str]:
    """The flags that ask for these settings."""
    found: list[str] = []
    for name, value in settings.changed().items():
        words = [] if value is True else value if isinstance(value, tuple) else [value]
        found += [f"--{name}", *map(str, words)]
    return found
