"""Terms of sums: a shortcut is added or removed, or a term is dropped with the whole branch that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.arch.graph import NULL, SKIP
from natpp.arch.modules import FactorizedConv2d
from natpp.core.blueprint import Price
from natpp.decisions.base import Spot, TermKind
from natpp.decisions.operation import Operation
from natpp.fx.blocks import Block, Term, node_shape, shape
from natpp.fx.rewrite import Draft, free
from natpp.fx.sites import Site
from natpp.fx.traced import value
from natpp.registry import KINDS


class TermOfSum(TermKind):
    """A shortcut or another term of a sum: present or not."""

    def covers(self, term: Term) -> bool:
        """Whether a term is decided here: a plain one, or a site that only brings a shortcut to the shape of a sum."""
        return term.site is None or term.op == SKIP

    def why_not(self, spot: Spot, op: str, ask: Decisions) -> str:
        """Why the operation is not allowed there: rule or shape; empty if it is allowed."""
        if spot.term.op != NULL:
            return "" if op == NULL else "rule"
        if op != SKIP:
            return "rule"
        return "" if room_for_shortcut(spot.block, spot.number) else "shape"

    def price(self, term: Term, op: str, parts: Mapping[str, Any]) -> Price | None:
        """Parameters, multiply-adds and output bytes; None if nothing passes."""
        if op == NULL:
            return None
        if term.site is None:
            return 0, 0, 0
        return Operation().price(term, op, parts)

    def apply(self, draft: Draft, spot: Spot, op: str, source: Node, *, alone: bool) -> Node:
        """A shortcut, which starts at zero unless it is alone, so that the function is the same at first."""
        if spot.term.site is not None:
            return Operation().apply(draft, spot, op, source, alone=alone)
        if spot.term.op != NULL:
            return source
        draft.guarded.add(source)
        target, given = spot.block.terms[spot.number][0], spot.block.inputs[spot.term.source]
        assert given is not None
        before, after, like = shape(given), node_shape(spot.block, target), value(given)
        if before == after and alone:
            return source

        def make() -> nn.Module:
            if before == after:
                return FadeIn().to(like.device, like.dtype)
            return shortcut(before[1], after[1], _halvings(before, after), like)

        return draft.call(_path(spot, draft.made.keys() | spot.traced.parts.keys()), op, make, source)


KINDS.add("term", TermOfSum())


class FadeIn(nn.Module):
    """A shortcut that starts at zero and fades in during training; its share is a buffer."""

    share: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # in place, so that weight averages and CUDA graphs see the update
            with torch.no_grad():
                self.share += 0.01 * (1 - self.share)  # of the remaining share, per training step
            return x * self.share.clone()  # the share may be updated again before backward
        return x * self.share


def room_for_shortcut(block: Block, index: int) -> bool:
    """Whether a term is empty and a plain skip can connect its two nodes, reading a value from before the block."""
    target, term = block.terms[index]
    given = block.inputs[term.source] if term.op == NULL and term.source < 2 else None
    if given is None or not isinstance(value(given), Tensor):
        return False
    begins = min(node for item in block.items for node in item.nodes)
    return given < begins and shape(given) == node_shape(block, target)


def shortcut(channels_in: int, channels_out: int, halvings: int, like: Tensor) -> nn.Module:
    """A new shortcut between feature maps of different shapes: ReLU, 1x1 convs, and a batch norm that starts at 0."""
    steps: list[nn.Module] = [nn.ReLU()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if not halvings:
            steps.append(nn.Conv2d(channels_in, channels_out, 1, bias=False))
        for number in range(halvings):
            steps.append(FactorizedConv2d(channels_in if not number else channels_out, channels_out))
    norm = nn.BatchNorm2d(channels_out)
    nn.init.zeros_(norm.weight)
    return nn.Sequential(*steps, norm).to(like.device, like.dtype)


def _halvings(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    halvings, size = 0, before[2:]
    while size != after[2:] and max(size) > 1:
        size = tuple(-(-side // 2) for side in size)
        halvings += 1
    return halvings


def _path(spot: Spot, taken: Set[str]) -> str:
    """The path of a new shortcut: inside the module of its block, or beside it if that is a layer."""
    block = spot.block
    name = block.name.replace(" (", "_").replace(")", "")
    label = f"shortcut_{spot.term.source}_{block.terms[spot.number][0]}"
    site = next((item for item in block.items if isinstance(item, Site)), None)
    if name in spot.traced.parts or (site is not None and name == site.name):
        parent, _, last = name.rpartition(".")
        label = f"{label}_of_{last}"
        return free(f"{parent}.{label}" if parent else label, taken)
    return free(f"{name}.{label}", taken)
