"""What may be decided in a module, and the protocol of a kind of decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.core.blueprint import Price
from natpp.core.decision import Option
from natpp.fx.blocks import Block, Term
from natpp.fx.rewrite import Draft
from natpp.fx.traced import Traced
from natpp.registry import KINDS, OPS


class Spot(NamedTuple):
    """A term of a block of a traced module."""

    traced: Traced
    block: Block
    number: int

    @property
    def term(self) -> Term:
        """The term there."""
        return self.block.terms[self.number][1]


class Kind(Protocol):
    """A kind of decision: which terms it decides, their options, what these cost and how they are written.

    Examples:
        >>> import natpp.decisions
        >>> from natpp.registry import KINDS
        >>> list(KINDS)
        ['operation', 'term']
    """

    def covers(self, term: Term) -> bool:
        """Whether this kind decides a term; every term has one kind."""

    def why_not(self, spot: Spot, op: str, ask: Decisions) -> str:
        """Why an operation is not allowed there: rule, shape or cost; empty if it is allowed."""

    def price(self, term: Term, op: str, parts: Mapping[str, Any]) -> Price | None:
        """Parameters, multiply-adds and output bytes of an operation there; None if nothing passes."""

    def apply(self, draft: Draft, spot: Spot, op: str, source: Node, *, alone: bool) -> Node:
        """The value of a term with another operation on a source; `alone` if its node has no other term."""


def kind_of(term: Term) -> str:
    """The name of the kind that decides a term."""
    return next(name for name, kind in KINDS.items() if kind.covers(term))


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
            reasons = [KINDS[kind].why_not(spot, op, ask) for spot in spots]
            reason = min(reasons, key=bool) if added else next(filter(None, reasons), "")
        found.append(Option(op, reason))
    return tuple(found)
