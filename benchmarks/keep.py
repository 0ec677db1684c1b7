"""Output file of a benchmark: a given file, or one named by date in `benchmarks/results/`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import natpp

RESULTS = Path(__file__).parent / "results"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--json FILE` and `--keep`, which exclude each other."""
    flags = parser.add_mutually_exclusive_group()
    flags.add_argument("--json", type=Path, help="file to write the results to")
    flags.add_argument("--keep", action="store_true", help="write them to benchmarks/results/, by date")


def file_of(options: argparse.Namespace, name: str, *, small: bool = False) -> Path | None:
    """The file that the flags select, or None; results of a small form are not kept."""
    if not options.keep:
        given: Path | None = options.json
        return given
    if small:
        raise SystemExit("--keep is for full-size results; this is the small form, for machines without a GPU")
    return RESULTS / f"{datetime.date.today()}-{name}.json"


def machine() -> dict[str, Any]:
    """Versions and hardware, saved with the results."""
    return {
        "natpp": natpp.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _commit() -> str | None:
    """The checked-out commit, marked if files differ from it; None outside a clone."""
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    """The processor's name, if the system provides it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
