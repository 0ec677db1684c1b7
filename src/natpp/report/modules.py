"""A changed module for the report: its blocks, each a graph before and after, with its sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from natpp.arch.graph import NULL, Graph
from natpp.errors import FormatError
from natpp.report.edges import Book, Change
from natpp.report.inline import cell_pair
from natpp.report.rows import turn

NO_COST = (0, 0)


def block_figures(
    data: Mapping[str, Any], book: Book, limit: int | None = None
) -> tuple[list[dict[str, Any]], list[Change], dict[str, tuple[str, str]]]:
    """The blocks, the changes, and the drawings by name: blocks that look alike share one; at most `limit` blocks."""
    told = {str(change["name"]): change for change in data["changes"]}
    blocks, drawings = [], {}
    found: list[Change] = []
    for block in data["blocks"][:limit]:
        terms: Sequence[Mapping[str, Any]] = block["terms"]
        before, after = (_graph(block, side) for side in ("before", "after"))
        numbers: list[int] = []
        changed = 0
        sites: list[dict[str, Any]] = []
        totals = [[0, 0], [0, 0]]
        for term in terms:
            name = term.get("name") or term["site"] or f"{block['name']} [{term['from']} → {term['to']}]"
            number, costs = _term(data, block, term, name, book)
            numbers.append(number)
            alive = term.get("alive", [True, True])
            old, new = (
                tuple(costs.get(term[side], NO_COST)) if lives else NO_COST
                for side, lives in zip(("before", "after"), alive, strict=True)
            )
            for total, cost in zip(totals, (old, new), strict=True):
                total[0] += cost[0]
                total[1] += cost[1]
            change = told.pop(name, None)
            if term["site"] is not None:
                sites.append(_site(term, number, alive, old, new, changed=change is not None))
            changed += change is not None
            if change is not None or (costs and old != new):
                known = bool(costs) or term["site"] is None
                saved = (old[0] - new[0], old[1] - new[1]) if known else (None, None)
                found.append(_change(term, number, name, change, saved))
        free = [index for index, edge in enumerate(before.edges) if not edge.fixed]
        pair = cell_pair(before, after, tuple(f"{edge.source} → {edge.target}" for edge in before.edges))
        key = f"drawing-{hashlib.sha256(''.join(pair).encode()).hexdigest()[:12]}"
        drawings[key] = pair
        edges: list[int | None] = [None] * len(before.edges)
        for index, number in zip(free, numbers, strict=True):
            edges[index] = number
        blocks.append(
            {
                "name": str(block["name"]),
                "kind": str(block["kind"]),
                "changed": changed,
                "sites": sites,
                "drawing": key,
                "edges": edges,
                "before": totals[0],
                "after": totals[1],
            }
        )
    for name, change in told.items():  # of a file that does not name its terms, or of blocks that are left out
        probability = float(change["probability"])
        found.append(Change(None, name, str(change["before"]), str(change["after"]), probability, None, None))
    return blocks, [*found, *_rest(data, found)], drawings


def _change(
    term: Mapping[str, Any],
    number: int,
    name: str,
    change: Mapping[str, Any] | None,
    saved: tuple[int | None, int | None],
) -> Change:
    """A row for a term: of a change that was decided, or of something that went with others."""
    after, probability = "nothing reads it", None
    if change is not None:
        after = str(change["after"])
        probability = float(change["probability"]) if term["before"] != term["after"] else None
    return Change(number, name, str(term["before"]), after, probability, *saved)


def _rest(data: Mapping[str, Any], found: Sequence[Change]) -> list[Change]:
    """What was saved besides, where all rows say what they save: norms, projections and what only fed a branch."""
    saved = [(one.params, one.madds) for one in found if one.params is not None and one.madds is not None]
    if len(saved) < len(found):
        return []
    old, new = data["cost_before"], data["cost_after"]
    params = old["params"] - new["params"] - sum(one[0] for one in saved)
    madds = old["madds"] - new["madds"] - sum(one[1] for one in saved)
    return [Change(None, "around them", "what went with them", "", None, params, madds)] if params or madds else []


def _term(
    data: Mapping[str, Any], block: Mapping[str, Any], term: Mapping[str, Any], name: str, book: Book
) -> tuple[int, dict[str, tuple[int, int]]]:
    chances = dict((data.get("probabilities") or {}).get(name, {}))
    masked = dict((data.get("masked") or {}).get(name, {}))
    costs = {op: (int(cost[0]), int(cost[1])) for op, cost in (term.get("costs") or {}).items()}
    if term["site"] is None:
        costs = {}
    place = "a shortcut, or room for one" if term["site"] is None else _place(term)
    number = book.add(
        name=name,
        before=str(term["before"]),
        after=str(term["after"]),
        alive=tuple(term.get("alive", [True, True])),
        place=place,
        chances=chances,
        masked=masked,
        costs=costs,
        note=_note(term, chances),
    )
    return number, costs


def _note(term: Mapping[str, Any], chances: Mapping[str, float]) -> str:
    if not chances:
        return "how likely its transitions were is not in the file"
    alive = term.get("alive", [True, True])
    if alive[0] and not alive[1] and term["after"] != NULL:
        return "it went with its block: nothing reads it any more"
    likeliest = max(chances, key=lambda op: chances[op])
    if term["after"] != likeliest:
        return "not the likeliest: the budget, the connection or a score decided"
    return ""


def _place(term: Mapping[str, Any]) -> str:
    first, second = term["channels"]
    height, width = term["size"]
    channels = f"{first} channels" if first == second else f"{first} → {second} channels"
    return f"{channels}, {height} × {width}, stride {term['stride']}"


def _site(
    term: Mapping[str, Any],
    number: int,
    alive: Sequence[bool],
    old: Sequence[int],
    new: Sequence[int],
    *,
    changed: bool,
) -> dict[str, Any]:
    return {
        "edge": number,
        "name": str(term["site"]),
        "before": str(term["before"]),
        "after": str(term["after"]) if alive[1] or term["after"] == NULL else "gone",
        "changed": changed,
        "place": _place(term),
        "params_text": turn(old[0], new[0]),
        "madds_text": turn(old[1], new[1]),
    }


def _graph(block: Mapping[str, Any], side: str) -> Graph:
    nodes: dict[int, list[tuple[str, int]]] = {}
    for term in block["terms"]:
        nodes.setdefault(int(term["to"]), []).append((str(term[side]), int(term["from"])))
    if sorted(nodes) != list(range(2, len(nodes) + 2)):
        raise FormatError(f"the block {block['name']!r} has nodes that nothing leads to")
    return Graph.from_inputs([nodes[node] for node in sorted(nodes)], block["outputs"])
