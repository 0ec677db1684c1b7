"""Applies a published change of an architecture to the blocks of a module."""

from __future__ import annotations

from collections.abc import Sequence

from natpp.arch.graph import Architecture, Graph
from natpp.fx.blocks import Block


def adopt(blocks: Sequence[Block], before: Architecture, after: Architecture) -> list[tuple[str, ...]]:
    """The operations of blocks after a published change is applied to those with the same graph.

    Blocks with another graph keep their operations. Shortcuts between different shapes get weights of their own, so
    the result may cost more than the original.
    """
    found = []
    for block in blocks:
        old, new = before.graph(block.kind), after.graph(block.kind)
        if _topology(old) != _topology(block.graph) or (block.inputs[0] is None and _reads_older(new)):
            found.append(block.ops)
            continue
        edges = zip(block.graph.edges, old.edges, new.edges, strict=True)
        ops = [own.op if first.op == second.op else second.op for own, first, second in edges if not own.fixed]
        found.append(tuple(ops))
    return found


def _topology(graph: Graph) -> object:
    return graph.concat, [(edge.source, edge.target, edge.fixed) for edge in graph.edges]


def _reads_older(graph: Graph) -> bool:
    return any(edge.source == 0 and not edge.is_null for edge in graph.edges)
