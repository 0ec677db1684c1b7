"""Random values for property tests."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.networks import Setting, setting
from natpp.registry import OPS

ALL_OPS = tuple(OPS)


@st.composite
def graphs(draw: st.DrawFn, ops: Sequence[str] = ALL_OPS, max_nodes: int = 5) -> Graph:
    """Two-input graphs with a concat list or loose ends; null is as likely as all other operations together."""
    num_nodes = draw(st.integers(1, max_nodes))
    choice = st.one_of(st.just("null"), st.sampled_from(ops))
    edges = [
        Edge(draw(choice), draw(st.integers(0, target - 1)), target)
        for target in range(2, 2 + num_nodes)
        for _ in range(2)
    ]
    listed = st.lists(st.integers(2, 1 + num_nodes), min_size=1, unique=True).map(tuple)
    return Graph(tuple(edges), draw(st.none() | listed))


@st.composite
def wide_graphs(draw: st.DrawFn) -> Graph:
    """Graphs whose nodes read any number of earlier ones, carried by chains and fixed edges."""
    num_nodes = draw(st.integers(1, 5))
    nodes = []
    for number in range(2, 2 + num_nodes):
        edge = st.tuples(st.sampled_from(ALL_OPS), st.integers(0, number - 1))
        nodes.append(draw(st.lists(edge, max_size=4)))
    listed = st.lists(st.integers(2, 1 + num_nodes), min_size=1, unique=True)
    return Graph.from_inputs(nodes, draw(st.none() | listed))


def architectures(**options: object) -> st.SearchStrategy[Architecture]:
    """Architectures with and without a reduction cell."""
    cells = graphs(**options) | wide_graphs()
    return st.builds(Architecture, cells, st.none() | cells)


@st.composite
def settings_of(draw: st.DrawFn, max_channels: int = 4, max_cells: int = 4, max_size: int = 33) -> Setting:
    """Small networks of every kind, odd sizes among them."""
    network = draw(st.sampled_from(["cifar", "imagenet", "nasbench201"]))
    return setting(
        network,
        channels=draw(st.integers(2, max_channels)),
        cells=draw(st.integers(1, max_cells if network != "nasbench201" else 2)),
        classes=3,
        size=draw(st.integers(1, max_size)),
    )


def random_architecture(generator: np.random.Generator, ops: Sequence[str] = ALL_OPS) -> Architecture:
    """A random architecture with loose ends, single outputs and many nulls among the draws: fast, for long loops."""

    def graph() -> Graph:
        num_nodes = int(generator.integers(1, 6))
        nulls = generator.random() * 0.8
        edges = tuple(
            Edge(
                "null" if generator.random() < nulls else str(generator.choice(ops)),
                int(generator.integers(target)),
                target,
            )
            for target in range(2, 2 + num_nodes)
            for _ in range(2)
        )
        if generator.random() < 0.4:
            return Graph(edges)
        chosen = generator.permutation(np.arange(2, 2 + num_nodes))[: generator.integers(1, num_nodes + 1)]
        return Graph(edges, tuple(int(node) for node in chosen))

    return Architecture(graph(), graph() if generator.random() < 0.8 else None)
