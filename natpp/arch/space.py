"""The space of architectures: drawing from it, one at a time or a hundred thousand.

As in the paper: sources uniform over earlier nodes with repetition, operations uniform over the
thirteen, null included, all nodes concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from natpp.arch.graph import KINDS, NUM_INPUTS, Architecture, Edge, Graph
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.transitions import Mask, allowed
from natpp.errors import SettingError

LARGEST_DRAW = 100_000_000  # nodes in all


@dataclass(frozen=True)
class Batch:
    """Many architectures of one size as arrays: (count, 2 cells, edges); cell 0 is the normal one."""

    sources: NDArray[np.int64]
    ops: NDArray[np.int64]  # index into the thirteen operations

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, index: int) -> Architecture:
        """One of them as a value."""
        num_nodes = self.ops.shape[2] // 2
        concat = tuple(range(NUM_INPUTS, NUM_INPUTS + num_nodes))
        graphs = {}
        for cell, kind in enumerate(KINDS):
            pairs = zip(self.ops[index, cell].tolist(), self.sources[index, cell].tolist(), strict=True)
            edges = (Edge(PAPER_OPS[op], source, NUM_INPUTS + i // 2) for i, (op, source) in enumerate(pairs))
            graphs[kind] = Graph(tuple(edges), concat)
        return Architecture(**graphs)

    def masks(self, rule: str, channels: int, size: int = 32) -> Mask:
        """The transitions a rule allows on every edge: (count, 2, edges, 13).

        Edges from the inputs of the reduction cell stand at stride 2, all others at stride 1.
        """
        at_stride = [allowed(rule, Place(channels, channels, stride, (size, size)), PAPER_OPS) for stride in (1, 2)]
        tables = np.stack(at_stride)  # (strides, 13, 13)
        reduces = np.array([0, 1])[None, :, None]
        stride = reduces * (self.sources < NUM_INPUTS)
        mask: Mask = tables[stride, self.ops]
        return mask


def sample_batch(count: int, *, nodes: int = 4, generator: np.random.Generator) -> Batch:
    """Architectures drawn uniformly; the first ones do not depend on how many are drawn."""
    for name, value in (("nodes", nodes), ("count", count)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SettingError(f"{name} is {value!r}, expected a whole number from 1 up")
    if nodes * count > LARGEST_DRAW:
        raise SettingError(f"{count} architectures of {nodes} nodes are more than fit: draw fewer at a time")
    earlier = NUM_INPUTS + np.arange(2 * nodes) // 2  # nodes that each edge may read
    bounds = np.stack([earlier, np.full_like(earlier, len(PAPER_OPS))], axis=-1)  # (edges, 2)
    drawn = generator.integers(np.broadcast_to(bounds, (count, len(KINDS), *bounds.shape)))
    return Batch(sources=drawn[..., 0], ops=drawn[..., 1])
