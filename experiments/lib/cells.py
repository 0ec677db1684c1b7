"""Cells of the thirteen-operation space that are trained for longer; choices in this space are made on them.

A third is random as in the paper (null included, 4 and 5 nodes), a third is random without null, and a third is
published cells and changes of one to four of their edges that the rule allows. Every third cell of each kind is set
aside and never used for a choice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

import natpp
from natpp.arch.graph import NULL, Architecture
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS
from natpp.arch.space import CellSpace, Choices, GraphSpace, Space
from natpp.registry import OPS, ZOO
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

SEED = 12
EACH = 27  # cells of each kind
PUBLISHED = ("darts", "enas", "naonet", "pc_darts_cifar", "natpp_darts", "natpp_enas", "snas", "amoebanet", "pnas")
FRAME = Frame("nat++", setting("cifar"), strict=False)
NULL_RICH = 0.5  # probability of an edge to become null
KINDS_DRAWN = {"plain": 0.5, "full": 0.1, "extras": 0.15, "null": 0.1, "zoo": 0.15}  # shares of kinds in the pool


@dataclass(frozen=True)
class Cell:
    """A cell of the set, its origin, and whether it is set aside."""

    name: str
    kind: str  # random, full or published
    arch: Architecture
    parent: str | None
    """the published cell that was changed"""
    aside: bool


def truth_cells() -> list[Cell]:
    """The set; always the same."""
    generator = np.random.default_rng(SEED)
    random = CellSpace().draw(EACH, generator)
    full = CellSpace(names=tuple(op for op in PAPER_OPS if op != NULL)).draw(EACH, generator)
    found = [Cell(f"random {i}", "random", arch, None, i % 3 == 2) for i, arch in enumerate(random)]
    found += [Cell(f"full {i}", "full", arch, None, i % 3 == 2) for i, arch in enumerate(full)]
    found += [Cell(name, "published", natpp.load(name), None, i % 3 == 2) for i, name in enumerate(PUBLISHED)]
    originals = Subjects(cells_of([natpp.load(name) for name in PUBLISHED], FRAME, tuple(OPS)))
    for i in range(EACH - len(PUBLISHED)):
        parent = i % len(PUBLISHED)
        arch = changed(originals, parent, 1 + i % 4, generator)
        name = f"{PUBLISHED[parent]}, change {i // len(PUBLISHED) + 1}"
        found.append(Cell(name, "published", arch, PUBLISHED[parent], (parent + i // len(PUBLISHED)) % 3 == 2))
    return found


def changed(subjects: Subjects, index: int, edges: int, generator: np.random.Generator) -> Architecture:
    """A subject with some edges changed at random, as the rule allows."""
    row, mask = subjects.before[index].copy(), subjects.masks[index]
    free = [edge for edge in range(len(row)) if mask[edge].sum() > 1]
    for edge in generator.choice(free, size=min(edges, len(free)), replace=False):
        others = np.flatnonzero(mask[edge] & (np.arange(mask.shape[1]) != row[edge]))
        row[edge] = generator.choice(others)
    return subjects.transformed(index, row)


@functools.cache
def set_aside() -> frozenset[Architecture]:
    """Canonical forms of the cells that are set aside."""
    return frozenset(cell.arch.essence() for cell in truth_cells() if cell.aside)


class Pool(Space):
    """Inputs that policies of this space learn on: half drawn as in the paper, the rest of other kinds that users have.

    These are random cells without null, with operations beyond the thirteen, and with mostly null (as in hand-crafted
    blocks), and cells of the zoo with up to four edges changed. Cells set aside are drawn only if `aside`: an input of
    a policy is not scored.
    """

    def __init__(self, *, aside: bool = False):
        self.whole = CellSpace(names=tuple(OPS))
        self.plain = CellSpace()
        self.full = CellSpace(names=tuple(op for op in PAPER_OPS if op != NULL))
        self.aside = aside
        self.published = Subjects(cells_of([entry.arch for entry in ZOO.values()], FRAME, tuple(OPS)))

    @property
    def ops(self) -> tuple[str, ...]:
        return self.whole.ops

    def choices(self, kind: str) -> Choices:
        return self.whole.choices(kind)

    def outputs(self, kind: str) -> tuple[int, ...]:
        return self.whole.outputs(kind)

    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        if fair:
            raise ValueError("a pool of several kinds cannot draw operations fairly: train a supernet on CellSpace")
        found: list[Architecture] = []
        while len(found) < count:
            kind = generator.choice(list(KINDS_DRAWN), p=list(KINDS_DRAWN.values()))
            arch = self._one(str(kind), generator)
            if self.aside or arch.essence() not in set_aside():
                found.append(arch)
        return found

    def one_graph(self, generator: np.random.Generator) -> GraphSpace:
        return self.whole.one_graph(generator)

    def _one(self, kind: str, generator: np.random.Generator) -> Architecture:
        if kind == "zoo":
            index = int(generator.integers(len(self.published)))
            return changed(self.published, index, int(generator.integers(5)), generator)
        if kind == "null":
            (arch,) = self.plain.draw(1, generator)
            ops = {
                which: [NULL if generator.random() < NULL_RICH else op for op in graph.ops]
                for which, graph in arch.cells()
            }
            return arch.with_ops(ops)
        space = {"plain": self.plain, "full": self.full, "extras": self.whole}[kind]
        return space.draw(1, generator)[0]
