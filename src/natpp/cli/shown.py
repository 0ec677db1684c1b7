"""What commands show of architectures, costs and searches: as JSON data, or printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from natpp import verbs
from natpp.arch.decisions import Decisions
from natpp.arch.formats import to_dict
from natpp.arch.load import load
from natpp.arch.rules import changes, same_graphs
from natpp.cli.output import print_json, print_table
from natpp.errors import counted
from natpp.report.text import architecture_text, new_table
from natpp.run import Run

if TYPE_CHECKING:
    from natpp.arch.graph import Architecture
    from natpp.arch.networks import Setting
    from natpp.core.measures import Cost
    from natpp.nets.policy import Policy
    from natpp.runs.search import Search
    from natpp.zoo import Entry, Model


def architecture_json(arch: Architecture, against: Architecture | None) -> dict[str, Any]:
    """An architecture with which of its edges are alive in every cell, and what changed."""
    data = {**to_dict(arch), "alive": {kind: list(graph.liveness().live) for kind, graph in arch.cells()}}
    if against is None:
        return data
    if not same_graphs(against, arch):
        return data | {"changes": None}
    found = changes(against, arch)
    return data | {"changes": [{name: getattr(one, name) for name in ("name", "before", "after")} for one in found]}


def entry_json(entry: Entry, found: Cost) -> dict[str, Any]:
    """An architecture of the zoo with its cost."""
    told = {name: getattr(entry, name) for name in ("kind", "source", "optimized_from", "note")}
    return {**told, **found.to_dict(), "published": [vars(row) for row in entry.published]}


def model_json(model: Model) -> dict[str, Any]:
    """A network of the zoo with its cost."""
    names = ("source", "note", "input_shape", "outputs", "embeds", "params", "madds")
    told = {name: getattr(model, name) for name in names}
    return {"kind": "network", **told, "published": [vars(row) for row in model.published]}


def print_cost(found: Cost, where: Setting) -> None:
    """The cost of an architecture in a network."""
    print(
        f"{where.network} network: {counted(where.channels, 'channel')}, {counted(where.cells, 'cell')}, "
        f"{counted(where.classes, 'class')}, "
        f"{where.size} x {where.size} image"
    )
    table = new_table("", "alive", "listed")
    table.add_row("parameters", f"{found.live_params:,}", f"{found.params:,}")
    table.add_row("multiply-adds", f"{found.live_madds:,}", f"{found.madds:,}")
    table.add_row("peak memory, bytes", f"{found.peak_memory_bytes:,}", "")
    if found.latency_ms is not None:
        table.add_row("latency, ms", f"{found.latency_ms:.2f} ± {found.latency_spread_ms:.2f}", "")
    print_table(table)


def print_module_cost(found: Cost) -> None:
    """The cost of a model."""
    print(f"parameters          {found.params:>18,}")
    print(f"multiply-adds       {found.madds:>18,}")
    print(f"peak memory, bytes  {found.peak_memory_bytes:>18,}")
    if found.latency_ms is not None:
        print(f"latency, ms         {found.latency_ms:>18.2f} ± {found.latency_spread_ms:.2f}")


def print_search(
    policy: Policy, out: str, config: Search, budget: str, seed: int, arch: str | None, *, json: bool
) -> None:
    """The result of a search: for one architecture the change, else scores of some inputs before and after."""
    from natpp.folder import last_row

    choices = last_row(out, "choices")
    file = os.path.join(out, "policy.safetensors")
    if json:
        print_json({"policy": file, "ops": policy.ops, "choices": choices})
        return
    best = os.path.join(out, "architecture.json")
    if arch is not None and os.path.exists(best):
        before, after = load(arch), load(best)
        print(architecture_text(after, before))
        for name in ("live_params", "live_madds"):
            old, new = (getattr(verbs.cost(one), name) for one in (before, after))
            print(f"{name.replace('_', ' '):<14} {old:>15,} → {new:>15,}  ({new / old - 1:+.1%})")
        print(f"best found: {best}")
    elif arch is not None:
        print(verbs.optimize(arch, policy, budget, decisions=Decisions(config.rule), run=Run(seed=seed)))
    if choices is not None:
        inputs = "the input" if choices["inputs"] == 1 else f"{choices['inputs']} inputs"
        print(f"score of {inputs}: {choices['before']:.2f}, after the change: {choices['after']:.2f}")
    print(f"policy: {file}")
