"""A traced module as a blueprint: what is alive in it under any plan and what it costs, without building it.

Every value outside of blocks is a step, and so are the terms of blocks and their sums. Parameters used by several
values are steps, too: they stay as long as one of these does. What the blueprint calls alive is what `fx.rewrite`
keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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
from natpp.decisions.base import NodeKind, NodePlace, Table, shaping, term_kind
from natpp.decisions.operation import forms
from natpp.fx.aliasing import idle, looks_at, must_be_read
from natpp.fx.blocks import Block, Term
from natpp.fx.fake import Values
from natpp.fx.modes import in_mode
from natpp.fx.sites import Site, Sum
from natpp.fx.traced import Traced, parameters_of, value
from natpp.nets.measure import MultiplyAdds, unfused
from natpp.subjects.module_apart import Choice, apart_from_operations

FIGURES = ("params", "madds", "made")  # made: bytes of the values that blocks compute, which drive peak memory
Prices = Mapping[Plan, Price | None]


class Shaped(NamedTuple):
    """A node that depends on decisions elsewhere: what it costs unchanged, and what their options add."""

    cost: tuple[int, int]
    """parameters and multiply-adds"""
    tables: tuple[tuple[Plan, Table], ...]
    """each with the numbers of the decisions that it reads"""
    kind: NodeKind


def shaped_nodes(traced: Traced, places: Sequence[NodePlace], first: int) -> dict[Node, list[Shaped]]:
    """The nodes that depend on decisions elsewhere, which are numbered from `first`: one entry for each kind."""
    found: dict[Node, list[Shaped]] = {}
    for node, shapings in shaping(places).items():
        for kind, own, after in shapings:
            numbers = own if after is None else (*own, *after.numbers)
            decisions = [places[number].decision for number in numbers]
            if after is None:
                some = kind.tables(traced, node, decisions)
            else:
                some = kind.tables_after(traced, node, decisions, after.kind)
            tables = tuple(
                (tuple(first + numbers[one] for one in by), table)
                for by, table in some
                if any(map(any, table.values()))
            )
            price = kind.price(traced, node, tuple(one.options[0].value for one in decisions[: len(own)]))
            found.setdefault(node, []).append(Shaped(price, tables, kind))
    return found


def module_blueprint(
    traced: Traced,
    blocks: Sequence[Block],
    choices: Sequence[Sequence[Choice]],
    shaped: Mapping[Node, Sequence[Shaped]] = MappingProxyType({}),
    apart: Mapping[tuple[int, int], Prices] = MappingProxyType({}),
) -> Blueprint:
    """The blueprint of a module: blocks with a choice for every term, and nodes that other decisions shape.

    `apart` has, for each pair of decisions, a price for every two options: None where they exclude each other.
    """
    return _Drawn(traced, blocks, choices, shaped).blueprint(apart)


class _Drawn:
    def __init__(
        self,
        traced: Traced,
        blocks: Sequence[Block],
        choices: Sequence[Sequence[Choice]],
        shaped: Mapping[Node, Sequence[Shaped]],
    ):
        self.traced, self.blocks, self.choices, self.shaped = traced, blocks, choices, shaped
        self.steps: list[Step] = []
        self.known: dict[Any, int] = {}  # the step of a value: a node outside of blocks, or (block, number)
        self.inside = {node: number for number, block in enumerate(blocks) for node in block.inside}
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

    def blueprint(self, apart: Mapping[tuple[int, int], Prices]) -> Blueprint:
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
        excluded = [self._add(f"decisions {pair[0]} and {pair[1]}", (), some, pair) for pair, some in apart.items()]
        self._add("output", [*map(self._of, output.all_input_nodes), *kept, *excluded])
        return Blueprint(tuple(self.steps), FIGURES)

    def _add(self, name: str, reads: Sequence[int], prices: Prices = FREE, by: Plan = (), **more: Any) -> int:
        self.steps.append(Step(name, tuple(reads), prices, by, **more))
        return len(self.steps) - 1

    def _changed(self, step: int, nodes: Iterable[Node], term: Term | None = None, choice: Choice | None = None) -> int:
        """Add what decisions elsewhere change in the cost of some nodes, as steps after one; returns the last step."""
        for node in nodes:
            for _, tables, kind in self.shaped.get(node, ()):
                for by, table in tables:
                    prices: dict[Plan, Price | None] = {key: (*more, 0) for key, more in table.items()}
                    if choice is not None and term is not None and not apart_from_operations(term, node, kind):
                        gone = {option for option, op in choice.ops.items() if node in removed(term, op)}
                        prices = {
                            (option, *key): (0, 0, 0) if option in gone else price
                            for option in choice.ops
                            for key, price in prices.items()
                        }
                        by = (choice.decision, *by)
                    step = self._add(f"{self.steps[step].name}, changed", (step,), prices, by)
        return step

    # Values outside of blocks.

    def _of(self, read: Node | tuple[int, int]) -> int:
        """The step that a reader of a value reads: the value, or one after it that must stay alive."""
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
                    cost: Prices = {(): (one.numel(), 0, 0)}
                    self.known[id(one)] = self._add(f"parameters of {node.name}", (), cost)
                reads.append(self.known[id(one)])
        params = sum(one.numel() for one in held if id(one) not in self.shared)
        price = (params, self.madds.get(node, 0), 0)
        step = self._add(node.name, reads, {(): price} if any(price) else FREE, idle=node in self.idle)
        return self._changed(step, [node])

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
        step = self._add(name, found, {(): (params, 0, 0)} if params else FREE, join="sum", keep=keep)
        return self._changed(step, after)

    def _term(self, number: int, term: Term, choice: Choice, name: str) -> int:
        source = self._of((number, term.source))
        prices = {option: self._price(term, op) for option, op in choice.ops.items()}
        nodes = () if term.site is None else (*self._weights(term.site), *term.site.nodes)
        extra = self._extra(term)
        if not extra:
            return self._changed(self._priced(name, [source], choice, prices), nodes, term, choice)
        assert term.site is not None
        bare = {option for option, op in choice.ops.items() if op not in (term.op, NULL) and not forms(term.site, op)}
        with_norm = {option: None if option in bare else price for option, price in prices.items()}
        without = {option: price if option in bare else None for option, price in prices.items()}
        sides = ([source, *extra], with_norm), ([source], without)
        step = self._add(name, [self._priced(name, reads, choice, some) for reads, some in sides], join="sum")
        return self._changed(step, nodes, term, choice)

    def _priced(self, name: str, reads: Sequence[int], choice: Choice, prices: Mapping[int, Price | None]) -> int:
        if len(set(prices.values())) == 1:
            return self._add(name, reads, {(): prices[0]})
        return self._add(name, reads, {(option,): price for option, price in prices.items()}, (choice.decision,))

    def _price(self, term: Term, op: str) -> Price | None:
        return term_kind(term).price(term, op, self.traced.parts)

    def _weights(self, site: Site) -> list[Node]:
        """The parameters that the functions of a site read."""
        return list(dict.fromkeys(one for node in site.nodes for one in node.all_input_nodes if one in self.weights))

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


def node_madds(traced: Traced, nodes: Sequence[Node]) -> dict[Node, int]:
    """Multiply-adds of some nodes of a trace, counted on their fake values; nodes without any are left out."""
    counted: dict[Node, int] = traced.found.setdefault("multiply-adds", {})
    left = [node for node in nodes if node not in counted]
    counted.update(zip(left, _counts(traced, left), strict=True))
    return {node: counted[node] for node in nodes if counted[node]}


def _counts(traced: Traced, nodes: Sequence[Node]) -> Iterator[int]:
    known: dict[Hashable, int] = {}  # by the keys of calls
    counters: list[MultiplyAdds] = []  # a second one if a node has to be run again

    def counter() -> MultiplyAdds:
        counters.append(MultiplyAdds())
        return counters[-1]

    values = Values(traced.parts.__getitem__)
    fakes = (leaf for node in nodes for leaf in tree_iter(value(node)) if isinstance(leaf, FakeTensor))
    values.mode = next((leaf.fake_mode for leaf in fakes), values.mode)
    with in_mode(traced.module, training=False), unfused(traced.module), torch.no_grad():
        for node in nodes:
            count: int | None = 0
            if node.op.startswith("call_") and any(isinstance(leaf, Tensor) for leaf in tree_iter(value(node))):
                key = values.key(node)
                count = None if key is None else known.get(key)
                if count is None:
                    values.run(node, counter)
                    count = known[key] = counters[-1].total
            yield count or 0
