"""Options of two decisions that exclude each other: no plan may pick both."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch.fx.node import Node

from natpp.arch.graph import NULL
from natpp.core.blueprint import Price
from natpp.core.decision import Decision, Plan
from natpp.decisions.base import NodeKind, NodePlace, shaping
from natpp.fx.blocks import Block, Term

Pair = tuple[int, int]


class Choice(NamedTuple):
    """The choice at a term of a block: the number of its decision, and the operation of each allowed option."""

    decision: int
    ops: Mapping[int, str]


class Apart:
    """The pairs of options that exclude each other, by pairs of decisions; the second one is always about nodes."""

    def __init__(
        self, blocks: Sequence[Block], choices: Sequence[Sequence[Choice]], places: Sequence[NodePlace], first: int
    ):
        self.pairs: dict[Pair, set[Pair]] = defaultdict(set)
        self.partners: dict[int, set[int]] = defaultdict(set)
        decisions, shaped = [place.decision for place in places], shaping(places)
        for block, row in zip(blocks, choices, strict=True):
            for (target, term), choice in zip(block.terms, row, strict=True):
                rebuilt = [option for option, op in choice.ops.items() if op not in (term.op, NULL)]
                for node in _reach(block, target, term) if rebuilt else ():
                    for kind, numbers, _ in shaped.get(node, ()):
                        for number in numbers if apart_from_operations(term, node, kind) else ():
                            self._add((choice.decision, first + number), rebuilt, decisions[number].allowed[1:])
        for shapings in shaped.values():
            for one, other in itertools.combinations(shapings, 2):
                for pair in itertools.product(one.numbers, other.numbers) if other.after is None else ():
                    low, high = sorted(pair)
                    self._add((first + low, first + high), decisions[low].allowed[1:], decisions[high].allowed[1:])

    def _add(self, pair: Pair, some: Sequence[int], others: Sequence[int]) -> None:
        self.pairs[pair].update(itertools.product(some, others))
        self.partners[pair[0]].add(pair[1])
        self.partners[pair[1]].add(pair[0])

    def tables(self, decisions: Sequence[Decision]) -> dict[Pair, Mapping[Plan, Price | None]]:
        """For each pair of decisions, a price for every two options: None where they exclude each other."""
        return {
            pair: {
                key: None if key in apart else (0, 0, 0)
                for key in itertools.product(*(decisions[number].allowed for number in pair))
            }
            for pair, apart in self.pairs.items()
        }

    def broken(self, plan: Plan) -> Iterator[Pair]:
        """The pairs of decisions whose options exclude each other under a plan."""
        return (pair for pair, apart in self.pairs.items() if (plan[pair[0]], plan[pair[1]]) in apart)

    def allows(self, plan: Sequence[int], changed: Mapping[int, int]) -> bool:
        """Whether some decisions may change, in a plan whose options do not exclude each other."""
        for one, option in changed.items():
            for other in self.partners.get(one, ()):
                picked = changed.get(other, plan[other])
                pair, options = ((one, other), (option, picked)) if one < other else ((other, one), (picked, option))
                if options in self.pairs[pair]:
                    return False
        return True


def apart_from_operations(term: Term, node: Node, kind: NodeKind) -> bool:
    """Whether a decision about a node excludes other operations of the term: shapes change, or prices are joint."""
    return kind.reshapes or (kind.follows and term.site is not None and node in term.site.main)


def _reach(block: Block, target: int, term: Term) -> list[Node]:
    """The nodes of a term's site and what it reads; without a site, the values that it connects."""
    if term.site is not None:
        return [*term.site.nodes, term.site.source]
    ends = (_value(block, number) for number in (term.source, target))
    return [node for node in ends if node is not None]


def _value(block: Block, number: int) -> Node | None:
    if number < 2:
        return block.inputs[number]
    node = block.nodes[number - 2]
    return _value(block, node.terms[-1].source) if node.item is None else node.item.output
