"""Keeps the small form of experiments, `--smoke`, apart from what was measured."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

MARK = ".smoke"  # in a folder of runs of the small form


def kept_apart(arguments: Namespace, results: Path) -> None:
    """See that a folder of runs, which is there then, has those of one form only, and results do not mix either."""
    runs: Path = arguments.runs
    if runs.exists() and not runs.is_dir():
        raise SystemExit(f"{runs} is a file: --runs names a folder")
    small = (runs / MARK).exists()
    if arguments.smoke and not small and runs.exists() and any(runs.iterdir()):
        raise SystemExit(f"{runs} has runs of full size, or other files: name a new folder for --smoke")
    if small and not arguments.smoke:
        raise SystemExit(f"{runs} has runs of --smoke: name another folder")
    runs.mkdir(parents=True, exist_ok=True)
    if arguments.smoke:
        (runs / MARK).touch()
    results_apart(arguments, results, runs)


def results_apart(arguments: Namespace, results: Path, folder: Path | None = None) -> None:
    """Where the results of the small form go, unless `--out` names another place than that of those measured."""
    if arguments.smoke and arguments.out == results:
        arguments.out = (folder or Path(tempfile.mkdtemp())) / results.name
        print(f"results of --smoke go to {arguments.out}", file=sys.stderr)
