"""A traced module as a blueprint: what is alive in it under any plan and what it costs, without building it.

Every value outside of blocks is a step, and so are the terms of blocks and their sums. Parameters used by several
values are steps, too: they stay as long as one of these does. What the blueprint calls alive is what `fx.rewrite`
keeps.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Node
from torch.utils._pytree import tree_iter

from natpp.arch.graph import NULL
from natpp.core.blueprint import FREE, Blueprint, Price, Step
from natpp.core.decision import Plan
from natpp.decisions.base import NodePlace, shaping, term_kind
from natpp.decisions.operation import forms
from natpp.fx.aliasing import idle, looks_at, must_be_read
from natpp.fx.blocks import Block, Term
from natpp.fx.fake import Values
from natpp.fx.modes import in_mode
from natpp.fx.sites import Sum
from natpp.fx.traced import Traced, parameters_of, value
from natpp.nets.measure import MultiplyAdds, unfused

FIGURES = ("params", "madds", "made")  # made: bytes of the values that blocks compute, which drive peak memory
Prices = Mapping[Plan, Price | None]


class Choice(NamedTuple):
    """The choice at a term of a block: the number of its decision, and the operation of each allowed option."""

    decision: int
    ops: Mapping[int, str]


class Shaped(NamedTuple):
    """A node that depends on decisions elsewhere: their numbers, and by their options its parameters and MAdds."""

    by: tuple[int, ...]
    prices: Mapping[Plan, tuple[int, int]]


def shaped_nodes(traced: Traced, places: Sequence[NodePlace], first: int) -> dict[Node, Shaped]:
    """The nodes that depend on decisions elsewhere, which are numbered from `first`."""
    found = {}
    for node, (kind, numbers) in shaping(places).items():
        decisions = [places[number].decision for number in numbers]
        prices = {
            plan: kind.price(traced, node, tuple(one.options[o].value for one, o in zip(decisions, plan, strict=True)))
            for plan in itertools.product(*(one.allowed for one in decisions))
        }
        found[node] = Shaped(tuple(first + number for number in numbers), prices)
    return found


def module_blueprint(
    traced: Traced,
    blocks: Sequence[Block],
    choices: Sequence[Sequence[Choice]],
    shaped: Mapping[Node, Shaped] = MappingProxyType({}),
) -> Blueprint:
    """The blueprint of a module: blocks with a choice for every term, and nodes that other decisions shape."""
    return _Drawn(traced, blocks, choices, shaped).blueprint()


class _Drawn:
    def __init__(
        self,
        traced: Traced,
        blocks: Sequence[Block],
        choices: Sequence[Sequence[Choice]],
        shaped: Mapping[Node, Shaped],
    ):
        self.traced, self.blocks, self.choices, self.shaped = traced, blocks, choices, shaped
        self.steps: list[Step] = []
        self.known: dict[Any, int] = {}  # the step of a value: a node outside of blocks, or (block, number)
        self.inside = {node: number for number, block in enumerate(blocks) for node in _nodes(block)}
        self.owner = {
            node: (number, place)
            for number, block in enumerate(blocks)
            for node, place in block.read_outside_as.items()
        }
        self.idle = idle(traced.graph, traced.parts)
        self.must_be_read = {self._key(one) for one in must_be_read(traced.graph, self.inside.keys(), traced.parts)}
        self.weights = {  # of sites: they are removed with their site
            node
            for node in traced.graph.nodes
            if node.op == "get_attr" and node.users and all(reader in self.inside for reader in node.users)
        }
        self.outside = [node for node in traced.graph.nodes if node not in self.inside and node not in self.weights]
        self.madds = node_madds(traced, self.outside)
        users = Counter(id(one) for node in self.outside for one in parameters_of(node, traced.parts))
        self.shared = {key for key, count in users.items() if count > 1}

    def blueprint(self) -> Blueprint:
        outside, costly = {node for node in self.outside if node.op != "output"}, self._costly()
        for node in self.traced.graph.nodes:
            if node in self.owner:
                self._of(self.owner[node])
            elif node in outside and (node not in self.idle or node in costly):
                self._of(node)
        (output,) = (node for node in self.traced.graph.nodes if node.op == "output")
        kept = [  # nothing reads them, but they have an effect, so they stay
            self._of(node)
            for node in self.outside
            if node in outside and node.op != "placeholder" and node not in self.idle and set(node.users) <= self.idle
        ]
        self._add("output", [*map(self._of, output.all_input_nodes), *kept])
        return Blueprint(tuple(self.steps), FIGURES)

    def _add(self, name: str, reads: Sequence[int], prices: Prices = FREE, by: Plan = (), **more: Any) -> int:
        self.steps.append(Step(name, tuple(reads), prices, by, **more))
        return len(self.steps) - 1

    def _costing(self, price: Price, nodes: Sequence[Node]) -> dict[str, Any]:
        """The prices of a step that has these nodes, and the decisions elsewhere that shape them."""
        table, by = self._shaped({(): price}, (), nodes)
        return {"prices": table, "by": by} if by or any(price) else {}

    def _shaped(
        self, prices: Prices, by: Plan, nodes: Sequence[Node], gone: Callable[[Plan], Collection[Node]] = lambda _: ()
    ) -> tuple[Prices, Plan]:
        """The same prices under decisions elsewhere, too; `gone` are the nodes that some options remove."""
        for node in nodes:
            if node in self.shaped:
                numbers, own = self.shaped[node]
                params, madds = own[(0,) * len(numbers)]
                prices = {
                    (*key, *more): price
                    if price is None or node in gone(key)
                    else (price[0] + new[0] - params, price[1] + new[1] - madds, price[2])
                    for key, price in prices.items()
                    for more, new in own.items()
                }
                by = *by, *numbers
        return prices, by

    # Values outside of blocks.

    def _of(self, read: Node | tuple[int, int]) -> int:
        """The step that a reader of a value reads: the value, or one behind it that must stay alive."""
        made, key = self._made(read), self._key(read)
        if key not in self.must_be_read:
            return made
        if (key, "read") not in self.known:
            self.known[key, "read"] = self._add(f"{self.steps[made].name} is read", [made], keep="alive")
        return self.known[key, "read"]

    def _made(self, read: Node | tuple[int, int]) -> int:
        """The step of a value, created if it does not exist yet."""
        key = self._key(read)
        if key not in self.known:
            self.known[key] = self._outside(key) if isinstance(key, Node) else self._inside(*key)
        return self.known[key]

    def _key(self, read: Node | tuple[int, int]) -> Node | tuple[int, int]:
        """One name for a value: its block and its number there, or its node outside of blocks."""
        if isinstance(read, Node):
            return self.owner.get(read, read)
        number, place = read
        given = self.blocks[number].inputs[place] if place < 2 else None
        return read if given is None else self._key(given)

    def _outside(self, node: Node) -> int:
        reads = [self._made(one) if looks_at(node) else self._of(one) for one in node.all_input_nodes]
        held = parameters_of(node, self.traced.parts)
        for one in held:
            if id(one) in self.shared:
                if id(one) not in self.known:
                    cost = self._costing((one.numel(), 0, 0), ())
                    self.known[id(one)] = self._add(f"parameters of {node.name}", (), **cost)
                reads.append(self.known[id(one)])
        params = sum(one.numel() for one in held if id(one) not in self.shared)
        price = (params, self.madds.get(node, 0), 0)
        return self._add(node.name, reads, idle=node in self.idle, **self._costing(price, [node]))

    def _costly(self) -> set[Node]:
        """Nodes with unused output that cost something, or that such a node reads."""
        found: set[Node] = set()
        for node in reversed(self.outside):
            if node in self.idle:
                held = self.madds.get(node) or parameters_of(node, self.traced.parts)
                if held or any(reader in found for reader in node.users):
                    found.add(node)
        return found

    # Values of blocks.

    def _inside(self, number: int, place: int) -> int:
        """The value of a node of a block: the sum of its terms."""
        block = self.blocks[number]
        node = block.nodes[place - 2]
        found = []
        for index, (target, term) in enumerate(block.terms):
            if target == place and set(self.choices[number][index].ops.values()) != {NULL}:
                found.append(self._term(number, term, self.choices[number][index], block.edge_name(index)))
        after = node.item.after if isinstance(node.item, Sum) else ()
        params = sum(one.numel() for step in after for one in parameters_of(step, self.traced.parts))
        name = f"{block.name} {place}"
        keep = "reached" if place in block.outputs else ""
        return self._add(name, found, join="sum", keep=keep, **self._costing((params, 0, 0), after))

    def _term(self, number: int, term: Term, choice: Choice, name: str) -> int:
        source = self._of((number, term.source))
        prices = {option: self._price(term, op) for option, op in choice.ops.items()}
        extra = self._extra(term)
        if not extra:
            return self._priced(name, [source], choice, prices, term)
        assert term.site is not None
        bare = {option for option, op in choice.ops.items() if op not in (term.op, NULL) and not forms(term.site, op)}
        with_norm = {option: None if option in bare else price for option, price in prices.items()}
        without = {option: price if option in bare else None for option, price in prices.items()}
        sides = ([source, *extra], with_norm), ([source], without)
        return self._add(name, [self._priced(name, reads, choice, some, term) for reads, some in sides], join="sum")

    def _priced(
        self, name: str, reads: Sequence[int], choice: Choice, prices: Mapping[int, Price | None], term: Term
    ) -> int:
        nodes = () if term.site is None else term.site.nodes
        if len(set(prices.values())) == 1 and self.shaped.keys().isdisjoint(nodes):
            return self._add(name, reads, {(): prices[0]})
        table: Prices = {(option,): price for option, price in prices.items()}

        def gone(key: Plan) -> Collection[Node]:
            return removed(term, choice.ops[key[0]])

        return self._add(name, reads, *self._shaped(table, (choice.decision,), nodes, gone))

    def _price(self, term: Term, op: str) -> Price | None:
        return term_kind(term).price(term, op, self.traced.parts)

    def _extra(self, term: Term) -> list[int]:
        """What a site reads besides its input and its own parts, such as a parametrized weight of its norm."""
        if term.site is None:
            return []
        own = {term.site.source, *term.site.nodes} | self.weights
        read = dict.fromkeys(one for node in term.site.nodes for one in node.all_input_nodes if one not in own)
        return [self._of(one) for one in read]


def removed(term: Term, op: str) -> Collection[Node]:
    """The nodes of a term's site that another operation does without."""
    if op == term.op or term.site is None:
        return ()
    return term.site.main if op != NULL and forms(term.site, op) else term.site.nodes


def _nodes(block: Block) -> list[Node]:
    return [node for item in block.items for node in item.nodes]


def node_madds(traced: Traced, nodes: Sequence[Node]) -> dict[Node, int]:
    """Multiply-adds of some nodes of a trace, counted on their fake values; nodes without any are left out."""
    found: dict[Node, int] = {}
    counters: list[MultiplyAdds] = []  # a second one if a node has to be run again

    def counter() -> MultiplyAdds:
        counters.append(MultiplyAdds())
        return counters[-1]

    values = Values(traced.parts.__getitem__)
    fakes = (leaf for node in nodes for leaf in tree_iter(value(node)) if isinstance(leaf, FakeTensor))
    values.mode = next((leaf.fake_mode for leaf in fakes), values.mode)
    with in_mode(traced.module, training=False), unfused(traced.module), torch.no_grad():
        for node in nodes:
            if node.op.startswith("call_") and any(isinstance(leaf, Tensor) for leaf in tree_iter(value(node))):
                values.run(node, counter)
                if counters[-1].total:
                    found[node] = counters[-1].total
    return found
