"""Another operation at a site: its layers, its cost, and where it is allowed.

A convolution that becomes a skip without changing the shape is removed with its norm and activation; all other
replacements keep them. A replacement of a grouped convolution that mixes channels has the same groups, except for the
factorized convolution of a skip that halves, which is dense.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.arch.graph import NULL, SKIP
from natpp.arch.layers import FACTORIZED, Form, area, halved
from natpp.arch.modules import FactorizedConv2d
from natpp.core.blueprint import Price
from natpp.decisions.base import Spot, TermKind
from natpp.decisions.inherit import Forms, fill
from natpp.fx.blocks import Term
from natpp.fx.rewrite import Draft
from natpp.fx.sites import Site
from natpp.fx.traced import batch_of, parameters_of, value
from natpp.registry import KINDS, OPS, RULES


class Operation(TermKind):
    """Another operation at a site; `null` if another term is left."""

    def covers(self, term: Term) -> bool:
        """Whether a term is decided here: a site, but not one that only brings a shortcut to the shape of a sum."""
        return term.site is not None and term.op != SKIP

    def why_not(self, spot: Spot, op: str, ask: Decisions) -> str:
        """Why an operation is not allowed there: rule, shape or cost; empty if it is allowed."""
        site, parts = spot.term.site, spot.traced.parts
        assert site is not None
        if op == NULL:
            return ""
        if not RULES[ask.rule or "nat++"](OPS[spot.term.op], OPS[op], site.place):
            return "rule"
        made = forms(site, op)
        if made == forms(site, site.op) or (op == SKIP and made and site.form.kernel == 1):
            return "shape"  # it is one already
        if ask.strict:
            batch = batch_of(spot.traced.example)
            old, new = (cost(site, name, batch, parts) for name in (site.op, op))
            if new[0] > old[0] or new[1] > old[1]:
                return "cost"
        return ""

    def price(self, term: Term, op: str, parts: Mapping[str, Any]) -> Price | None:
        """Parameters, multiply-adds and output bytes of an operation there; None if nothing passes."""
        site = term.site
        assert site is not None
        if op == NULL:
            return None
        made = value(site.output)
        if op != term.op:
            params, madds = cost(site, op, len(made), parts)
            return params, madds, made.numel() * made.element_size() if forms(site, op) else 0
        _, madds = cost(site, site.op, len(made), parts)
        return own_params(site, parts), madds, made.numel() * made.element_size()

    def apply(self, draft: Draft, spot: Spot, op: str, source: Node, *, alone: bool) -> Node:
        """The operation between the norm and activation of the site, or the source itself."""
        site, parts = spot.term.site, spot.traced.parts
        assert site is not None
        if not forms(site, op):
            draft.guarded.add(source)
            return source
        read = draft.chain(site.before, site.source, source)
        main = draft.call(site.name, op, lambda: build(site, op, parts), read, site.main[-1])
        return draft.chain(site.after, site.main[-1], main)


KINDS.add("operation", Operation())


def forms(site: Site, op: str) -> Forms:
    """The convolutions and poolings of an operation at a site; empty if the feature map passes unchanged.

    They come from its entry in `arch/ops.py`, with the dilation, the groups and the bias of the site.
    """
    form, entry = site.form, OPS[op]
    if op == site.op:
        return (form,) if site.pointwise is None else (form, site.pointwise)
    made = list(entry.forms(site.place))
    if form.depthwise and site.pointwise is None and len(made) == 2:
        del made[1]  # the site does not mix channels
    if made and made[0].kind == "conv" and entry.family != "skip":
        made[0] = replace(made[0], dilation=max(made[0].dilation, form.dilation))
    if made and made[-1].kind in ("conv", FACTORIZED):
        mixes = made[-1].kind == "conv" and made[-1].groups == 1 and not form.depthwise
        groups = form.groups if mixes else made[-1].groups
        made[-1] = replace(made[-1], groups=groups, bias=(site.pointwise or form).bias)
    return tuple(made)


def cost(site: Site, op: str, batch: int, parts: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters and multiply-adds of an operation at a site, including norm and activation; 0 for `null`."""
    if op == "null":
        return 0, 0
    made = forms(site, op)
    params = around(site, parts) if made else 0
    madds, size = 0, site.place.size
    for form in made:
        size = halved(size, (form.stride, form.stride))
        if form.kind in ("conv", FACTORIZED):
            weights = form.channels_in // form.groups * form.channels_out * form.kernel**2
            params += weights + form.bias * form.channels_out
            madds += batch * weights * area(size)
    return params, madds


def around(site: Site, parts: Mapping[str, Any]) -> int:
    """Parameters of the norm and the activation of a site."""
    return _params([*site.before, *site.after], parts)


def own_params(site: Site, parts: Mapping[str, Any]) -> int:
    """Parameters of an unchanged site, including those that its convolution does not use."""
    return _params(site.nodes, parts)


def _params(nodes: Sequence[Node], parts: Mapping[str, Any]) -> int:
    functions = (node for node in nodes if node.op != "call_module")
    read = [one for node in functions for one in node.all_input_nodes if one.op == "get_attr"]
    return sum(tensor.numel() for node in (*nodes, *read) for tensor in parameters_of(node, parts))


def build(site: Site, op: str, parts: Mapping[str, Any]) -> nn.Module:
    """An operation at a site as a module, with the weights it inherits."""
    made = forms(site, op)
    modules = OrderedDict(zip(_names(made), (_empty(form) for form in made), strict=True))
    fill(site, made, list(modules.values()), parts)
    return next(iter(modules.values())) if len(modules) == 1 else nn.Sequential(modules)


def _names(made: Forms) -> list[str]:
    if len(made) == 1:
        return ["only"]
    return ["depthwise" if made[0].kind == "conv" else "pool", "pointwise"]


def _empty(form: Form) -> nn.Module:
    """A module of this form; its convolutions are on the meta device."""
    padding = form.dilation * (form.kernel // 2)
    if form.kind == "max":
        return nn.MaxPool2d(form.kernel, form.stride, padding)
    if form.kind == "avg":
        return nn.AvgPool2d(form.kernel, form.stride, padding, count_include_pad=False)
    with torch.device("meta"):
        if form.kind == FACTORIZED:
            return FactorizedConv2d(form.channels_in, form.channels_out)
        return nn.Conv2d(
            *(form.channels_in, form.channels_out, form.kernel, form.stride, padding, form.dilation, form.groups),
            bias=form.bias,
        )
