"""How a plan is written: blocks as sums of the terms that are alive, and other nodes, each by its kind of decision."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch.fx.node import Node

from natpp.arch.graph import NULL
from natpp.core.decision import Plan
from natpp.decisions.base import NodePlace, Shaping, Spot, Values, shaping, term_kind
from natpp.fx.blocks import Block
from natpp.fx.rewrite import Draft, Swap
from natpp.fx.sites import Sum

Ops = Sequence[str]  # one operation for each term of a block


def block_edits(blocks: Sequence[Block], ops: Sequence[Ops]) -> list[BlockEdit]:
    """The edits that give blocks these operations; blocks that keep theirs need none."""
    pairs = zip(blocks, ops, strict=True)
    return [BlockEdit(block, row) for block, row in pairs if tuple(row) != block.ops]


def node_swaps(places: Sequence[NodePlace], plan: Plan) -> dict[Node, Swap]:
    """What takes the place of nodes under the options of decisions elsewhere; unchanged nodes are left out."""

    def values(numbers: Sequence[int]) -> Values:
        return tuple(places[number].decision.options[plan[number]].value for number in numbers)

    def swap(first: Shaping, then: Shaping | None) -> Swap:
        def made(draft: Draft, node: Node, find: Callable[[Node], Node]) -> Node:
            if then is None:
                return first.kind.apply(draft, node, values(first.numbers), find)
            given = first.kind.given(draft.traced, node, values(first.numbers))
            return then.kind.apply(draft, node, values(then.numbers), find, given)

        return made

    found = dict[Node, Swap]()
    for node, shapings in shaping(places).items():
        used = [one for one in shapings if any(plan[number] for number in one.numbers)]
        if used:
            found[node] = swap(used[0], used[1] if len(used) > 1 else None)
    return found


class BlockEdit:
    """A block with other operations, and which of its terms are alive."""

    def __init__(self, block: Block, ops: Ops):
        self.block, self.ops = block, tuple(ops)
        self.values: dict[int, Node] = {}
        self.live, _ = block.alive(ops)
        self.needed = [False] * (len(block.nodes) + 2)
        for number in block.outputs:
            self.needed[number] = True
        for (_, term), alive in zip(block.terms, self.live, strict=True):
            self.needed[term.source] |= alive
        self.nodes = {node for item in block.items for node in item.nodes}
        self.heard_as = block.read_outside_as
        older, pairs = block.inputs[0], zip(block.terms, self.ops, strict=True)
        added = any(term.source == 0 and term.op == NULL != op for (_, term), op in pairs)
        self.reads = [older] if older is not None and added else []

    def write(self, draft: Draft, node: Node) -> Node | None:
        """The new value of a site or sum, if anything still reads it and it still has an input."""
        number = self.heard_as.get(node)
        return self._value(draft, number) if number is not None and self.needed[number] else None

    def _value(self, draft: Draft, number: int) -> Node | None:
        if number < 2:
            given = self.block.inputs[number]
            assert given is not None
            return draft.new.get(given)
        if number in self.values:
            return self.values[number]
        item = self.block.nodes[number - 2].item
        terms = enumerate(self.block.terms)
        live = [(index, term) for index, (target, term) in terms if target == number and self.live[index]]
        live.sort(key=lambda pair: (pair[1].op == NULL, pair[1].order))  # added shortcuts come last
        sources = [self._value(draft, term.source) for _, term in live]
        pairs = zip(live, sources, strict=True)
        found = [self._term(draft, index, read, alone=len(live) == 1) for (index, _), read in pairs if read is not None]
        if not found or None in sources:  # nothing is left, or what it reads was taken out
            return None
        total = found[0]
        for other in found[1:]:
            total = draft.function(operator.add, total, other)
        if isinstance(item, Sum):
            if len(found) == 1:
                draft.guarded.add(total)  # others may read the same tensor
            else:
                draft.stands[total] = item.additions[-1]
            total = draft.chain(item.after, item.additions[-1], total)
        self.values[number] = total
        return total

    def _term(self, draft: Draft, index: int, source: Node, *, alone: bool) -> Node:
        _, term = self.block.terms[index]
        if self.ops[index] != term.op:
            spot = Spot(draft.traced, self.block, index)
            return term_kind(term).apply(draft, spot, self.ops[index], source, alone=alone)
        return source if term.site is None else draft.chain(term.site.nodes, term.site.source, source)
