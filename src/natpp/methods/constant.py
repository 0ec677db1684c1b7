"""A baseline that ignores the graph: the best fixed operation → operation map, per edge or per kind of cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from natpp.config import At, Config, Plain
from natpp.registry import METHODS
from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs

Place = tuple[str, int]  # cell and number of an edge


@dataclass(frozen=True)
class Constant(Config):
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
    rule: ClassVar[None] = None
    asks: ClassVar[bool] = True

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> Constant:
        """Change one entry of the current map at a time for as long as the mean score rises."""
        chosen = generator.permutation(len(inputs))[: self.sample].tolist()
        entries: dict[tuple[Place, int], list[int]] = {}  # entry → the chosen inputs that it affects
        for index in chosen:
            for place, op in zip(inputs.encoded[index].places, inputs.encoded[index].ops.tolist(), strict=True):
                concerned = entries.setdefault((self._at(place), op), [])
                if not concerned or concerned[-1] != index:
                    concerned.append(index)
        found = {entry: self.map.get(entry, entry[1]) for entry in entries}
        for _ in range(self.sweeps):
            before = dict(found)
            for entry, concerned in sorted(entries.items()):
                op = entry[1]
                masks = [inputs.masks[index][edge] for index in concerned for edge in self._edges(inputs, index, entry)]
                options = np.flatnonzero(np.any(masks, axis=0)).tolist()
                rows: list[Row] = []
                for option in options:
                    found[entry] = option
                    rows += self._rows(inputs, concerned, found)
                scores = np.split(inputs.scores(concerned * len(options), rows, score), len(options))
                means = {option: some.mean() for option, some in zip(options, scores, strict=True)}
                found[entry] = max(options, key=lambda option: (means[option], option == op))
            if found == before:
                break
        return replace(self, map=found)

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The map applied; an edge or operation it has never seen stays."""
        return self._rows(inputs, range(len(inputs)), self.map)

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> None:
        """A map has a single answer per input."""

    def _at(self, place: Place) -> Place:
        """The part of a place that the map distinguishes."""
        return place if self.by_edge else (place[0], -1)

    def _edges(self, inputs: Inputs, index: int, entry: tuple[Place, int]) -> list[int]:
        """The edges of an input that an entry of the map applies to."""
        encoded = inputs.encoded[index]
        pairs = enumerate(zip(encoded.places, encoded.ops.tolist(), strict=True))
        return [edge for edge, (place, op) in pairs if (self._at(place), op) == entry]

    def _rows(self, inputs: Inputs, indices: Sequence[int], entries: Mapping[tuple[Place, int], int]) -> list[Row]:
        """A map applied to some inputs, within the budget."""
        rows = [self._row(inputs, index, entries) for index in indices]
        return inputs.all_repaired(indices, rows, [np.ones(len(row)) for row in rows])

    def _row(self, inputs: Inputs, index: int, entries: Mapping[tuple[Place, int], int]) -> Row:
        encoded = inputs.encoded[index]
        pairs = zip(encoded.places, encoded.ops.tolist(), strict=True)
        row = np.array([entries.get((self._at(place), op), op) for place, op in pairs], dtype=np.int64)
        allowed = inputs.masks[index][np.arange(len(row)), row]
        return np.where(allowed, row, encoded.ops)


METHODS.add("constant", Constant())
