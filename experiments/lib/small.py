"""Keeps the small form of experiments, `--smoke`, apart from published results."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from experiments.lib.settings import Keeps, Settings

MARK = ".smoke"  # a file in folders of runs of the small form
S = TypeVar("S", bound=Settings)


def kept_apart(settings: S, published: Path) -> S:
    """The settings, with results of the small form away from the published ones; makes the folder of runs.

    A folder of runs holds runs of one form only.
    """
    folder = check_runs(settings) if isinstance(settings, Keeps) else None
    if settings.smoke and settings.out == published:
        out = (folder or Path(tempfile.mkdtemp())) / published.name
        print(f"results of --smoke go to {out}", file=sys.stderr)
        return replace(settings, out=out)
    return settings


def check_runs(settings: Keeps) -> Path:
    """The folder of runs; refuse one that holds runs of the other form."""
    runs = settings.runs
    if runs.exists() and not runs.is_dir():
        raise SystemExit(f"{runs} is a file: --runs names a folder")
    small = (runs / MARK).exists()
    if settings.smoke and not small and runs.exists() and any(runs.iterdir()):
        raise SystemExit(f"{runs} has runs of full size, or other files: name a new folder for --smoke")
    if small and not settings.smoke:
        raise SystemExit(f"{runs} has runs of --smoke: name another folder")
    runs.mkdir(parents=True, exist_ok=True)
    if settings.smoke:
        (runs / MARK).touch()
    return runs
