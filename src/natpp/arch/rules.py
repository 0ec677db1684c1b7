"""Rules: which operation may replace which, and their masks.

Under a strict budget, a transition must also not raise parameters or multiply-adds at any of its places. This is only a
first filter: null → skip can make dead parts live, so `subjects.cells` also compares the costs of whole networks.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.networks import CellBlock, Setting, Skeleton
from natpp.arch.ops import Op, Place
from natpp.core.decision import Change
from natpp.errors import GraphError
from natpp.registry import NETWORKS, OPS, RULES

Mask = NDArray[np.bool_]
Rule = Callable[[Op, Op, Place], bool]  # whether an operation may replace another at a place

TYPE_ORDER = ("conv", "sep_conv", "dil_conv", "pool")  # rule 1 of the paper, from expensive to cheap


def nat(source: Op, target: Op, place: Place) -> bool:
    """Keep the operation, skip it or drop it; skip and null may replace each other."""
    return target is source or target.family in ("skip", "null")


def two_level(source: Op, target: Op, place: Place) -> bool:
    """The rule of NAT++: no type that costs more, no larger kernel; all pools are one type; skip and null as in NAT."""
    if nat(source, target, place):
        return True
    if source.family not in TYPE_ORDER or target.family not in TYPE_ORDER:
        return False
    cheaper_type = TYPE_ORDER.index(target.family) >= TYPE_ORDER.index(source.family)  # rule 1
    return cheaper_type and target.kernel <= source.kernel  # rule 2


def cost(source: Op, target: Op, place: Place) -> bool:
    """Any operation that raises neither parameters nor multiply-adds at the place."""
    (params, madds), (most_params, most_madds) = target.cost(place), source.cost(place)
    return params <= most_params and madds <= most_madds


RULES.add("nat", nat)
RULES.add("nat++", two_level)
RULES.add("cost", cost)


def allowed(rule: str, place: Place, ops: tuple[str, ...] | None = None) -> Mask:
    """The transitions that a rule allows at a place: (ops, ops), row = before, column = after; read-only.

    No operation may become an extra one. An extra may stay, or become one of the thirteen if the rule allows it and it
    does not cost more at the place.

    Examples:
        >>> from natpp.arch.ops import PAPER_OPS, Place
        >>> from natpp.arch.rules import allowed
        >>> table = allowed("nat++", Place(16, 16), PAPER_OPS)
        >>> [name for name, may in zip(PAPER_OPS, table[PAPER_OPS.index("conv_1x1")]) if may]
        ['conv_1x1', 'skip_connect', 'null']
    """
    return _allowed(RULES[rule], place, tuple(OPS[name] for name in ops or OPS))


@functools.lru_cache(maxsize=1 << 12)
def _allowed(check: Rule, place: Place, entries: tuple[Op, ...]) -> Mask:
    table = np.zeros((len(entries), len(entries)), dtype=bool)
    for row, source in enumerate(entries):
        for column, target in enumerate(entries):
            table[row, column] = target is source or (
                not target.extra and check(source, target, place) and (not source.extra or cost(source, target, place))
            )
    table.setflags(write=False)
    return table


def masks(arch: Architecture, rule: str, where: Setting, *, strict: bool = True) -> dict[str, Mask]:
    """Per cell, what is allowed on each edge at all places of the cell: (edges, ops), with ops in the registry's order.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> from natpp.arch.rules import masks
        >>> masks(natpp.load("darts"), "nat++", setting("cifar"))["normal"].shape[0]  # edges
        8
    """
    widths = (len(arch.normal.outputs), len(arch.graph("reduce").outputs))
    places = _places(NETWORKS[where.network], where, widths, tuple(kind for kind, _ in arch.cells()))
    entries = tuple(OPS.values())
    numbers = {name: number for number, name in enumerate(OPS)}
    found = {}
    for kind, graph in arch.cells():
        from_input, from_node = (_everywhere(RULES[rule], some, entries, strict) for some in places[kind])
        mask = np.empty((len(graph.edges), len(entries)), dtype=bool)
        for row, edge in zip(mask, graph.edges, strict=True):
            number = numbers[edge.op]
            if edge.fixed:
                row[:] = False
                row[number] = True
            else:
                row[:] = (from_input if edge.source < NUM_INPUTS else from_node)[number]
        found[kind] = mask
    return found


@functools.lru_cache(maxsize=1 << 12)
def _everywhere(check: Rule, places: frozenset[Place], entries: tuple[Op, ...], strict: bool) -> Mask:
    """The transitions that are allowed at all of these places: (ops, ops)."""
    table = np.ones((len(entries), len(entries)), dtype=bool)
    for place in places:
        table &= _allowed(check, place, entries)
        if strict:
            table &= _allowed(cost, place, entries)
    return table


@functools.lru_cache(maxsize=1 << 10)
def _places(
    skeleton: Skeleton, where: Setting, widths: tuple[int, int], kinds: tuple[str, ...]
) -> dict[str, tuple[frozenset[Place], frozenset[Place]]]:
    """The distinct places of each cell in the network: of edges that read an input, and of edges that read a node."""
    found: dict[str, list[CellBlock]] = {kind: [] for kind in kinds}
    for block in skeleton.layout(where, widths).blocks:
        if isinstance(block, CellBlock):
            found[block.kind if block.kind in found else "normal"].append(block)
    anywhere = frozenset([Place(where.channels, where.channels)])  # if the network does not use the cell
    return {
        kind: (
            frozenset(block.from_input for block in blocks) or anywhere,
            frozenset(block.from_node for block in blocks) or anywhere,
        )
        for kind, blocks in found.items()
    }


def edge_names(arch: Architecture) -> dict[str, list[str]]:
    """Per cell, a name for each edge, such as `reduce 0 → 2`; parallel edges are numbered."""
    found: dict[str, list[str]] = {}
    for kind, graph in arch.cells():
        seen: Counter[str] = Counter()
        found[kind] = []
        for edge in graph.edges:
            name = f"{kind} {edge.source} → {edge.target}"
            seen[name] += 1
            found[kind].append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


def changes(before: Architecture, after: Architecture) -> list[Change]:
    """The edges that changed; both architectures must have the same graphs apart from operations."""
    if not same_graphs(before, after):
        raise GraphError("the two architectures have different graphs, expected graphs that differ in operations only")
    names = edge_names(before)
    return [
        Change(name, "operation", old.op, new.op)
        for (kind, was), (_, now) in zip(before.cells(), after.cells(), strict=True)
        for name, old, new in zip(names[kind], was.edges, now.edges, strict=True)
        if old.op != new.op
    ]


def same_graphs(before: Architecture, after: Architecture) -> bool:
    """Whether two architectures differ only in their operations."""
    return before.topology == after.topology
