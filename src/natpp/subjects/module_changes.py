"""What a plan changes in a module, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from natpp.arch.graph import NULL
from natpp.core.decision import Change, Plan

if TYPE_CHECKING:
    from natpp.subjects.module import Module


def changes_of(module: Module, plan: Plan, chances: Sequence[Sequence[float]] | None) -> tuple[Change, ...]:
    """The changes of every block, those elsewhere, then what was removed since no other block reads it any more."""
    return *in_blocks(module, plan, chances), *module.other_changes(plan), *_vanished(module, plan)


def in_blocks(module: Module, plan: Plan, chances: Sequence[Sequence[float]] | None = None) -> Iterator[Change]:
    """The changes of every block, and what is no longer alive in it."""
    for block, choices, ops in zip(module.blocks, module.choices, module.block_ops(plan), strict=True):
        if ops == block.ops:
            continue
        live, _ = block.alive(ops)
        for index, ((_, term), (number, _)) in enumerate(zip(block.terms, choices, strict=True)):
            before, after = term.op, ops[index]
            if before == after and not (term.site is not None and not live[index]):
                continue
            gone = before == after or (not live[index] and after != NULL)
            if gone and before == NULL:
                continue
            likely = None if chances is None else 1.0 if gone else chances[number][plan[number]]
            kind = module.decisions[number].kind
            yield Change(block.edge_name(index), kind, before, NULL if gone else after, likely)


def _vanished(module: Module, plan: Plan) -> Iterator[Change]:
    present = {node.name for node in module.written(plan).graph.nodes}
    for block, choices, ops in zip(module.blocks, module.choices, module.block_ops(plan), strict=True):
        live, _ = block.alive(ops)
        for (_, term), op, alive, choice in zip(block.terms, ops, live, choices, strict=True):
            if term.site is not None and alive and op == term.op and term.site.main[0].name not in present:
                yield Change(term.site.name, module.decisions[choice.decision].kind, term.op, NULL, 1.0)
