"""Terms of sums: a shortcut is added or removed, or a term is dropped with the whole branch that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from natpp.arch.decisions import Decisions
from natpp.arch.graph import NULL, SKIP
from natpp.arch.modules import FactorizedConv2d
from natpp.core.blueprint import Price
from natpp.decisions.base import Spot
from natpp.fx.blocks import Block, Term, node_shape, shape
from natpp.fx.traced import value
from natpp.registry import KINDS


class TermOfSum:
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
        return KINDS["operation"].price(term, op, parts)


KINDS.add("term", TermOfSum())


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
