"""One form for all isomorphic graphs: colour refinement, then the smallest encoding over what it leaves tied.

Nodes that refinement cannot tell apart are told apart by force, one after the other, and the smallest
encoding wins. Branches that turn out equal are symmetric, and only one of them is followed. Cells take
a fraction of a millisecond; dozens of like branches of several nodes each take seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Inputs = Sequence[Sequence[tuple[str, int]]]  # per node from 2 on: its (op, source)
Encoding = tuple[tuple[tuple[tuple[str, int], ...], ...], tuple[int, ...] | None]


def canonical_inputs(nodes: Inputs, concat: Sequence[int] | None) -> Encoding:
    """Nodes and concat list renamed to the canonical order; the inputs 0 and 1 keep their names."""
    return _smallest(nodes, concat, _refined(nodes, _first_colours(nodes, concat)))


def _first_colours(nodes: Inputs, concat: Sequence[int] | None) -> list[int]:
    """Colours by depth first, so that sorting by colour keeps sources before targets."""
    depth = [0, 0]
    for inputs in nodes:
        depth.append(1 + max((depth[source] for _, source in inputs), default=0))
    chosen = set(concat or ())
    keys = [(depth[node], node if node < 2 else 2, node in chosen) for node in range(len(depth))]
    return _ranked(keys)


def _refined(nodes: Inputs, colours: list[int]) -> list[int]:
    """Colours split by the colours of neighbours, until nothing splits any more."""
    readers: list[list[tuple[str, int]]] = [[] for _ in colours]
    for target, inputs in enumerate(nodes, start=2):
        for op, source in inputs:
            readers[source].append((op, target))
    while True:
        keys = []
        for node, colour in enumerate(colours):
            below = sorted((op, colours[source]) for op, source in nodes[node - 2]) if node >= 2 else []
            above = sorted((op, colours[target]) for op, target in readers[node])
            keys.append((colour, below, above))
        finer = _ranked(keys)
        if max(finer) == max(colours):
            return finer
        colours = finer


def _smallest(nodes: Inputs, concat: Sequence[int] | None, colours: list[int]) -> Encoding:
    tied = _tied(colours)
    if not tied:
        return _encoded(nodes, concat, colours)
    best = None
    leaves = set()
    for node in _without_twins(nodes, tied):
        split = _refined(nodes, _singled_out(colours, node))
        leaf = _leaf(nodes, concat, split)
        if leaf in leaves:  # symmetric to a branch already followed
            continue
        leaves.add(leaf)
        found = _smallest(nodes, concat, split)
        best = found if best is None or _key(found) < _key(best) else best
    assert best is not None
    return best


def _without_twins(nodes: Inputs, tied: list[int]) -> list[int]:
    """The nodes without those that read and are read exactly as one before them."""
    seen: dict[object, int] = {}
    for node in tied:
        readers = [(target, op) for target, inputs in enumerate(nodes) for op, source in inputs if source == node]
        seen.setdefault((tuple(sorted(nodes[node - 2])), tuple(sorted(readers))), node)
    return list(seen.values())


def _leaf(nodes: Inputs, concat: Sequence[int] | None, colours: list[int]) -> Encoding:
    """The encoding at the end of the first branch, whatever the others give."""
    while tied := _tied(colours):
        colours = _refined(nodes, _singled_out(colours, tied[0]))
    return _encoded(nodes, concat, colours)


def _tied(colours: list[int]) -> list[int]:
    """The nodes of the first colour that more than one node has."""
    counts = Counter(colours)
    shared = min((colour for colour, count in counts.items() if count > 1), default=None)
    return [node for node, colour in enumerate(colours) if colour == shared] if shared is not None else []


def _singled_out(colours: list[int], node: int) -> list[int]:
    return _ranked([(colour, other != node) for other, colour in enumerate(colours)])


def _encoded(nodes: Inputs, concat: Sequence[int] | None, colours: list[int]) -> Encoding:
    """The graph with every node named by its colour."""
    order = sorted(range(2, len(colours)), key=lambda node: colours[node])
    renamed = tuple(tuple(sorted((op, colours[source]) for op, source in nodes[node - 2])) for node in order)
    return renamed, None if concat is None else tuple(sorted(colours[node] for node in concat))


def _key(encoding: Encoding) -> tuple[object, ...]:
    nodes, concat = encoding
    return nodes, concat or ()


def _ranked(keys: Sequence[tuple[object, ...]]) -> list[int]:
    """Keys replaced by their rank among the distinct ones."""
    ranks = {key: rank for rank, key in enumerate(sorted({_frozen(key) for key in keys}))}
    return [ranks[_frozen(key)] for key in keys]


def _frozen(key: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in key)
