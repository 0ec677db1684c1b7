"""Cells of the thirteen-operation space that are trained for longer: the ground for every choice in this space.

A third is random as the paper samples (null included, 4 and 5 nodes), a third random without null, a third published
cells and changes of one to four of their edges that the rule allows. Every third of each kind is set aside: no choice
is made by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import natpp
from natpp.arch.graph import NULL, Architecture
from natpp.arch.layout import setting
from natpp.arch.ops import PAPER_OPS
from natpp.arch.space import CellSpace
from natpp.improve.inputs import Inputs
from natpp.improve.scorer import Task
from natpp.registry import OPS

SEED = 12
EACH = 27  # of every kind
PUBLISHED = ("darts", "enas", "naonet", "pc_darts_cifar", "natpp_darts", "natpp_enas", "snas", "amoebanet", "pnas")
TASK = Task("nat++", setting("cifar"), strict=False)


@dataclass(frozen=True)
class Cell:
    """An architecture of the set, where it comes from, and whether it is set aside."""

    name: str
    kind: str  # random, full or published
    arch: Architecture
    parent: str | None
    """the published cell that it is a change of"""
    aside: bool


def truth_cells() -> list[Cell]:
    """The set, always the same."""
    generator = np.random.default_rng(SEED)
    random = CellSpace().draw(EACH, generator)
    full = CellSpace(names=tuple(op for op in PAPER_OPS if op != NULL)).draw(EACH, generator)
    found = [Cell(f"random {i}", "random", arch, None, i % 3 == 2) for i, arch in enumerate(random)]
    found += [Cell(f"full {i}", "full", arch, None, i % 3 == 2) for i, arch in enumerate(full)]
    found += [Cell(name, "published", natpp.load(name), None, i % 3 == 2) for i, name in enumerate(PUBLISHED)]
    inputs = Inputs([natpp.load(name) for name in PUBLISHED], TASK, tuple(OPS))
    for i in range(EACH - len(PUBLISHED)):
        parent = i % len(PUBLISHED)
        arch = changed(inputs, parent, 1 + i % 4, generator)
        name = f"{PUBLISHED[parent]}, change {i // len(PUBLISHED) + 1}"
        found.append(Cell(name, "published", arch, PUBLISHED[parent], (parent + i // len(PUBLISHED)) % 3 == 2))
    return found


def changed(inputs: Inputs, index: int, edges: int, generator: np.random.Generator) -> Architecture:
    """An input with some of its edges changed to what the rule allows."""
    row, mask = inputs.encoded[index].ops.copy(), inputs.masks[index]
    free = [edge for edge in range(len(row)) if mask[edge].sum() > 1]
    for edge in generator.choice(free, size=min(edges, len(free)), replace=False):
        others = np.flatnonzero(mask[edge] & (np.arange(mask.shape[1]) != row[edge]))
        row[edge] = generator.choice(others)
    return inputs.transformed(index, row)
