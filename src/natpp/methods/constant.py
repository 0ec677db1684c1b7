"""A baseline that ignores the graph: the best fixed operation → operation map, per edge or per kind of cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from natpp.config import At, Plain
from natpp.core.scores import Score
from natpp.core.subject import Row
from natpp.methods.base import Method
from natpp.registry import METHODS
from natpp.subjects.many import Subjects

Place = tuple[str, int]  # cell and number of an edge


@dataclass(frozen=True)
class Constant(Method):
    """One replacement for every edge and operation, fitted by coordinate ascent on the mean score.

    If graphs differ, edge numbers are not comparable: then there is one map for every kind of cell.
    """

    by_edge: bool = True
    """a map for every edge, else one for every kind of cell"""
    sample: Annotated[int, At(least=1)] = 2000
    """training inputs that the map is fitted on"""
    sweeps: Annotated[int, At(least=0)] = 3
    """how often every entry is tried, at most"""
    map: Annotated[Mapping[tuple[Place, int], int], Plain] = field(default_factory=dict)
    """the map, once it is fitted"""
    needs_scores = True

    def fit(self, subjects: Subjects, score: Score, chance: np.random.Generator) -> Constant:
        """Change one entry of the current map at a time for as long as the mean score rises."""
        chosen = chance.permutation(len(subjects))[: self.sample].tolist()
        entries: dict[tuple[Place, int], list[int]] = {}  # entry → the chosen subjects that it affects
        for index in chosen:
            for place, op in subjects.pairs(index):
                concerned = entries.setdefault((self._at(place), op), [])
                if not concerned or concerned[-1] != index:
                    concerned.append(index)
        found = {entry: self.map.get(entry, entry[1]) for entry in entries}
        for _ in range(self.sweeps):
            before = dict(found)
            for entry, concerned in sorted(entries.items()):
                op = entry[1]
                places = [(index, edge) for index in concerned for edge in self._edges(subjects, index, entry)]
                masks = [subjects.masks[index][edge] for index, edge in places]
                options = np.flatnonzero(np.any(masks, axis=0)).tolist()
                rows: list[Row] = []
                for option in options:
                    found[entry] = option
                    rows += self._rows(subjects, concerned, found)
                scores = np.split(subjects.scores(concerned * len(options), rows, score), len(options))
                means = {option: some.mean() for option, some in zip(options, scores, strict=True)}
                found[entry] = max(options, key=lambda option: (means[option], option == op))
            if found == before:
                break
        return replace(self, map=found)

    def propose(self, subjects: Subjects, count: int, score: Score, chance: np.random.Generator) -> list[list[Row]]:
        """The map applied; a decision or operation it has never seen stays."""
        return [[row] for row in self._rows(subjects, range(len(subjects)), self.map)]

    def _at(self, place: Place) -> Place:
        """The part of a place that the map distinguishes."""
        return place if self.by_edge else (place[0], -1)

    def _edges(self, subjects: Subjects, index: int, entry: tuple[Place, int]) -> list[int]:
        """The edges of an input that an entry of the map applies to."""
        pairs = enumerate(subjects.pairs(index))
        return [edge for edge, (place, op) in pairs if (self._at(place), op) == entry]

    def _rows(self, subjects: Subjects, indices: Sequence[int], entries: Mapping[tuple[Place, int], int]) -> list[Row]:
        """A map applied to some subjects, within the budget."""
        rows = [self._row(subjects, index, entries) for index in indices]
        return subjects.all_repaired(indices, rows, [np.ones(len(row)) for row in rows])

    def _row(self, subjects: Subjects, index: int, entries: Mapping[tuple[Place, int], int]) -> Row:
        wanted = [entries.get((self._at(place), op), op) for place, op in subjects.pairs(index)]
        row = np.array(wanted, dtype=np.int64)
        allowed = subjects.masks[index][np.arange(len(row)), row]
        return np.where(allowed, row, subjects.before[index])


METHODS.add("constant", Constant())
