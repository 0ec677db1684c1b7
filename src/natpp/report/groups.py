"""A result as cards: one for each cell or block, before and after, with its decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from natpp.arch.formats import FORMATS, from_dict, to_json
from natpp.arch.graph import NULL, Architecture
from natpp.errors import NatppError
from natpp.report.draw import TITLES
from natpp.report.edges import Book
from natpp.report.inline import Pair, cell_pair, cell_picture
from natpp.report.rows import Change

REMOVED = "removed"  # its output is no longer used; null is what was decided
Place = Mapping[str, Any]  # a decision at one place, as a result records it


class Cards(NamedTuple):
    """What a page shows of all groups."""

    cards: list[dict[str, Any]]
    changes: list[Change]
    drawings: dict[str, Pair]
    """by name: groups that look alike share one"""


def group_cards(data: Mapping[str, Any], book: Book, limit: int | None = None) -> Cards:
    """The groups of a result, at most `limit`, with every decision in the book, and all changes."""
    told = {str(change["name"]): change for change in data["changes"]}
    found, last = Cards([], [], {}), ""  # last: the group with operations before
    for group in data["groups"][:limit]:
        rows = [(place, _booked(place, book), told.pop(str(place["name"]), None)) for place in group["decisions"]]
        sites = [_site(*row) for row in rows if row[0]["places"]]
        spent = [_spent(place) for place, _, _ in rows]
        drawing, edges = _drawn(group, [number for _, number, _ in rows], found.drawings)
        card = {
            "name": str(group["name"]),
            "note": _note_of(group, last),
            "changed": sum(not _removed(place) for place, _, change in rows if change),
            "removed": sum(_removed(place) for place, _, _ in rows),
            "sites": sites,
            "drawing": drawing,
            "edges": edges,
            "before": [sum(old[of] for old, _ in spent) for of in (0, 1)],
            "after": [sum(new[of] for _, new in spent) for of in (0, 1)],
        }
        found.cards.append(card)
        found.changes.extend(_change(*row) for row, (old, new) in zip(rows, spent, strict=True) if row[2] or old != new)
        last = str(group["name"]) if sites else last
    for place in data.get("elsewhere", ()):
        number, change = _booked(place, book), told.pop(str(place["name"]), None)
        if change is not None:
            found.changes.append(_change(place, number, change)._replace(edge=None))  # no drawing shows it
    for name, one in told.items():  # in groups that are left out
        found.changes.append(Change(None, name, str(one["before"]), str(one["after"]), one["probability"], None, None))
    found.changes.extend(_rest(data, found.changes))
    return found


def _drawn(group: Mapping[str, Any], numbers: Sequence[int], drawings: dict[str, Pair]) -> tuple[str, list[int | None]]:
    """The name of a group's drawing, and for every edge of it the number in the book; fixed edges have none."""
    before, after = (from_dict(group[side]).normal for side in ("before", "after"))
    pair = cell_pair(before, after, tuple(f"{edge.source} → {edge.target}" for edge in before.edges))
    name = f"drawing-{hashlib.sha256((pair.before + pair.after).encode()).hexdigest()[:12]}"
    drawings[name] = pair
    free = iter(numbers)
    return name, [None if edge.fixed else next(free) for edge in before.edges]


def _note_of(group: Mapping[str, Any], last: str) -> str:
    words = ["reduction"] if group["kind"] == "reduce" else []
    if not any(place["places"] for place in group["decisions"]):
        words.append(f"the sum after {last}" if last else "a sum")
    return ", ".join([*words, *([f"{group['copies']} times"] if group["copies"] != 1 else [])])


def _booked(place: Place, book: Book) -> int:
    options = place.get("options") or []
    edge = {
        **{name: str(place[name]) for name in ("name", "before", "after")},
        "alive": [side is not None for side in place["spent"]],
        "place": _where(place["places"]) if "places" in place else str(place["kind"]),
        "note": _note(place, {str(one["value"]): one["probability"] for one in options if "probability" in one}),
    }
    return book.add(edge, options)


def _where(places: Sequence[Mapping[str, Any]]) -> str:
    """Channels, size and stride of a place, in all copies of its group."""
    if not places:
        return "a shortcut, or room for one"
    channels = "/".join(dict.fromkeys(" → ".join(dict.fromkeys(map(str, one["channels"]))) for one in places))
    sizes = " / ".join(dict.fromkeys("{} × {}".format(*one["size"]) for one in places))
    strides = "/".join(dict.fromkeys(str(one["stride"]) for one in places))
    copies = f", {len(places)} places" if len(places) > 1 else ""
    return f"{channels} {'channel' if channels == '1' else 'channels'}, {sizes}, stride {strides}{copies}"


def _spent(place: Place) -> list[Sequence[int]]:
    """Parameters and multiply-adds of a place, before and after."""
    return [side or [0, 0] for side in place["spent"]]


def _removed(place: Place) -> bool:
    """Whether its operation was removed because its output is no longer used."""
    before, after = place["spent"]
    return before is not None and after is None and place["after"] != NULL


def _note(place: Place, chances: Mapping[str, float]) -> str:
    if not chances:
        return "the file does not have the probabilities of its transitions"
    if _removed(place):
        return "removed, because its output is no longer used"
    if place["after"] != max(chances, key=lambda op: chances[op]):
        return "not the most likely one: sampled, or decided by the budget, the connection or a score"
    return ""


def _site(place: Place, number: int, change: Place | None) -> dict[str, Any]:
    return {
        **{name: str(place[name]) for name in ("name", "before")},
        "edge": number,
        "after": REMOVED if _removed(place) else str(place["after"]),
        "changed": change is not None,
        "place": _where(place["places"]),
        "spent": _spent(place),
    }


def _change(place: Place, number: int, change: Place | None) -> Change:
    """A row for a place: a decided change, or an operation that was removed along with others."""
    after, probability = str(place["after"]), None
    if change is not None:
        after = str(change["after"])
        probability = change.get("probability") if place["before"] != place["after"] else None
    after = REMOVED if _removed(place) else after
    (old_params, old_madds), (new_params, new_madds) = _spent(place)
    saved = old_params - new_params, old_madds - new_madds
    return Change(number, str(place["name"]), str(place["before"]), after, probability, *saved)


def _rest(data: Mapping[str, Any], found: Sequence[Change]) -> list[Change]:
    """The remaining savings, if all rows give theirs: norms, projections, input maps, widths."""
    if any(one.params is None for one in found):
        return []
    old, new = data["cost_before"], data["cost_after"]
    params = old["live_params"] - new["live_params"] - sum(one.params or 0 for one in found)
    madds = old["live_madds"] - new["live_madds"] - sum(one.madds or 0 for one in found)
    several = any(place["before"] != place["after"] for place in data.get("elsewhere", ()))  # widths that meet, ranks
    words = ("several together", "what no single change saves") if several else ("around them", "what went with them")
    return [Change(None, *words, "", None, params, madds)] if params or madds else []


# Architectures.


def copied_form(arch: Architecture) -> tuple[str, str]:
    """The shortest form an architecture has as text, and what that form is called."""
    for form, name in (("genotype", "genotype"), ("nasbench201", "NAS-Bench-201 string")):
        try:
            return FORMATS[form](arch), name
        except NatppError:
            continue
    return to_json(arch), "architecture"


def picture(arch: Architecture) -> list[dict[str, str]]:
    """The cells of one architecture."""
    return [{"title": TITLES[kind], "svg": cell_picture(graph)} for kind, graph in arch.cells()]
