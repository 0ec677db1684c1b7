"""Table rows of a page as text: costs, measurements, changes, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from natpp.report.charts import cost_text, number

MEASURES = (
    ("multiply-adds", "madds"),
    ("parameters", "params"),
    ("peak memory, bytes", "peak_memory_bytes"),
    ("latency, ms", "latency_ms"),
)
SHOWN = ("name", "command", "learned")  # settings that have their own sections on the page
WHOLE = ("budget", "price")  # settings with several parts that are shown as one


class Change(NamedTuple):
    """A row of the table of changes."""

    edge: int | None
    """number in the book; None if it is not a single edge"""
    name: str
    before: str
    after: str
    probability: float | None
    params: int | None
    """saved cost; None if the file does not have it"""
    madds: int | None


def cost_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Live costs before and after, as numbers and bar widths."""
    found, costs = [], [data["cost_before"], data["cost_after"]]
    for name, key in MEASURES:
        before, after = (cost.get(f"live_{key}", cost.get(key)) for cost in costs)
        if before is None or after is None:
            continue
        timed = key == "latency_ms"
        spreads = [cost.get("latency_spread_ms") if timed else None for cost in costs]
        most = max(before, after) or 1
        found.append(
            {
                "name": name,
                "before": figure(before, spreads[0]),
                "after": figure(after, spreads[1]),
                "short": [number(value) if timed else cost_text(value) for value in (before, after)],
                "change": _percent(after / before - 1) if before else "–",
                "widths": [100 * before / most, 100 * after / most],
            }
        )
    return found


def measured_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Measurements before and after, with their spread and how they were made."""
    found = []
    for row in rows:
        before, after = (
            "–" if row.get(side) is None else figure(float(row[side]), row.get(f"{side}_spread"))
            for side in ("before", "after")
        )
        how = f"{row['how']}; {row.get('spread') or 'measured once, without a spread'}"
        found.append({"what": str(row["what"]), "before": before, "after": after, "how": how})
    return found


def change_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes with the width of their bars, the largest saving first."""
    ordered = sorted(changes, key=lambda one: (-(one.madds or 0), -(one.params or 0)))
    most = max((abs(one.madds or 0) for one in changes), default=0) or 1
    return [one._asdict() | {"width": 100 * max(one.madds or 0, 0) / most} for one in ordered]


def setting_rows(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings of a run; unset ones are left out."""
    rows = []
    for key, value in data.items():
        if key in SHOWN or value is None:
            continue
        if isinstance(value, Mapping) and key not in WHOLE:
            label = "version of" if key == "versions" else f"{key}:"
            rows += [(f"{label} {name.replace('_', ' ')}", plain(one)) for name, one in value.items()]
        else:
            rows.append((key.replace("_", " "), plain(value)))
    return rows


def figure(value: float, spread: float | None = None) -> str:
    """A number in full, with its spread."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return (text if spread is None else f"{text} ± {spread:.2g}").replace("-", "−")


def turn(old: float, new: float) -> str:
    """A cost before and after, or a single cost if it did not change."""
    return cost_text(old) if old == new else f"{cost_text(old)} → {cost_text(new)}"


def plain(value: Any) -> str:
    """A setting in readable form."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(one)}" for key, one in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(plain(one) for one in value) or "–"
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−") if abs(share) >= 0.0005 else "± 0 %"
