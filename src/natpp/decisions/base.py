"""What may be decided in a module, and what a kind of decision has to define.

A kind decides about terms of blocks, whose options are operations, or about nodes anywhere in the traced module.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.core.blueprint import Price
from natpp.core.decision import Decision, Option, Plan
from natpp.fx.blocks import Block, Term
from natpp.fx.rewrite import Draft
from natpp.fx.traced import Traced
from natpp.registry import KINDS, OPS

Values = tuple[Hashable, ...]  # what decisions pick
MOST_TOGETHER = 1 << 13  # prices of a node under all options of two kinds; if there were more, they exclude each other


class Spot(NamedTuple):
    """A term of a block of a traced module."""

    traced: Traced
    block: Block
    number: int

    @property
    def term(self) -> Term:
        """The term there."""
        return self.block.terms[self.number][1]


class TermKind(ABC):
    """A kind of decision about terms of blocks: which ones, their options, what these cost and how they are written."""

    @abstractmethod
    def covers(self, term: Term) -> bool:
        """Whether this kind decides a term; every term has one kind."""

    @abstractmethod
    def why_not(self, spot: Spot, op: str, ask: Decisions) -> str:
        """Why an operation is not allowed there: rule, shape or cost; empty if it is allowed."""

    @abstractmethod
    def price(self, term: Term, op: str, parts: Mapping[str, Any]) -> Price | None:
        """Parameters, multiply-adds and output bytes of an operation there; None if nothing passes."""

    @abstractmethod
    def apply(self, draft: Draft, spot: Spot, op: str, source: Node, *, alone: bool) -> Node:
        """The value of a term with another operation on a source; `alone` if its node has no other term."""


class NodePlace(NamedTuple):
    """A decision about nodes anywhere in a traced module."""

    decision: Decision
    """its options are numbers or texts; forbidden options say why; `elsewhere` fills in its kind"""
    nodes: tuple[Node, ...]
    """the nodes that depend on it"""
    by: NodeKind | None = None
    """the kind, with what it found in this module; by default the registered one"""


Table = Mapping[Plan, tuple[int, int]]  # by options, the parameters and multiply-adds that they add


class NodeKind(ABC):
    """A kind of decision about nodes anywhere in a traced module.

    A node may depend on several decisions of one kind: `values` has what each picks, in the order they were found. If
    two kinds decide about the same node, a plan can use only one of them there, unless one `reshapes` the layer and
    the other `follows`.
    """

    used: Literal["always", "needed", "asked"] = "always"
    """by default; needed: only where a budget cannot be met without it; asked: only by methods that use every kind"""
    reshapes = False
    """whether it changes the shapes of values; where it does, the operation of a site cannot be replaced"""
    follows = False
    """whether it also works on a layer that another kind has given fewer channels"""

    @abstractmethod
    def find(self, traced: Traced, ask: Decisions) -> Iterable[NodePlace]:
        """The decisions, each named for its place."""

    def notes(self, traced: Traced, ask: Decisions) -> tuple[str, ...]:
        """Notes for the user about decisions that could not be offered."""
        return ()

    def harm(self, decision: Decision) -> list[float]:
        """How bad each option is: 0 for the original, 1 for an ordinary change."""
        return [float(number > 0) for number in range(len(decision.options))]

    def tables(self, traced: Traced, node: Node, decisions: Sequence[Decision]) -> Iterable[tuple[Plan, Table]]:
        """What a node's decisions add to its cost: tables to be summed, each indexed by some of the decisions."""
        own = self.price(traced, node, tuple(one.options[0].value for one in decisions))
        found = {}
        for plan in itertools.product(*(one.allowed for one in decisions)):
            values = tuple(one.options[option].value for one, option in zip(decisions, plan, strict=True))
            params, madds = self.price(traced, node, values)
            found[plan] = params - own[0], madds - own[1]
        yield tuple(range(len(decisions))), found

    @abstractmethod
    def price(self, traced: Traced, node: Node, values: Values) -> tuple[int, int]:
        """Parameters and multiply-adds of a node with these values."""

    def given(self, traced: Traced, node: Node, values: Values, *, bare: bool = False) -> Given:
        """What a kind that reshapes makes of a node's layer; `bare`: without data, on the meta device."""
        raise NotImplementedError

    def tables_after(
        self, traced: Traced, node: Node, decisions: Sequence[Decision], first: NodeKind
    ) -> Iterable[tuple[Plan, Table]]:
        """What the first decision adds to the layers that the others make, which are of a kind that reshapes."""
        raise NotImplementedError

    @abstractmethod
    def apply(
        self, draft: Draft, node: Node, values: Values, find: Callable[[Node], Node], given: Given | None = None
    ) -> Node:
        """The new value of a node that changes; `find` gives the new values of its inputs.

        `given` is the layer that another kind has made of the node's, for a kind that follows.
        """


class Given(NamedTuple):
    """What a kind that reshapes makes of a node's layer."""

    key: Hashable
    make: Callable[[], nn.Module]
    outputs: list[int] | None
    """the original's outputs that stay, if some do not"""
    inputs: list[int] | None
    """the same for its inputs"""


class Shaping(NamedTuple):
    """A kind that decides about a node, and the numbers of its decisions there."""

    kind: NodeKind
    numbers: tuple[int, ...]
    after: Shaping | None = None
    """the kind that reshapes the node first, if both can be used together"""


def kind_of(term: Term) -> str:
    """The name of the kind that decides a term."""
    return next(name for name, kind in KINDS.items() if isinstance(kind, TermKind) and kind.covers(term))


def term_kind(term: Term) -> TermKind:
    """The kind that decides a term."""
    kind = KINDS[kind_of(term)]
    assert isinstance(kind, TermKind)
    return kind


def elsewhere(traced: Traced, ask: Decisions, names: Iterable[str]) -> list[NodePlace]:
    """The decisions about nodes, kind by kind; if its name is already taken, the kind is added to it."""
    found, taken = list[NodePlace](), set(names)
    for name, kind in KINDS.items():
        if name not in ask.kinds or not isinstance(kind, NodeKind):
            continue
        for decision, nodes, by in kind.find(traced, ask):
            place = f"{decision.name} ({name})" if decision.name in taken else decision.name
            taken.add(place)
            found.append(NodePlace(replace(decision, name=place, kind=name), nodes, by or kind))
    return found


def shaping(places: Sequence[NodePlace]) -> dict[Node, list[Shaping]]:
    """For each node that depends on decisions elsewhere, the kinds; one that reshapes comes first."""
    found: dict[Node, dict[NodeKind, list[int]]] = {}
    for number, (_, nodes, kind) in enumerate(places):
        assert kind is not None
        for node in nodes:
            found.setdefault(node, {}).setdefault(kind, []).append(number)
    return {node: list(_shapings(places, kinds)) for node, kinds in found.items()}


def _shapings(places: Sequence[NodePlace], kinds: Mapping[NodeKind, list[int]]) -> Iterator[Shaping]:
    first = next((Shaping(kind, tuple(numbers)) for kind, numbers in kinds.items() if kind.reshapes), None)
    if first is not None:
        yield first
    size = math.prod(len(places[number].decision.allowed) for numbers in kinds.values() for number in numbers)
    for kind, numbers in kinds.items():
        if first is None or kind is not first.kind:
            together = kind.follows and len(kinds) == 2 and size <= MOST_TOGETHER
            yield Shaping(kind, tuple(numbers), first if together else None)


def options(spots: Sequence[Spot], present: str, ask: Decisions) -> tuple[Option, ...]:
    """The options of terms that are decided together, with reasons; the original comes first.

    A new shortcut has to be possible at one of them, and is put only there; anything else at all of them.
    """
    found = [Option(present)]
    kind, added = kind_of(spots[0].term), spots[0].term.op == "null"
    for op in ask.columns:
        if op == present:
            continue
        if kind not in ask.kinds:
            reason = "kept"
        elif op not in OPS or OPS[op].extra:
            reason = "rule"
        elif ask.ops and op not in ask.ops:
            reason = "ops"
        else:
            reasons = [term_kind(spot.term).why_not(spot, op, ask) for spot in spots]
            reason = min(reasons, key=bool) if added else next(filter(None, reasons), "")
        found.append(Option(op, reason))
    return tuple(found)
