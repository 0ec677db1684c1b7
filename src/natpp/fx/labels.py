"""Channels as numbers: which there are, which stay or go together, and where they are in weights.

A value has channels along at most one dimension; a channel that always stays is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.fx.node import Node

FIXED = 0
SIZE, PIECE, SLICE, SHAPE = "size", "piece", "slice", "shape"  # axes of numbers in the arguments of a node
USES = "uses"  # axes of a weight that a function reads
ASKED = "asked"  # axes of other values whose sizes are in the arguments of a node
HEADS = "heads"  # axes along which a matrix product or attention is computed apart
Numbers = NDArray[np.int64]


class Labels(NamedTuple):
    """The channel of every position of one dimension of a value."""

    dim: int
    channels: Numbers


Known = Labels | tuple["Known", ...] | None


class Found(NamedTuple):
    """A dimension of a tensor of a layer, or a number in the arguments of a node, with its channels."""

    node: Node
    tensor: str
    """its attribute in the layer; empty for a parameter read by itself; `size`, `piece`, ...: in the arguments"""
    dim: int
    channels: Numbers
    makes: bool
    """whether the layer makes these channels"""


class Book:
    """All channels and those that were joined, the values that are known to have them, and the axes of weights."""

    def __init__(self) -> None:
        self.parent = [FIXED]
        self.axes: list[Found] = []
        self.known: dict[Node, Known] = {}
        self.loose: set[Node] = set()  # parameters that take the channels of what they are added to
        self.splits: dict[Node, tuple[Numbers, int]] = {}  # reshapes that could keep channels along several dimensions
        self.turns: Mapping[Node, int] = {}  # which of these dimensions, counted from the last

    def note(self, node: Node, tensor: str, dim: int, channels: Numbers, *, makes: bool = False) -> None:
        """Add an axis."""
        self.axes.append(Found(node, tensor, dim, channels, makes))

    def fresh(self, count: int) -> Numbers:
        """New channels; a single one is never removed."""
        if count < 2:
            return np.zeros(count, dtype=np.int64)
        start = len(self.parent)
        self.parent += range(start, start + count)
        return np.arange(start, start + count)

    def root(self, one: int) -> int:
        """The channel that stands for all that it was joined with."""
        while self.parent[one] != one:
            self.parent[one] = self.parent[self.parent[one]]
            one = self.parent[one]
        return one

    def roots(self) -> Numbers:
        """The same for every channel."""
        return np.array([self.root(one) for one in range(len(self.parent))])

    def join(self, first: Numbers, second: Numbers) -> None:
        """Merge the channels at the same positions."""
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            if one != other:
                low, high = sorted((self.root(one), self.root(other)))
                self.parent[high] = low

    def free(self, channels: Numbers) -> bool:
        """Whether any of these channels may be removed."""
        return any(self.root(one) for one in channels.tolist())

    def fix(self, known: Known) -> bool:
        """Keep all channels of a value; returns whether any could have been removed."""
        if known is None:
            return False
        if not isinstance(known, Labels):
            return sum(self.fix(one) for one in known) > 0
        free = self.free(known.channels)
        self.join(known.channels, np.zeros_like(known.channels))
        return free

    def tied(self, channels: Numbers, groups: int) -> Numbers:
        """Join the channels at the same place in every group; returns those of one group."""
        first, *others = channels.reshape(groups, -1)
        for row in others:
            self.join(first, row)
        return first


def flat(known: Known) -> list[Labels]:
    """The channels of a value, or of the values of a tuple."""
    if known is None or isinstance(known, Labels):
        return [] if known is None else [known]
    return [one for inner in known for one in flat(inner)]
