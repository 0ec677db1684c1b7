"""What a plan changes in a module, for JSON: its blocks and the decisions elsewhere, before and after."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from natpp.arch.graph import NULL
from natpp.arch.groups import told_group, told_place, told_where
from natpp.core.decision import Change, Plan
from natpp.decisions.operation import cost
from natpp.fx.blocks import Block, Term
from natpp.fx.traced import batch_of
from natpp.subjects.module_apart import Choice

if TYPE_CHECKING:
    from natpp.subjects.module import Module


def told_of(module: Module, plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
    """The blocks before and after, each with its decisions, then those elsewhere."""
    gone = {change.name for change in changes if change.after == NULL}
    pairs = zip(module.blocks, module.choices, module.block_ops(plan), strict=True)
    groups = [_block(module, *one, gone) for one in pairs]
    others = [_elsewhere(module, number, plan) for number in range(module.seen, len(plan))]
    return {"groups": groups} | ({"elsewhere": others} if others else {})


def _elsewhere(module: Module, number: int, plan: Plan) -> dict[str, Any]:
    """A decision elsewhere: its value before and after, and the [parameters, multiply-adds] of each option."""
    one, (_, nodes, kind) = module.decisions[number], module.elsewhere[number - module.seen]
    shaped = [own for node in nodes for own in module.shaped[node] if own.kind is kind]
    costs = {}
    for option in one.allowed:
        picked = *plan[:number], option, *plan[number + 1 :]
        added = [table[tuple(picked[by] for by in numbers)] for own in shaped for numbers, table in own.tables]
        figures = zip(*(own.cost for own in shaped), *added, strict=True)
        costs[str(one.options[option].value)] = [sum(some) for some in figures]
    before, after = (one.options[option].value for option in (0, plan[number]))
    alive = (module.alive_elsewhere(other)[number - module.seen] for other in ((0,) * len(plan), plan))
    spent = [costs[str(own)] if lives else None for own, lives in zip((before, after), alive, strict=True)]
    return {"name": one.name, "before": before, "after": after, "spent": spent, "costs": costs}


def _block(
    module: Module, block: Block, choices: Sequence[Choice], ops: Sequence[str], gone: Collection[str]
) -> dict[str, Any]:
    (before, _), (after, _) = block.alive(block.ops), block.alive(ops)
    decisions = []
    for index, ((target, term), op) in enumerate(zip(block.terms, ops, strict=True)):
        name, site = block.edge_name(index), term.site
        options = module.decisions[choices[index].decision].options
        may_be = dict.fromkeys(str(option.value) for option in options if option.allowed)
        costs = {other: _cost(module, term, other) for other in {**may_be, term.op: None, op: None}} if site else {}
        alive = before[index], after[index] and name not in gone
        spent = [costs.get(own, [0, 0]) if lives else None for own, lives in zip((term.op, op), alive, strict=True)]
        data = told_place(name, (term.source, target), (term.op, op), spent)
        decisions.append(data | {"places": [told_where(site.place)] if site else [], "costs": costs})
    group = told_group(block.name, block.kind, 1, (block.graph, block.with_ops(ops)))
    return group | {"decisions": decisions}


def _cost(module: Module, term: Term, op: str) -> list[int]:
    assert term.site is not None
    own = term.site.op if op == term.op else op  # the block calls a projection a skip
    return list(cost(term.site, own, batch_of(module.traced.example), module.traced.parts))
