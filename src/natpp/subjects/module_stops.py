"""Why a module cannot get cheaper: where the cost of its cheapest plan lies, and what keeps it there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch.fx.node import Node

from natpp.core.decision import Plan
from natpp.core.measures import COUNTED
from natpp.fx.sites import Finder

if TYPE_CHECKING:
    from natpp.subjects.module import Module

KEPT, UNKNOWN, LEAST = "kept", "unknown", "least"
SMALL = 0.01  # a share of the remaining cost that is not worth a word
MOST_NAMED = 3  # types of layers, and reasons
NOTHING = "None of the changes that are left saves any"


def stopped_by(module: Module, plan: Plan, limits: Mapping[str, float]) -> str:
    """Where the cost of a plan lies that could not be saved, and why; without a full stop at the end."""
    over = {one: figure for one, figure in module.living(plan).items() if figure > limits.get(one, float("inf"))}
    if not over:  # what is left to save is measured
        return NOTHING
    name = max(over, key=lambda one: over[one] / limits[one])
    held, types, reasons = Counter[str](), Counter[str](), Counter[str]()
    for cost, kind, detail in _held(module, plan, COUNTED.index(name)):
        held[kind] += cost
        (types if kind == UNKNOWN else reasons).update(dict.fromkeys(detail, cost))
    ruled_out = _largest(reasons)
    told = {
        KEPT: "in parts to keep",
        UNKNOWN: f"in layers that natpp cannot change ({_largest(types)})",
        LEAST: f"in layers whose other options are ruled out ({ruled_out})" if ruled_out else "in the smallest layers",
    }
    shares = {told[kind]: cost / over[name] for kind, cost in held.most_common() if cost >= SMALL * over[name]}
    more = ". Deciding block by block may save more: share_blocks=False" if module.ask.share_blocks else ""
    return f"Of what remains, {', '.join(f'{share:.0%} is {text}' for text, share in shares.items())}{more}"


def _largest(counts: Counter[str]) -> str:
    most = sum(counts.values())
    return ", ".join(name for name, cost in counts.most_common(MOST_NAMED) if cost >= SMALL * most)


def _held(module: Module, plan: Plan, figure: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """What every place of a plan still costs, why it stays, and the type of its layer or why options are forbidden."""
    tally, finder = module.tally.at(plan), Finder(module.traced, module.ask.keep)
    nodes = {node.name: node for node in module.traced.graph.nodes}
    costs, decided = Counter[str](), dict[str, set[int]]()
    for number, step in enumerate(module.blueprint.steps):
        name = step.name.partition(", changed")[0].removeprefix("parameters of ")
        decided.setdefault(name, set()).update(step.by)
        price = step.prices[tuple(plan[one] for one in step.by)] if tally.alive(number) else None
        costs[name] += price[figure] if price else 0
    for name, cost in costs.items():
        node = nodes.get(name)
        if node is not None and finder.keeps(node):
            yield cost, KEPT, ()
        elif decided[name]:
            options = [option for one in decided[name] for option in module.decisions[one].options]
            yield cost, LEAST, tuple(sorted({option.why_not for option in options if option.why_not}))
        else:
            yield cost, UNKNOWN, (_type(module, node, name),)


def _type(module: Module, node: Node | None, name: str) -> str:
    """What a place holds: the type of its layer, or the name of its function."""
    path = name if node is None else str(node.target)
    part = module.traced.parts.get(path) if node is None or node.op == "call_module" else None
    if part is not None:
        return type(part).__name__
    target = name if node is None else node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
