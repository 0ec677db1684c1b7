"""A result as cards: one for each cell or block, before and after, with its decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from natpp.arch.formats import FORMATS, from_dict, to_json
from natpp.arch.graph import NULL, Architecture
from natpp.errors import NatppError
from natpp.report.draw import TITLES
from natpp.report.edges import Book, Change
from natpp.report.inline import cell_pair, cell_picture
from natpp.report.rows import turn


class Cards(NamedTuple):
    """What a page shows of all groups."""

    cards: list[dict[str, Any]]
    changes: list[Change]
    drawings: dict[str, tuple[str, str]]
    """by name: groups that look alike share one"""


def group_cards(data: Mapping[str, Any], book: Book, limit: int | None = None) -> Cards:
    """The groups of a result, at most `limit`, with every decision in the book, and all changes."""
    told = {str(change["name"]): change for change in data["changes"]}
    found = Cards([], [], {})
    for group in data["groups"][:limit]:
        numbers, sites, changed = [], [], 0
        totals = [[0, 0], [0, 0]]
        for place in group["decisions"]:
            number = _booked(place, book)
            numbers.append(number)
            old, new = (side or [0, 0] for side in place["spent"])
            for total, cost in zip(totals, (old, new), strict=True):
                total[0] += cost[0]
                total[1] += cost[1]
            change = told.pop(str(place["name"]), None)
            changed += change is not None
            if place["places"]:
                sites.append(_site(place, number, changed=change is not None))
            if change is not None or old != new:
                found.changes.append(_change(place, number, change, old, new))
        drawing, edges = _drawn(group, numbers, found.drawings)
        found.cards.append(
            {
                "name": str(group["name"]),
                "note": _note_of(group),
                "changed": changed,
                "sites": sites,
                "drawing": drawing,
                "edges": edges,
                "before": totals[0],
                "after": totals[1],
            }
        )
    for place in data.get("elsewhere", ()):
        number, change = _booked(place, book), told.pop(str(place["name"]), None)
        if change is not None:
            old, new = (side or [0, 0] for side in place["spent"])
            found.changes.append(_change(place, number, change, old, new))
    for name, one in told.items():  # in groups that are left out
        found.changes.append(Change(None, name, str(one["before"]), str(one["after"]), one["probability"], None, None))
    found.changes.extend(_rest(data, found.changes))
    return found


def _drawn(
    group: Mapping[str, Any], numbers: Sequence[int], drawings: dict[str, tuple[str, str]]
) -> tuple[str, list[int | None]]:
    """The name of a group's drawing, and for every edge of it the number in the book; fixed edges have none."""
    before, after = (from_dict(group[side]).normal for side in ("before", "after"))
    pair = cell_pair(before, after, tuple(f"{edge.source} → {edge.target}" for edge in before.edges))
    name = f"drawing-{hashlib.sha256(''.join(pair).encode()).hexdigest()[:12]}"
    drawings[name] = pair
    free = iter(numbers)
    return name, [None if edge.fixed else next(free) for edge in before.edges]


def _note_of(group: Mapping[str, Any]) -> str:
    words = ["reduction"] if group["kind"] == "reduce" else []
    return ", ".join([*words, *([f"{group['copies']} times"] if group["copies"] != 1 else [])])


def _booked(place: Mapping[str, Any], book: Book) -> int:
    options = place.get("options") or []
    chances = {str(one["value"]): float(one["probability"]) for one in options if "probability" in one}
    costs = {str(one["value"]): (int(one["cost"][0]), int(one["cost"][1])) for one in options if "cost" in one}
    return book.add(
        name=str(place["name"]),
        before=str(place["before"]),
        after=str(place["after"]),
        alive=(place["spent"][0] is not None, place["spent"][1] is not None),
        place=_where(place["places"]) if "places" in place else str(place["kind"]),
        chances=chances,
        masked={str(one["value"]): str(one["why_not"]) for one in options if "why_not" in one},
        costs=costs,
        note=_note(place, chances),
    )


def _where(places: Sequence[Mapping[str, Any]]) -> str:
    """Channels, size and stride of a place, in all copies of its group."""
    if not places:
        return "a shortcut, or room for one"
    channels = "/".join(dict.fromkeys(_turn(*one["channels"]) for one in places))
    sizes = " / ".join(dict.fromkeys(f"{height} × {width}" for height, width in (one["size"] for one in places)))
    strides = "/".join(dict.fromkeys(str(one["stride"]) for one in places))
    copies = f", {len(places)} places" if len(places) > 1 else ""
    return f"{channels} channels, {sizes}, stride {strides}{copies}"


def _turn(first: int, second: int) -> str:
    return str(first) if first == second else f"{first} → {second}"


def _note(place: Mapping[str, Any], chances: Mapping[str, float]) -> str:
    if not chances:
        return "the file does not have the probabilities of its transitions"
    before, after = place["spent"]
    if before is not None and after is None and place["after"] != NULL:
        return "its output is no longer used"
    if place["after"] != max(chances, key=lambda op: chances[op]):
        return "not the most likely one: sampled, or decided by the budget, the connection or a score"
    return ""


def _site(place: Mapping[str, Any], number: int, *, changed: bool) -> dict[str, Any]:
    old, new = (side or [0, 0] for side in place["spent"])
    gone = place["spent"][1] is None and place["after"] != NULL
    return {
        "edge": number,
        "name": str(place["name"]),
        "before": str(place["before"]),
        "after": "gone" if gone and place["spent"][0] is not None else str(place["after"]),
        "changed": changed,
        "place": _where(place["places"]),
        "params_text": turn(old[0], new[0]),
        "madds_text": turn(old[1], new[1]),
    }


def _change(
    place: Mapping[str, Any], number: int, change: Mapping[str, Any] | None, old: Sequence[int], new: Sequence[int]
) -> Change:
    """A row for a place: a decided change, or an operation that was removed along with others."""
    after, probability = "nothing reads it", None
    if change is not None:
        after = str(change["after"])
        probability = change.get("probability") if place["before"] != place["after"] else None
    saved = old[0] - new[0], old[1] - new[1]
    return Change(number, str(place["name"]), str(place["before"]), after, probability, *saved)


def _rest(data: Mapping[str, Any], found: Sequence[Change]) -> list[Change]:
    """The remaining savings, if all rows give theirs: norms, projections, input maps, widths."""
    if any(one.params is None for one in found):
        return []
    old, new = data["cost_before"], data["cost_after"]
    params = old["live_params"] - new["live_params"] - sum(one.params or 0 for one in found)
    madds = old["live_madds"] - new["live_madds"] - sum(one.madds or 0 for one in found)
    return [Change(None, "around them", "what went with them", "", None, params, madds)] if params or madds else []


# Architectures.


def copied_form(arch: Architecture) -> tuple[str, str]:
    """The shortest form an architecture has as text, and what that form is called."""
    for form in ("genotype", "nasbench201"):
        try:
            return FORMATS[form](arch), {"genotype": "genotype", "nasbench201": "NAS-Bench-201 string"}[form]
        except NatppError:
            continue
    return to_json(arch), "architecture"


def picture(arch: Architecture) -> list[dict[str, str]]:
    """The cells of one architecture."""
    found = []
    for kind, graph in arch.cells():
        names = [f"{edge.source} → {edge.target}" for edge in graph.edges]
        found.append({"title": TITLES[kind], "svg": cell_picture(graph, names)})
    return found
