"""Architectures as values: edges with operations, cell graphs made of edges, pairs of cells.

Nodes 0 and 1 are a cell's inputs (0 is the older one). Intermediate nodes start at 2 and read two earlier nodes each. A
node with any other number of inputs is built with fixed edges: a fixed null fills up to two inputs, and a chain of
nodes joined by fixed skips has more than two. So all graphs have the same form, and `inputs` converts back.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from natpp.arch.canonical import Nodes, canonical_inputs
from natpp.core.blueprint import Join, reached_and_alive
from natpp.errors import GraphError, counted, shortened
from natpp.registry import OPS

NUM_INPUTS = 2
KINDS = ("normal", "reduce")  # the cells of an architecture
SKIP, NULL = "skip_connect", "null"


@dataclass(frozen=True)
class Edge:
    """An operation from one node to a later one. A fixed edge is part of the structure and may not change."""

    op: str
    source: int
    target: int
    fixed: bool = False

    def __post_init__(self) -> None:
        OPS[self.op]  # raises an error for an unknown name
        for end, node in (("source", self.source), ("target", self.target)):
            if not isinstance(node, int) or isinstance(node, bool):
                raise GraphError(f"the {end} of an edge is {_quoted(node)}, expected the number of a node")
        if self.target < NUM_INPUTS:
            given = f"the target of an edge is node {self.target}"
            raise GraphError(f"{given}, but nodes 0 and 1 are the cell's inputs: expected 2 or more")
        if not 0 <= self.source < self.target:
            raise GraphError(
                f"node {self.target} reads node {self.source}, expected a node from 0 to {self.target - 1}"
            )
        if self.fixed and self.op not in (SKIP, NULL):
            raise GraphError(f"a fixed edge must be {SKIP} or {NULL}, not {self.op}")

    @property
    def is_null(self) -> bool:
        return self.op == NULL


class Liveness(NamedTuple):
    """Which parts of a graph are live in their place of the network."""

    reached: tuple[bool, ...]  # per node: data from the network's input reaches it; otherwise it is zero
    live: tuple[bool, ...]  # per edge: it carries data to an output that is read
    inputs: tuple[bool, bool]  # per input: whether a live edge reads it
    output: bool  # data from the network's input reaches the output


def node_step(node: int) -> int:
    """Index of the step of a cell that computes a node: after both inputs, each node has two edges and their sum."""
    return node if node < NUM_INPUTS else 3 * node - 2


def edge_step(index: int) -> int:
    """Index of the step of a cell that is an edge."""
    return NUM_INPUTS + index // 2 * 3 + index % 2


@dataclass(frozen=True)
class Graph:
    """A cell: edges ordered by target, two per node, and the nodes that its output concatenates.

    `concat=None` means the loose ends: the nodes that no edge reads (null edges do not count).

    Examples:
        >>> from natpp.arch.graph import Edge, Graph
        >>> graph = Graph((Edge("conv_3x3", 0, 2), Edge("null", 1, 2)), concat=(2,))
        >>> graph.ops, graph.num_nodes
        (('conv_3x3', 'null'), 3)
    """

    edges: tuple[Edge, ...]
    concat: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(edge, Edge) for edge in self.edges):
            raise GraphError("the edges of a graph must be of the form Edge(op, source, target)")
        if not (self.concat is None or isinstance(self.concat, Iterable)):
            raise GraphError(
                f"the concat list is {_quoted(self.concat)}, expected a list of nodes, or None for loose ends"
            )
        object.__setattr__(self, "edges", tuple(sorted(self.edges, key=lambda edge: edge.target)))
        if not self.edges:
            raise GraphError("the cell has no edges, expected at least one node with two incoming edges")
        incoming = [0] * (len(self.edges) + NUM_INPUTS)
        for edge in self.edges:
            if edge.target >= len(incoming):
                raise GraphError(f"node {edge.target} has incoming edges, but some nodes before it have none")
            incoming[edge.target] += 1
        for node in range(NUM_INPUTS, self.edges[-1].target + 1):
            if incoming[node] != 2:
                raise GraphError(f"node {node} has {counted(incoming[node], 'incoming edge')}, expected 2")
        if self.concat is not None:
            self._check_concat(tuple(self.concat))
        if any(edge.fixed for edge in self.edges):
            self._check_fixed()

    def _check_concat(self, concat: tuple[int, ...]) -> None:
        object.__setattr__(self, "concat", concat)
        if not concat:
            raise GraphError("the concat list is empty: give at least one node, or None for loose ends")
        for node in concat:
            if not isinstance(node, int) or isinstance(node, bool) or not NUM_INPUTS <= node < self.num_nodes:
                raise GraphError(
                    f"the concat list contains node {_quoted(node)}, but the cell's nodes are "
                    f"{NUM_INPUTS} to {self.num_nodes - 1}"
                )
        if len(set(concat)) < len(concat):
            raise GraphError(f"the concat list {list(concat)} contains a node twice")

    def _check_fixed(self) -> None:
        """Raise an error unless fixed edges are exactly where `from_inputs` puts them, so that the form is unique."""
        links = [edge.source for edge in self.edges if edge.fixed and edge.op == SKIP]
        sources = [edge.source for edge in self.edges]
        for node in links:
            if node < NUM_INPUTS or sources.count(node) > 1 or node in (self.concat or ()):
                raise GraphError(f"a fixed skip joins two parts of one node, but node {node} is also read elsewhere")
        edges = [(edge.op, edge.source, edge.target, edge.fixed) for edge in self.edges]
        if _two_input_edges(self.inputs)[0] != edges:
            raise GraphError("the graph has fixed edges that no node needs to get two inputs")

    @functools.cached_property
    def num_nodes(self) -> int:
        """Number of nodes, including the two inputs."""
        return self.edges[-1].target + 1

    @functools.cached_property
    def outputs(self) -> tuple[int, ...]:
        """The nodes that the output concatenates, in order."""
        if self.concat is not None:
            return self.concat
        read = {edge.source for edge in self.edges if not edge.is_null}
        return tuple(node for node in range(NUM_INPUTS, self.num_nodes) if node not in read)

    @functools.cached_property
    def ops(self) -> tuple[str, ...]:
        """The operation of every edge."""
        return tuple(edge.op for edge in self.edges)

    @functools.cached_property
    def topology(self) -> tuple[tuple[int, int, str | None], ...]:
        """Sources and targets of all edges, and the operations of fixed edges."""
        return tuple([(edge.source, edge.target, edge.op if edge.fixed else None) for edge in self.edges])

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.edges, self.concat))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """Without cached values: hashes of strings differ between processes."""
        return {"edges": self.edges, "concat": self.concat}

    def into(self, node: int) -> tuple[int, int]:
        """The indices of a node's two incoming edges."""
        first = 2 * (node - NUM_INPUTS)
        return first, first + 1

    def with_ops(self, ops: Sequence[str]) -> Graph:
        """The same graph with other operations on its edges."""
        if len(ops) != len(self.edges):
            raise GraphError(f"got {counted(len(ops), 'operation')} for {counted(len(self.edges), 'edge')}")
        edges = []
        for edge, op in zip(self.edges, ops, strict=True):
            if edge.fixed and edge.op != op:
                raise GraphError(f"the edge {edge.source} → {edge.target} is fixed: it must keep {edge.op}")
            edges.append(edge if edge.op == op else Edge(op, edge.source, edge.target, edge.fixed))
        return self._again(tuple(edges), self.concat)

    def _again(self, edges: tuple[Edge, ...], concat: tuple[int, ...] | None) -> Graph:
        """This graph with other operations on its free edges; needs no new checks."""
        graph = object.__new__(Graph)
        graph.__dict__.update(edges=edges, concat=concat)
        return graph

    def liveness(self) -> Liveness:
        """What is live if both inputs carry data and the output is read; null edges are dead."""
        reads: list[Sequence[int]] = [(), ()]
        for index, edge in enumerate(self.edges):
            reads.append((node_step(edge.source),))
            if index % 2:
                reads.append((len(reads) - 2, len(reads) - 1))
        reads.append([node_step(node) for node in self.outputs])
        passing = [1] * len(reads)
        for index, edge in enumerate(self.edges):
            passing[edge_step(index)] = int(not edge.is_null)
        joins: list[Join] = ["sum" if sources else "all" for sources in reads]
        output = len(reads) - 1
        return self.liveness_in(*reached_and_alive(reads, joins, passing, {output: 1}), output=output)

    def liveness_in(self, reached: Sequence[int], alive: Sequence[int], start: int = 0, *, output: int) -> Liveness:
        """What is live in a network where the cell's steps begin at `start` and step `output` computes its output."""
        nodes = [start + node_step(node) for node in range(self.num_nodes)]
        edges = [start + edge_step(index) for index in range(len(self.edges))]
        return Liveness(
            tuple([bool(reached[node]) for node in nodes]),
            tuple([bool(alive[edge]) for edge in edges]),
            (bool(alive[nodes[0]]), bool(alive[nodes[1]])),
            bool(reached[output]),
        )

    def pruned(self) -> Graph:
        """The same function with every dead edge set to null, and an explicit concat list."""
        live = self.liveness().live
        ops = [edge.op if alive or edge.fixed else NULL for edge, alive in zip(self.edges, live, strict=True)]
        return self._again(self.with_ops(ops).edges, self.outputs)

    # Nodes with any number of inputs.

    @classmethod
    def from_inputs(cls, nodes: Nodes, concat: Sequence[int] | None = None) -> Graph:
        """The graph of nodes with any number of inputs: per node from 2 on, a list of (op, source)."""
        given, places = _two_input_edges(nodes)
        edges = tuple(Edge(*one) for one in given)
        if concat is None:
            return cls(edges)
        for node in concat:
            if node not in places or node < NUM_INPUTS:
                raise GraphError(
                    f"the concat list contains node {node}, but the cell's nodes are 2 to {len(nodes) + 1}"
                )
        return cls(edges, tuple(places[node] for node in concat))

    @functools.cached_property
    def inputs(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The inverse of `from_inputs`: the (op, source) pairs of each node, without fixed edges."""
        nodes: list[list[tuple[str, int]]] = [[] for _ in range(NUM_INPUTS, self.names[-1] + 1)]
        for edge in self.edges:
            if not edge.fixed:
                nodes[self.names[edge.target] - NUM_INPUTS].append((edge.op, self.names[edge.source]))
        return tuple(map(tuple, nodes))

    @functools.cached_property
    def names(self) -> tuple[int, ...]:
        """The number of every node in `inputs`; all parts of a chain have the same number."""
        links = {edge.source for edge in self.edges if edge.fixed and edge.op == SKIP}
        return tuple(itertools.accumulate((node not in links for node in range(self.num_nodes - 1)), initial=0))

    @property
    def merged_concat(self) -> tuple[int, ...] | None:
        """The concat list, numbered as in `inputs`."""
        return None if self.concat is None else tuple(self.names[node] for node in self.concat)

    def canonical(self) -> Graph:
        """An equal graph for all graphs that differ only in node names and the order of edges and concat."""
        return Graph.from_inputs(*canonical_inputs(self.inputs, self.merged_concat))

    def living(self) -> tuple[list[list[tuple[str, int]]], list[int]]:
        """The live part of the graph, as nodes and a concat list like `inputs`."""
        pruned = self.pruned()
        nodes, concat = pruned.inputs, pruned.merged_concat
        assert concat is not None
        living = [[(op, source) for op, source in inputs if op != NULL] for inputs in nodes]
        read = {*concat, *(source for inputs in living for _, source in inputs)}
        names = {0: 0, 1: 1}
        for node in range(NUM_INPUTS, NUM_INPUTS + len(nodes)):
            if node in read:
                names[node] = len(names)
        nodes_left = (living[node - NUM_INPUTS] for node in names if node >= NUM_INPUTS)
        kept = [[(op, names[source]) for op, source in inputs] for inputs in nodes_left]
        return kept, [names[node] for node in concat]

    def essence(self) -> Graph:
        """What the graph computes: the canonical form of its live part."""
        return self._essence

    @functools.cached_property
    def _essence(self) -> Graph:
        return Graph.from_inputs(*canonical_inputs(*self.living()))


@dataclass(frozen=True)
class Architecture:
    """A normal cell and a reduction cell. Without a reduction cell, the normal cell is used instead.

    Examples:
        >>> darts = natpp.load("darts")
        >>> [kind for kind, _ in darts.cells()]
        ['normal', 'reduce']
        >>> cheaper = darts.with_ops({"normal": ["skip_connect"] * 8, "reduce": darts.reduce.ops})
        >>> darts == cheaper, darts.isomorphic(darts.canonical())
        (False, True)
    """

    normal: Graph
    reduce: Graph | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.normal, Graph) or not isinstance(self.reduce, Graph | None):
            raise GraphError("the cells of an architecture must be graphs: Architecture(normal, reduce)")

    def graph(self, kind: str) -> Graph:
        """The graph of cells of this kind, `normal` or `reduce`."""
        return self.normal if kind == "normal" or self.reduce is None else self.reduce

    def cells(self) -> Iterator[tuple[str, Graph]]:
        """The distinct cells of the architecture: (kind, graph)."""
        yield "normal", self.normal
        if self.reduce is not None:
            yield "reduce", self.reduce

    @property
    def topology(self) -> tuple[object, ...]:
        """Equal for architectures that differ in nothing but operations on free edges."""
        return tuple((kind, graph.concat, graph.topology) for kind, graph in self.cells())

    def with_ops(self, ops: Mapping[str, Sequence[str]]) -> Architecture:
        """The same graphs with other operations, for the given kinds."""
        graphs = {kind: graph.with_ops(ops[kind]) if kind in ops else graph for kind, graph in self.cells()}
        return Architecture(**graphs)

    def pruned(self) -> Architecture:
        """The same function with the dead edges of each cell set to null."""
        return Architecture(**{kind: graph.pruned() for kind, graph in self.cells()})

    def canonical(self) -> Architecture:
        """The same architecture for all isomorphic ones."""
        return Architecture(**{kind: graph.canonical() for kind, graph in self.cells()})

    def essence(self) -> Architecture:
        """What the architecture computes: the same for all that differ only in names, order and dead parts."""
        return Architecture(**{kind: graph.essence() for kind, graph in self.cells()})

    @property
    def key(self) -> Architecture:
        """Equal for architectures that compute the same function; they are scored once."""
        return self.essence()

    def isomorphic(self, other: Architecture) -> bool:
        """Whether both are equal up to the names of nodes and the order of a node's edges."""
        return self.canonical() == other.canonical()


def _two_input_edges(nodes: Nodes) -> tuple[list[tuple[str, int, int, bool]], dict[int, int]]:
    """The arguments of the edges for nodes with any number of inputs, and the number of each node in the graph."""
    edges: list[tuple[str, int, int, bool]] = []
    places = {0: 0, 1: 1}  # number of a node in `nodes` → its number in the graph
    for number, inputs in enumerate(nodes, start=NUM_INPUTS):
        read = []
        for op, source in inputs:
            if source not in places:
                raise GraphError(f"node {number} reads node {source}, expected a node from 0 to {number - 1}")
            read.append((op, places[source], False))
        while len(read) < 2:
            read.append((NULL, 0, True))
        target = NUM_INPUTS + len(edges) // 2
        edges += ((op, source, target, fixed) for op, source, fixed in read[:2])
        for op, source, fixed in read[2:]:
            edges += ((SKIP, target, target + 1, True), (op, source, target + 1, fixed))
            target += 1
        places[number] = target
    return edges, places


def _quoted(node: object) -> str:
    return shortened(node) if isinstance(node, str) else shortened(repr(node))[1:-1]
