"""Canonical form of isomorphic graphs: colour refinement, then the smallest encoding of what remains tied.

Nodes that refinement cannot distinguish are solved in connected groups, independently, since groups are only connected
through nodes that are already ordered. Within a group, ties are broken by individualizing one node after the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

Nodes = Sequence[Sequence[tuple[str, int]]]  # for each node from 2 on: its (op, source) pairs
Encoding = tuple[tuple[tuple[tuple[str, int], ...], ...], tuple[int, ...] | None]
Colours = dict[int, tuple[int, ...]]  # compared as tuples; a finer colour extends the coarser one


def canonical_inputs(nodes: Nodes, concat: Sequence[int] | None) -> Encoding:
    """Nodes and concat list in canonical order; the inputs keep the names 0 and 1."""
    graph = _Graph(nodes)
    everything = list(range(len(nodes) + 2))
    order = graph.ordered(everything, graph.refined(everything, _first_colours(nodes, concat)))
    names = {node: name for name, node in enumerate(order)}
    renamed = tuple(tuple(sorted((op, names[source]) for op, source in nodes[node - 2])) for node in order[2:])
    return renamed, None if concat is None else tuple(sorted(names[node] for node in concat))


def _first_colours(nodes: Nodes, concat: Sequence[int] | None) -> Colours:
    """Inputs first, then nodes by depth, so that sorting by colour keeps sources before targets."""
    depth = [-2, -1]
    for inputs in nodes:
        depth.append(1 + max((max(depth[source], 0) for _, source in inputs), default=0))
    chosen = set(concat or ())
    return {node: (level, node in chosen) for node, level in enumerate(depth)}


class _Graph:
    """Edges in both directions."""

    def __init__(self, nodes: Nodes):
        self.sources: list[list[tuple[str, int]]] = [[], [], *map(list, nodes)]
        self.readers: list[list[tuple[str, int]]] = [[] for _ in self.sources]
        for target, inputs in enumerate(nodes, start=2):
            for op, source in inputs:
                self.readers[source].append((op, target))

    def ordered(self, members: list[int], colours: Colours) -> list[int]:
        """The canonical order of some nodes with refined colours."""
        counts = Counter(colours[node] for node in members)
        tied = [node for node in members if counts[colours[node]] > 1]
        solved = sorted(self._group_order(group, colours) for group in self._groups(tied))
        place = {node: (rank, i) for rank, (_, order) in enumerate(solved) for i, node in enumerate(order)}
        return sorted(members, key=lambda node: (colours[node], place.get(node, (0, 0))))

    def refined(self, members: list[int], colours: Colours) -> Colours:
        """Colours of members, split by the colours of their neighbours among them until nothing changes."""
        inside = set(members)
        ranks = _ranks({node: colours[node] for node in members})
        while True:
            keys = {}
            for node in members:
                below, above = (
                    tuple(sorted((op, ranks[other]) for op, other in ends[node] if other in inside))
                    for ends in (self.sources, self.readers)
                )
                keys[node] = ranks[node], below, above
            finer = _ranks(keys)
            if max(finer.values(), default=0) == max(ranks.values(), default=0):
                return colours | {node: (*colours[node], finer[node]) for node in members}
            ranks = finer

    def _groups(self, tied: list[int]) -> list[list[int]]:
        """Connected groups of tied nodes."""
        left, groups = set(tied), []
        for first in tied:
            if first not in left:
                continue
            left.remove(first)
            group = [first]
            for node in group:  # the list grows during the loop
                for _, other in self.sources[node] + self.readers[node]:
                    if other in left:
                        left.remove(other)
                        group.append(other)
            groups.append(group)
        return groups

    def _group_order(self, group: list[int], colours: Colours) -> tuple[object, list[int]]:
        """The smallest encoding of a group and the order that gives it."""
        classes = defaultdict(list)
        for node in group:
            classes[colours[node]].append(node)
        shared = min((colour for colour, nodes in classes.items() if len(nodes) > 1), default=None)
        if shared is None:
            return self._encoded(sorted(group, key=lambda node: colours[node]), colours)
        twins: dict[object, int] = {}  # nodes with the same neighbours are interchangeable
        for node in classes[shared]:
            twins.setdefault((tuple(sorted(self.sources[node])), tuple(sorted(self.readers[node]))), node)
        found = []
        for node in twins.values():
            forced = {other: (*colours[other], int(other != node)) for other in group}
            order = self.ordered(group, self.refined(group, colours | forced))
            found.append(self._encoded(order, colours))
        return min(found)

    def _encoded(self, order: list[int], colours: Colours) -> tuple[object, list[int]]:
        """All edges of a group's nodes: to nodes of the group by position, to others by colour."""
        position = {node: (1, (index,)) for index, node in enumerate(order)}

        def ends(edges: list[tuple[str, int]]) -> list[tuple[str, tuple[int, tuple[int, ...]]]]:
            return sorted((op, position.get(other, (0, colours[other]))) for op, other in edges)

        return [(colours[node], ends(self.sources[node]), ends(self.readers[node])) for node in order], order


def _ranks(keys: Mapping[int, tuple[object, ...]]) -> dict[int, int]:
    """Keys replaced by their ranks among the distinct keys."""
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {node: ranks[key] for node, key in keys.items()}
