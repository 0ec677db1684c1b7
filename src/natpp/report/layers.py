"""The layers of a module before and after, in network order: those that changed, and folded, those that did not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from natpp.errors import counted

SHOWN = 40  # most changed layers that are listed one by one; more are folded block by block
MOST = 24  # layers of a block, unless a single module has more
CHUNK = 20  # layers that are folded together where names do not group them
Row = dict[str, Any]


def layer_sections(data: Mapping[str, Any], most: int | None = None) -> list[Row]:
    """The layers of a result in parts: each with its rows, and a title if it is folded; at most `most` rows."""
    rows = [_row(one) for one in data.get("layers", ())][:most]
    if sum(row["changed"] for row in rows) <= SHOWN:
        parts = (list(own) for _, own in itertools.groupby(rows, key=lambda row: row["changed"]))
        found = [_section("" if _listed(own) else f"{len(own)} layers unchanged", own) for own in parts]
    else:
        found = [_section(title if len(own) > 1 else "", own) for title, own in _blocks(rows)]
    _add_widths(rows)
    _add_widths([one for one in found if one["title"] and one["changed"]])
    return found


def total_row(data: Mapping[str, Any]) -> Row:
    """The cost of all layers together."""
    return _summed(data.get("layers", ()))


def _row(layer: Mapping[str, Any]) -> Row:
    before, after = list(layer["before"]), list(layer["after"])
    pairs = zip(before, after, strict=True) if len(before) == len(after) else ((None, part) for part in after)
    return {
        "name": str(layer["name"]),
        "before": [_words(part, part) for part in before],
        "after": [_words(part, old) for old, part in pairs],
        "removed": bool(before) and not after and not any(_after(layer)),
        "changed": before != after or any(layer[figure][0] != layer[figure][1] for figure in ("params", "madds")),
        **_summed([layer]),
    }


def _words(part: Mapping[str, Any], old: Mapping[str, Any] | None) -> Row:
    """What a layer is as an operation and its channels, each with whether it differs from the old one."""
    same = old is not None and part["op"] == old["op"]
    channels = [str(int(one)) for one in part.get("channels", ())]
    others = [str(int(one)) for one in (old or {}).get("channels", ())] if same else []
    pairs = itertools.zip_longest(channels, others[: len(channels)])
    return {"op": str(part["op"]), "new": not same, "channels": [(one, one != other) for one, other in pairs]}


def _after(layer: Mapping[str, Any]) -> list[int]:
    return [int(layer[figure][1]) for figure in ("params", "madds")]


def _summed(layers: Sequence[Mapping[str, Any]]) -> Row:
    return {
        figure: [sum(int(one[figure][side]) for one in layers) for side in (0, 1)] for figure in ("params", "madds")
    }


def _section(title: str, rows: list[Row]) -> Row:
    count = sum(row["changed"] for row in rows)
    note = f"{count} of {counted(len(rows), 'layer')} changed" if count else ""
    return {"title": title, "note": note, "changed": count, "rows": rows, "widths": [0, 0], **_summed(rows)}


def _listed(rows: Sequence[Row]) -> bool:
    return bool(rows[0]["changed"]) or len(rows) == 1


def _add_widths(rows: Sequence[Row]) -> None:
    """Widths of bars: multiply-adds before and after, relative to the largest."""
    most = max((figure for row in rows for figure in row["madds"]), default=0) or 1
    for row in rows:
        row["widths"] = [max(100 * figure / most, 0.1) if figure > 0 else 0 for figure in row["madds"]]


def _blocks(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows in blocks: layers that follow each other and whose names begin alike."""
    names = [row["name"].split(".") for row in rows]
    for depth in range(1, 1 + max(map(len, names))):
        groups = [list(own) for _, own in itertools.groupby(rows, key=lambda row: row["name"].split(".")[:depth])]
        if max(map(len, groups)) <= MOST:
            break
    if len(groups) > len(rows) / 2:
        groups = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    for own in groups:
        first, last = (own[place]["name"] for place in (0, -1))
        same = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(first.split("."), last.split("."), strict=False)
        )
        yield ".".join(one for one, _ in same) or f"{first} to {last}", own
