"""Results page: formatting of figures, times and devices."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any


def paragraph(text: str) -> str:
    """A text wrapped at 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def titled(title: str, *texts: str) -> list[str]:
    """The lines of a section with a title and some paragraphs."""
    return [f"## {title}", *prose(*texts)]


def prose(*texts: str) -> list[str]:
    """Some paragraphs, with a blank line before each."""
    return [line for text in texts for line in ("", paragraph(text))]


def table(head: str) -> list[str]:
    """The first lines of a table, after a blank one."""
    return ["", head, "|---" * (head.count("|") - 1) + "|"]


def measured(found: dict[str, float] | None, digits: int) -> str:
    """A mean, with its standard deviation if there is one."""
    if found is None:
        return "–"
    spread = f" ± {found['sd']:.{digits}f}" if found["sd"] else ""
    return f"{found['mean']:,.{digits}f}{spread}"


def counted(number: int, noun: str) -> str:
    """A number with a noun."""
    return f"{number} {noun}" + "s" * (number != 1)


def spread_of(values: list[float], digits: int = 1) -> str:
    """The range of some values."""
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def gathered(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation, 0 for a single value."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def epochs_of(found: dict[str, Any]) -> str:
    """The number of epochs of a training."""
    config = found["recipe"]["config"]
    return f"{config['steps'] * config['batch'] / found['images']:.0f}"


def difference_lines(found: dict[str, Any]) -> list[str]:
    """A line for each difference, with its interval."""
    return [f"- {name}: {with_interval(one, 2, signed=True)}" for name, one in found.items()]


def with_interval(one: dict[str, float] | None, digits: int = 2, *, signed: bool = False) -> str:
    if one is None:
        return "–"
    value, low, high = (with_sign(one[key], digits, signed=signed) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def with_sign(value: float, digits: int = 2, *, signed: bool = True) -> str:
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def per_cent(share: float) -> str:
    return f"{share:+.0%}".replace("-", "−")


def hardware(machine: dict[str, Any]) -> str:
    return f"{machine['gpu'] or machine['processor']}, torch {machine['torch']}"


def memory_used(runs: list[dict[str, Any]]) -> str:
    """The most device memory used, if it was measured."""
    most = [run["reserved_gib"] for run in runs if run.get("reserved_gib")]
    return f", using {max(most):.1f} GiB of its memory" if most else ""


def peak_of(groups: list[dict[str, Any]]) -> str:
    """The most memory of a group of trainings, if it was measured."""
    peaks = [group["peak_memory_gib"] for group in groups if group["peak_memory_gib"]]
    return f", peak {max(peaks):.1f} GiB" if peaks else ""
