"""Input architectures made ready for a policy: encoded and masked once, transformed and scored by the thousand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from natpp.arch.blueprints import drawing
from natpp.arch.graph import Architecture
from natpp.arch.rules import Mask, masks
from natpp.core.blueprint import Spent
from natpp.nets.policy import Encoded, GraphBatch, collate, edge_masks, encode
from natpp.registry import OPS
from natpp.scorers.base import Gain, Score, Scores, Task

MANY = 4  # rows that are costed faster at once than one by one
Row = NDArray[np.int64]  # one operation for every free edge of an architecture


class Inputs:
    """Architectures with their encodings and masks; a row of operations turns one into another."""

    def __init__(self, archs: Sequence[Architecture], task: Task, ops: Sequence[str]):
        self.archs = list(archs)
        self.task = task
        self.ops = tuple(ops)
        self.encoded: list[Encoded] = [encode(arch, self.ops) for arch in self.archs]
        names = {name: column for column, name in enumerate(OPS)}
        columns = [names[OPS[op].name] for op in self.ops]  # answers an operation that is not registered here
        self.columns = np.array(columns)  # numbers of the policy's operations in the registry
        self.masks: list[Mask] = [
            edge_masks(masks(arch, task.rule, task.where, strict=task.strict), encoded)[:, columns]
            for arch, encoded in zip(self.archs, self.encoded, strict=True)
        ]
        graphs: dict[object, int] = {}
        self._graphs = [graphs.setdefault(_graph_key(arch), len(graphs)) for arch in self.archs]
        self._loose = [any(graph.concat is None for _, graph in arch.cells()) for arch in self.archs]
        self._living: dict[tuple[int, bytes], tuple[int, int, bool]] = {}
        self._before: dict[int, tuple[int, int, bool]] = {}  # by index: of the input itself
        self._scores: dict[tuple[int, bytes, bytes], float] = {}
        self._scored_by: Score | Gain | None = None

    def __len__(self) -> int:
        return len(self.archs)

    def batch(self, indices: Sequence[int]) -> GraphBatch:
        """Some of them as one graph for the policy."""
        return collate([self.encoded[i] for i in indices], [self.masks[i] for i in indices])

    def rows(
        self, indices: Sequence[int], choices: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> list[tuple[int, Row, Row]]:
        """Choices (samples, edges of a batch) as (index, row as drawn, row within the budget), input by input."""
        ends = np.cumsum([len(self.encoded[i].ops) for i in indices])[:-1]
        drawn, weights = (np.split(array, ends, axis=1) for array in (choices, probabilities))
        found = [
            (index, row, weight)
            for index, rows, some in zip(indices, drawn, weights, strict=True)
            for row, weight in zip(rows, some, strict=True)
        ]
        self.count([index for index, _, _ in found], [row for _, row, _ in found])
        return [(index, row, self.repaired(index, row, weight)) for index, row, weight in found]

    def transformed(self, index: int, row: Row) -> Architecture:
        """The architecture with these operations on its free edges."""
        arch = self.archs[index]
        ops = {kind: list(graph.ops) for kind, graph in arch.cells()}
        for (kind, number), op in zip(self.encoded[index].places, row.tolist(), strict=True):
            ops[kind][number] = self.ops[op]
        return arch.with_ops(ops)

    def repaired(self, index: int, row: Row, probability: NDArray[np.float64]) -> Row:
        """Under a strict budget: the row with its least probable changes taken back until it fits.

        Then those that do no harm come back, the most probable first. A row that fits is returned itself.
        """
        if self.fits(index, row):
            return row
        before, drawn = self.encoded[index].ops, row
        changed = np.flatnonzero(row != before)[::-1]  # of equally probable ones the last edge goes first
        order = changed[np.argsort(probability[changed], kind="stable")].tolist()
        row = row.copy()
        undone: list[int] = []
        while not self.fits(index, row):
            undone.append(order[len(undone)])
            row[undone[-1]] = before[undone[-1]]
        for edge in reversed(undone[:-1]):  # the last one was needed
            row[edge] = drawn[edge]
            if not self.fits(index, row):
                row[edge] = before[edge]
        return row

    def random_row(self, index: int, generator: np.random.Generator) -> Row:
        """A valid transformation drawn uniformly, repaired where the budget wants it."""
        mask = self.masks[index]
        row = (generator.random(mask.shape) * mask).argmax(axis=1)
        return self.repaired(index, row, generator.random(len(row)))

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Score | Gain) -> Scores:
        """Scores of rows, one for each index, or gains over the input; what was asked before is remembered."""
        if score != self._scored_by:
            self._scores.clear()
            self._scored_by = score
        pairs = isinstance(score, Gain)
        keys = [
            (self._graphs[index], self.encoded[index].ops.tobytes() if pairs else b"", row.tobytes())
            for index, row in zip(indices, rows, strict=True)
        ]
        new = {key: number for number, key in enumerate(keys) if key not in self._scores}
        if new:
            after = [self.transformed(indices[number], rows[number]) for number in new.values()]
            if isinstance(score, Gain):
                found = score.of([self.archs[indices[number]] for number in new.values()], after)
            else:
                found = score(after)
            self._scores.update(zip(new, found.tolist(), strict=True))
        return np.array([self._scores[key] for key in keys])

    def fits(self, index: int, row: Row) -> bool:
        """Whether a row keeps the budget: always where it is not strict.

        Under a strict one no living cost rises, and what reached the head of the network still reaches it.
        """
        if not self.task.strict:
            return True
        if (before := self._before.get(index)) is None:
            before = self._before[index] = self.living(index, self.encoded[index].ops)
        after = self.living(index, row)
        return after[0] <= before[0] and after[1] <= before[1] and after[2] >= before[2]

    def living(self, index: int, row: Row) -> tuple[int, int, bool]:
        """Living parameters and multiply-adds, and whether anything of the image reaches the head."""
        key = self._graphs[index], row.tobytes()
        found = self._living.get(key)
        if found is None:
            spent = self._spent(index, row)
            found = self._living[key] = *spent.living, spent.connected
        return found

    def count(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        """Cost many rows at once, so that `fits` and `living` look them up."""
        groups: dict[int, dict[bytes, tuple[int, Row]]] = {}
        for index, row in zip(indices, rows, strict=True):
            if (place := (self._graphs[index], row.tobytes())) not in self._living and self.task.strict:
                groups.setdefault(place[0], {})[place[1]] = index, row
        for graph, group in groups.items():
            index, _ = next(iter(group.values()))
            if len(group) >= MANY and not self._loose[index]:
                plans = self.columns[np.stack([row for _, row in group.values()])]
                figures, connected = drawing(self.archs[index], self.task.where).blueprint.costs(plans)
                for key, (params, madds), whole in zip(group, figures.tolist(), connected.tolist(), strict=True):
                    self._living[graph, key] = params, madds, whole

    def _spent(self, index: int, row: Row) -> Spent:
        if self._loose[index]:  # the widths follow the row
            _, blueprint, _, plan = drawing(self.transformed(index, row), self.task.where)
            return blueprint.spent(plan)
        plan = tuple(self.columns[row].tolist())
        return drawing(self.archs[index], self.task.where).blueprint.spent(plan)


def _graph_key(arch: Architecture) -> object:
    """Equal for architectures that differ only in operations on free edges."""
    return tuple(
        (kind, graph.concat, tuple((edge.source, edge.target, edge.fixed and edge.op) for edge in graph.edges))
        for kind, graph in arch.cells()
    )
