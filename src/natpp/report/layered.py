"""Layered layout of a graph, left to right: assigns a column and a row to each vertex.

An edge reserves a row in each column it passes, so that no line crosses a label. Rows are ordered to reduce crossings
(barycentre heuristic, sweeping in both directions), then moved close to their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SWEEPS = 24
Vertex = tuple[Any, ...]
Columns = list[list[Vertex]]
Neighbours = dict[Vertex, list[Vertex]]


@dataclass(frozen=True)
class Item:
    """A vertex: its column and its size."""

    column: int
    width: float
    height: float


@dataclass(frozen=True)
class Placed:
    """The layout: centres of vertices, and the points of each edge's line."""

    centres: dict[Vertex, tuple[float, float]]
    lines: list[tuple[tuple[float, float], ...]]
    width: float
    height: float


def layered(
    items: Mapping[Vertex, Item],
    edges: Sequence[tuple[Vertex, Vertex]],
    *,
    column_gap: float = 34,
    row_gap: float = 10,
    passing: float = 8,
) -> Placed:
    """Place vertices and edges; each edge leads to a later column. `passing` is the space for a passing line."""
    full: dict[Vertex, Item] = dict(items)
    chains: list[list[Vertex]] = []
    for number, (start, end) in enumerate(edges):
        chain = [start]
        for column in range(items[start].column + 1, items[end].column):
            bend = ("bend", number, column)
            full[bend] = Item(column, 0, passing)
            chain.append(bend)
        chains.append([*chain, end])
    columns: Columns = [[] for _ in range(1 + max(item.column for item in items.values()))]
    for vertex, item in full.items():
        columns[item.column].append(vertex)
    before: Neighbours = {vertex: [] for vertex in full}
    after: Neighbours = {vertex: [] for vertex in full}
    for chain in chains:
        for earlier, later in pairwise(chain):
            after[earlier].append(later)
            before[later].append(earlier)
    columns = _ordered(columns, before, after)
    rows = _rows(columns, full, before, after, row_gap)

    lefts, x = [], 0.0
    widths = [max((full[vertex].width for vertex in column), default=0) for column in columns]
    for width in widths:
        lefts.append(x)
        x += width + column_gap
    centres = {vertex: (lefts[item.column] + widths[item.column] / 2, rows[vertex]) for vertex, item in full.items()}
    lines = []
    for chain in chains:
        points: list[tuple[float, float]] = []
        for vertex in chain:
            column, (centre, y) = full[vertex].column, centres[vertex]
            left, right, half = lefts[column], lefts[column] + widths[column], full[vertex].width / 2
            if vertex is not chain[0]:
                points.append((left, y))
                if vertex is chain[-1]:
                    points.append((centre - half, y))
            if vertex is not chain[-1]:
                if vertex is chain[0]:
                    points.append((centre + half, y))
                points.append((right, y))
        lines.append(tuple(points))
    height = max(rows[vertex] + item.height / 2 for vertex, item in full.items())
    return Placed({vertex: centres[vertex] for vertex in items}, lines, x - column_gap, height)


def _ordered(columns: Columns, before: Neighbours, after: Neighbours) -> Columns:
    """The row order with the fewest crossings found in a few sweeps."""
    best, fewest = columns, _crossings(columns, after)
    current = columns
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        neighbours = before if forward else after
        current = [list(column) for column in current]
        places = {vertex: float(row) for column in current for row, vertex in enumerate(column)}
        for column in current if forward else reversed(current):
            keys = {vertex: _mean([places[other] for other in neighbours[vertex]], places[vertex]) for vertex in column}
            column.sort(key=keys.__getitem__)
            places.update({vertex: float(row) for row, vertex in enumerate(column)})
        crossings = _crossings(current, after)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _crossings(columns: Columns, after: Neighbours) -> int:
    places = {vertex: row for column in columns for row, vertex in enumerate(column)}
    total = 0
    for column in columns:
        ends = [(row, places[other]) for row, vertex in enumerate(column) for other in after[vertex]]
        total += sum(a < c and b > d for a, b in ends for c, d in ends)
    return total


def _rows(
    columns: Columns, items: dict[Vertex, Item], before: Neighbours, after: Neighbours, gap: float
) -> dict[Vertex, float]:
    """Centres of rows: close to their neighbours, in order, and without overlap."""
    rows: dict[Vertex, float] = {}
    for column in columns:
        y = 0.0
        for vertex in column:
            rows[vertex] = y + items[vertex].height / 2
            y += items[vertex].height + gap
        for vertex in column:
            rows[vertex] -= y / 2
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = [_mean([rows[other] for other in before[one] + after[one]], rows[one]) for one in column]
            distances = [0.0] * min(len(column), 1)
            for upper, lower in pairwise(column):
                distances.append(distances[-1] + (items[upper].height + items[lower].height) / 2 + gap)
            free = _nondecreasing([want - distance for want, distance in zip(wanted, distances, strict=True)])
            for vertex, base, distance in zip(column, free, distances, strict=True):
                rows[vertex] = base + distance
    top = min(rows[vertex] - items[vertex].height / 2 for vertex in rows)
    return {vertex: row - top for vertex, row in rows.items()}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _nondecreasing(values: list[float]) -> list[float]:
    """The closest nondecreasing sequence by least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean, count
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
