"""Input architectures prepared for a policy: encoded and masked once, transformed and scored by the thousand."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from natpp.arch.blueprints import drawing
from natpp.arch.graph import Architecture
from natpp.arch.rules import Mask
from natpp.core.blueprint import Spent
from natpp.core.budget import no_dearer
from natpp.core.solve import repair
from natpp.nets.policy import Encoded, GraphBatch, collate
from natpp.registry import OPS
from natpp.scorers.base import Gain, Score, Scores, Task
from natpp.subjects.cells import MANY, Cells, Row

Living = tuple[tuple[int, ...], bool]  # living figures, and whether the head is connected to the image


class Inputs:
    """Architectures with their encodings and masks; a row of operations turns one into another."""

    def __init__(self, archs: Sequence[Architecture], task: Task, ops: Sequence[str]):
        self.archs = list(archs)
        self.task = task
        self.ops = tuple(ops)
        self.cells = [Cells(arch, self.ops, task.rule, task.where, strict=task.strict) for arch in self.archs]
        self.encoded: list[Encoded] = [one.encoded for one in self.cells]
        self.masks: list[Mask] = [one.mask for one in self.cells]
        names = {name: column for column, name in enumerate(OPS)}
        self.columns = np.array([names[OPS[op].name] for op in self.ops])  # numbers of the operations in the registry
        graphs: dict[object, int] = {}
        self._graphs = [graphs.setdefault(arch.topology, len(graphs)) for arch in self.archs]
        self._members: dict[int, list[int]] = {}
        for index, graph in enumerate(self._graphs):
            self._members.setdefault(graph, []).append(index)
        self._living: dict[tuple[int, bytes], Living] = {}
        self._before: dict[int, Living] = {}  # of the input itself
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
        """Choices (samples, edges of a batch) as (index, row as drawn, row within the budget), one input at a time."""
        ends = np.cumsum([len(self.encoded[i].ops) for i in indices])[:-1]
        drawn, weights = (np.split(array, ends, axis=1) for array in (choices, probabilities))
        found = [
            (index, row, weight)
            for index, rows, some in zip(indices, drawn, weights, strict=True)
            for row, weight in zip(rows, some, strict=True)
        ]
        now = self.all_repaired(*map(list, zip(*found, strict=True))) if found else []
        return [(index, row, kept) for (index, row, _), kept in zip(found, now, strict=True)]

    def all_repaired(
        self, indices: Sequence[int], rows: Sequence[Row], probabilities: Sequence[NDArray[np.float64]]
    ) -> list[Row]:
        """Repaired rows, one for each index; their costs are computed at once."""
        self.count(indices, rows)
        return [self.repaired(*one) for one in zip(indices, rows, probabilities, strict=True)]

    def transformed(self, index: int, row: Row) -> Architecture:
        """The architecture with these operations on its free edges."""
        return self.cells[index].with_row(row)

    def repaired(self, index: int, row: Row, probability: NDArray[np.float64]) -> Row:
        """Under a strict budget: the row with its least probable changes undone until it fits.

        Then changes that still fit are restored, the most probable first. A row that fits is returned unchanged.
        """
        if self.fits(index, row):
            return row
        before = tuple(self.encoded[index].ops.tolist())
        fits = functools.partial(self._fits, index)
        return np.array(repair(tuple(row.tolist()), before, probability.tolist(), fits), dtype=np.int64)

    def _fits(self, index: int, ops: Sequence[int]) -> bool:
        return self.fits(index, np.array(ops, dtype=np.int64))

    def random_row(self, index: int, generator: np.random.Generator) -> Row:
        """A valid transformation drawn uniformly, and repaired if the budget requires it."""
        mask = self.masks[index]
        row = (generator.random(mask.shape) * mask).argmax(axis=1)
        return self.repaired(index, row, generator.random(len(row)))

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Score | Gain) -> Scores:
        """Scores of rows, one for each index, or gains over the input; earlier scores are cached."""
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
        """Whether a row meets the budget; always true unless it is strict.

        Under a strict budget, no living cost may rise, and a head that the image reaches must stay reached.
        """
        if not self.task.strict:
            return True
        if index not in self._before:
            group = self._members[self._graphs[index]]
            self.count(group, [self.encoded[one].ops for one in group])
            self._before.update((one, self.living(one, self.encoded[one].ops)) for one in group)
        return no_dearer(self._before[index], self.living(index, row))

    def living(self, index: int, row: Row) -> Living:
        """Living parameters and multiply-adds, and whether the image reaches the head."""
        key = self._graphs[index], row.tobytes()
        found = self._living.get(key)
        if found is None:
            spent = self._spent(index, row)
            found = self._living[key] = spent.living, spent.connected
        return found

    def count(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        """Compute the cost of many rows at once, so that `fits` and `living` can look them up."""
        groups: dict[int, dict[bytes, tuple[int, Row]]] = {}
        for index, row in zip(indices, rows, strict=True):
            if (place := (self._graphs[index], row.tobytes())) not in self._living and self.task.strict:
                groups.setdefault(place[0], {})[place[1]] = index, row
        for graph, group in groups.items():
            index, _ = next(iter(group.values()))
            if len(group) >= MANY and not self.cells[index].loose:
                plans = self.columns[np.stack([row for _, row in group.values()])]
                figures, connected = drawing(self.archs[index], self.task.where).blueprint.costs(plans)
                for key, spent, whole in zip(group, figures.tolist(), connected.tolist(), strict=True):
                    self._living[graph, key] = tuple(spent), whole

    def _spent(self, index: int, row: Row) -> Spent:
        if self.cells[index].loose:  # the widths depend on the row
            _, blueprint, _, plan = drawing(self.transformed(index, row), self.task.where)
            return blueprint.spent(plan)
        plan = tuple(self.columns[row].tolist())
        return drawing(self.archs[index], self.task.where).blueprint.spent(plan)
