"""Spaces of architectures, and sampling from them.

As in the paper: the two sources of a node are uniform over earlier nodes, with repetition; operations are uniform over
the thirteen, including null; all nodes are concatenated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from natpp.arch.formats import NASBENCH201_OPS, parse
from natpp.arch.graph import KINDS, NUM_INPUTS, Architecture, Edge, Graph
from natpp.arch.networks import Setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.rules import Mask, allowed, masks
from natpp.errors import SettingError, did_you_mean
from natpp.registry import OPS

LARGEST_DRAW = 100_000_000  # total number of nodes
SPACES = ("cells", "nasbench201")
Choices = Mapping[tuple[int, int], tuple[str, ...]]  # (source, target) → operations allowed there


@dataclass(frozen=True)
class Batch:
    """Many architectures of one size as arrays: (count, 2 cells, edges); cell 0 is the normal cell."""

    sources: NDArray[np.int64]
    ops: NDArray[np.int64]  # index into `names`
    names: tuple[str, ...] = PAPER_OPS

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, index: int) -> Architecture:
        """A single architecture as a value."""
        num_nodes = self.ops.shape[2] // 2
        concat = tuple(range(NUM_INPUTS, NUM_INPUTS + num_nodes))
        graphs = {}
        for cell, kind in enumerate(KINDS):
            pairs = zip(self.ops[index, cell].tolist(), self.sources[index, cell].tolist(), strict=True)
            edges = (Edge(self.names[op], source, NUM_INPUTS + i // 2) for i, (op, source) in enumerate(pairs))
            graphs[kind] = Graph(tuple(edges), concat)
        return Architecture(**graphs)

    def masks(self, rule: str, channels: int, size: int = 32) -> Mask:
        """What a rule allows on each edge: (count, 2, edges, operations); stride 2 at inputs of reduction cells."""
        at_stride = [allowed(rule, Place(channels, channels, stride, (size, size)), self.names) for stride in (1, 2)]
        reduces = np.array([0, 1])[None, :, None]
        mask: Mask = np.stack(at_stride)[reduces * (self.sources < NUM_INPUTS), self.ops]
        return mask


def sample_batch(
    count: int, *, nodes: int = 4, generator: np.random.Generator, ops: tuple[str, ...] = PAPER_OPS
) -> Batch:
    """Architectures sampled uniformly; the first ones are the same for any `count`."""
    for name, value in (("nodes", nodes), ("count", count)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SettingError(f"{name} is {value!r}, expected a whole number from 1 up")
    if nodes * count > LARGEST_DRAW:
        raise SettingError(f"{count} architectures of {nodes} nodes do not fit into memory: draw fewer at a time")
    earlier = NUM_INPUTS + np.arange(2 * nodes) // 2  # nodes that an edge may read
    bounds = np.stack([earlier, np.full_like(earlier, len(ops))], axis=-1)  # (edges, 2)
    drawn = generator.integers(np.broadcast_to(bounds, (count, len(KINDS), *bounds.shape)))
    return Batch(sources=drawn[..., 0], ops=drawn[..., 1], names=ops)


class Space(ABC):
    """Architectures to sample, and the operations of each edge; nodes are numbered as in `Graph.inputs`."""

    @property
    @abstractmethod
    def ops(self) -> tuple[str, ...]:
        """All operations of the space, in the order of the registry."""

    @abstractmethod
    def choices(self, kind: str) -> Choices:
        """The operations allowed on each edge of a cell of this kind."""

    @abstractmethod
    def outputs(self, kind: str) -> tuple[int, ...]:
        """The nodes that the output of a cell of this kind may concatenate."""

    @abstractmethod
    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        """Uniform samples; with `fair`, each operation of an edge occurs once before any occurs twice."""

    @abstractmethod
    def one_graph(self, generator: np.random.Generator) -> GraphSpace:
        """The subset of architectures with one random graph; they differ in operations only."""


@dataclass(frozen=True)
class CellSpace(Space):
    """Pairs of cells with one of these numbers of nodes; each node reads any two earlier ones."""

    nodes: tuple[int, ...] = (4, 5)
    names: tuple[str, ...] = PAPER_OPS

    def __post_init__(self) -> None:
        if not self.nodes or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.nodes):
            given = ", ".join(map(str, self.nodes))
            raise SettingError(f"nodes is {given or 'empty'}, expected whole numbers from 1 up")
        object.__setattr__(self, "nodes", tuple(sorted(set(self.nodes))))
        object.__setattr__(self, "names", _ordered(self.names))

    @property
    def ops(self) -> tuple[str, ...]:
        return self.names

    def choices(self, kind: str) -> Choices:
        targets = range(NUM_INPUTS, NUM_INPUTS + self.nodes[-1])
        return {(source, target): self.names for target in targets for source in range(target)}

    def outputs(self, kind: str) -> tuple[int, ...]:
        return tuple(range(NUM_INPUTS, NUM_INPUTS + self.nodes[-1]))

    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        sizes = generator.choice(self.nodes, size=count)
        dealt = _dealt(count, len(self.names), (len(KINDS), 2 * self.nodes[-1]), generator) if fair else None
        found: dict[int, Architecture] = {}
        for size in self.nodes:
            places = np.flatnonzero(sizes == size)
            if len(places):
                batch = sample_batch(len(places), nodes=size, generator=generator, ops=self.names)
                if dealt is not None:
                    batch = Batch(batch.sources, dealt[places][..., : 2 * size], self.names)
                found |= {place: batch[index] for index, place in enumerate(places.tolist())}
        return [found[place] for place in range(count)]

    def one_graph(self, generator: np.random.Generator) -> GraphSpace:
        """Each node reads two distinct nodes."""
        last = NUM_INPUTS + int(generator.choice(self.nodes))
        graphs = {}
        for kind in KINDS:
            sources = {target: generator.permutation(target)[:2].tolist() for target in range(NUM_INPUTS, last)}
            edges = (Edge(self.names[0], source, target) for target, some in sources.items() for source in some)
            graphs[kind] = Graph(tuple(edges), tuple(range(NUM_INPUTS, last)))
        arch = Architecture(**graphs)
        return GraphSpace(arch, {kind: tuple(self.names for _ in graph.edges) for kind, graph in graphs.items()})


@dataclass(frozen=True)
class GraphSpace(Space):
    """One graph with a choice of operations for each edge that may change."""

    arch: Architecture
    options: Mapping[str, tuple[tuple[str, ...], ...]]  # per cell, per edge (including fixed ones)

    @property
    def ops(self) -> tuple[str, ...]:
        return _ordered(op for edges in self.options.values() for options in edges for op in options)

    def choices(self, kind: str) -> Choices:
        graph = self.arch.graph(kind)
        found: dict[tuple[int, int], set[str]] = {}
        own = self.options.get(kind, self.options["normal"])
        for edge, options in zip(graph.edges, own, strict=True):
            if not edge.fixed:
                found.setdefault((graph.names[edge.source], graph.names[edge.target]), set()).update(options)
        return {edge: _ordered(options) for edge, options in found.items()}

    def outputs(self, kind: str) -> tuple[int, ...]:
        graph = self.arch.graph(kind)
        nodes = range(NUM_INPUTS, NUM_INPUTS + len(graph.inputs))
        return tuple(nodes) if graph.merged_concat is None else tuple(sorted(graph.merged_concat))

    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        def column(options: tuple[str, ...]) -> list[str]:
            size = len(options)
            drawn = _dealt(count, size, (), generator) if fair else generator.integers(size, size=count)
            return [options[number] for number in drawn.tolist()]

        return _spread(self.arch, count, {kind: list(map(column, edges)) for kind, edges in self.options.items()})

    def one_graph(self, generator: np.random.Generator) -> GraphSpace:
        return self


def dealt_again(archs: Sequence[Architecture], generator: np.random.Generator) -> list[Architecture]:
    """Architectures of one graph with the operations of each edge permuted among them."""
    columns: dict[str, list[list[str]]] = {}
    for kind, _ in archs[0].cells():
        edges = zip(*(arch.graph(kind).ops for arch in archs), strict=True)
        columns[kind] = [generator.permutation(column).tolist() for column in edges]
    return _spread(archs[0], len(archs), columns)


def _spread(arch: Architecture, count: int, columns: Mapping[str, Sequence[Sequence[str]]]) -> list[Architecture]:
    """Architectures with the same graph; `columns` has the operations of all of them, per cell and edge."""
    return [
        arch.with_ops({kind: [column[index] for column in edges] for kind, edges in columns.items()})
        for index in range(count)
    ]


def nasbench201_space() -> GraphSpace:
    """The 15,625 architectures of NAS-Bench-201."""
    name = next(iter(NASBENCH201_OPS))
    arch = parse("+".join("|" + "".join(f"{name}~{source}|" for source in range(node)) for node in (1, 2, 3)))
    ops = _ordered(NASBENCH201_OPS.values())
    return GraphSpace(arch, {"normal": tuple((edge.op,) if edge.fixed else ops for edge in arch.normal.edges)})


def space_around(arch: Architecture, rule: str, where: Setting, *, strict: bool) -> GraphSpace:
    """The architectures that one architecture may be transformed into."""
    names = tuple(OPS)
    found = masks(arch, rule, where, strict=strict)
    return GraphSpace(
        arch, {kind: tuple(tuple(names[op] for op in np.flatnonzero(row)) for row in found[kind]) for kind in found}
    )


def named_space(name: str, nodes: Sequence[int] = (4, 5), *, extras: bool = False) -> Space:
    """A space by name; `nodes` and `extras` (operations that are not in the paper) apply to `cells`."""
    if name not in SPACES:
        raise SettingError(f"unknown space {name!r}. {did_you_mean(name, SPACES)}")
    if name == "nasbench201":
        return nasbench201_space()
    return CellSpace(tuple(nodes), tuple(OPS) if extras else PAPER_OPS)


def _ordered(ops: Iterable[str]) -> tuple[str, ...]:
    """Distinct operations, in the order of the registry."""
    wanted = {OPS[op].name for op in ops}
    return tuple(name for name in OPS if name in wanted)


def _dealt(count: int, options: int, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.int64]:
    """Numbers below `options`, (count, *shape), dealt along the first axis like cards from shuffled packs."""
    packs = np.broadcast_to(np.arange(options).reshape(-1, *[1] * len(shape)), (options, *shape))
    rounds = [generator.permuted(packs, axis=0) for _ in range(-(-count // options))]
    return np.concatenate(rounds)[:count]
