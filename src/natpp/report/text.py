"""Architectures and tables as text for the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.rules import changes, same_graphs
from natpp.errors import counted
from natpp.report.draw import TITLES

if TYPE_CHECKING:
    from rich.table import Table


def architecture_text(arch: Architecture, against: Architecture | None = None) -> str:
    """One line per node with its inputs; changes from `against` are shown as old → new."""
    comparable = against is not None and same_graphs(against, arch)
    lines = []
    for kind, graph in arch.cells():
        before = against.graph(kind) if against is not None and comparable else None
        lines += [_heading(kind, graph), *_nodes(graph, before), ""]
    if against is not None:
        if comparable:
            lines.append(f"{counted(len(changes(against, arch)), 'edge')} changed")
        else:
            lines.append("The two graphs differ, so no changes are marked.")
    return "\n".join(lines).rstrip()


def _heading(kind: str, graph: Graph) -> str:
    nodes = ", ".join(map(str, graph.outputs))
    loose = " (loose ends)" if graph.concat is None else ""
    return f"{TITLES[kind]}, output: {nodes}{loose}"


def _nodes(graph: Graph, before: Graph | None) -> list[str]:
    live = graph.liveness().live
    rows = []
    for node in range(2, graph.num_nodes):
        terms = []
        for index in graph.into(node):
            edge = graph.edges[index]
            old = before.edges[index] if before is not None else edge
            terms.append(_term(edge, old, live[index]))
        rows.append((f"  {node} =", *terms))
    width = max(len(first) for _, first, _ in rows)
    return [f"{name} {first:<{width}}  +  {second}".rstrip() for name, first, second in rows]


def _term(edge: Edge, old: Edge, alive: bool) -> str:
    change = "" if old.op == edge.op else f" → {edge.op}"
    note = " [fixed]" if edge.fixed else "" if alive or edge.is_null else " [dead]"
    return f"{old.op}({edge.source}){change}{note}"


def new_table(*headers: str) -> Table:
    """A table for figures and words, printed without lines between columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, header in enumerate(headers):
        number = header.lower().endswith(("params", "madds")) or header in ("alive", "listed")
        table.add_column(header, justify="right" if number else "left", no_wrap=number or place == 0)
    return table


def table_text(table: Table, width: int = 140) -> str:
    """The table as text of at most this width."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().removesuffix("\n")
