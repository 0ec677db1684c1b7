"""How many channels stay in each group of channels that can only be removed together.

Channels whose weights have the smallest L1 norm are removed first, unless something better is known. At a site that a
width reaches, the operation cannot be replaced, since a replacement is built for the original's channels.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.fx.node import Node, map_arg

from natpp.arch.decisions import Decisions
from natpp.core.decision import Decision, Option, Plan
from natpp.decisions.base import Given, NodeKind, NodePlace, Table, Values
from natpp.fx.channels import Axis, Channels, Group, counted, find_channels
from natpp.fx.labels import ASKED, HEADS, PIECE, SHAPE, SIZE, SLICE, USES
from natpp.fx.moves import operand, products, sizes_of, with_sizes
from natpp.fx.narrow import narrowed, selected
from natpp.fx.rewrite import Draft
from natpp.fx.traced import Traced, value
from natpp.registry import KINDS

SHARES = tuple(number / 8 for number in range(7, 0, -1))
ROUND = 8  # wide groups keep multiples of this; narrower ones of half of it, and the narrowest any number
Kept = Mapping[int, int]  # per group, how many of its channels stay


@dataclass(frozen=True, eq=False)
class Width(NodeKind):
    """How many channels of a group stay."""

    channels: Channels | None = None
    """the groups of a module, once they are found"""
    used = "needed"
    reshapes = True

    def find(self, traced: Traced, ask: Decisions) -> Iterable[NodePlace]:
        """One decision for every group; its options are numbers of channels of its first layer."""
        channels = find_channels(traced, ask.keep)
        found = Width(channels)
        for group in channels.groups:
            options = tuple(Option(count * group.times) for count in (len(group.channels), *counts(group)))
            if len(options) > 1:
                yield NodePlace(Decision(group.name, "width", options), group.nodes, found)

    def notes(self, traced: Traced, ask: Decisions) -> tuple[str, ...]:
        """Which operations channels could not be followed through."""
        return find_channels(traced, ask.keep).notes

    def harm(self, decision: Decision) -> list[float]:
        """Halving a group is as bad as any other change; small cuts in many groups are better than a large one."""
        whole, *_ = counts_of = [one.value for one in decision.options]
        return [math.log2(whole / count) for count in counts_of]  # type: ignore[operator]

    def price(self, traced: Traced, node: Node, values: Values) -> tuple[int, int]:
        """Parameters and multiply-adds of a node."""
        kept, params, madds = self._kept(node, values), 0, 0
        for weights, uses, groups in self._terms(traced, node):
            count = math.prod(kept[group] for group in groups)
            params, madds = params + weights * count, madds + uses * count
        return params, madds

    def tables(self, traced: Traced, node: Node, decisions: Sequence[Decision]) -> Iterable[tuple[Plan, Table]]:
        """One table for each pair of groups whose channels meet in a weight."""
        numbers = self._groups(node)
        terms: dict[tuple[int, ...], list[tuple[int, int, list[int]]]] = defaultdict(list)
        for weights, uses, groups in self._terms(traced, node):
            if groups:
                by = (
                    tuple(sorted({numbers.index(group) for group in groups}))
                    if len(numbers) > 2
                    else range(len(numbers))
                )
                terms[tuple(by)].append((weights, uses, [tuple(by).index(numbers.index(group)) for group in groups]))
        for by, own in terms.items():
            amounts = [self._amounts(decisions[one], numbers[one]) for one in by]
            at, first = {}, [one[0] for one in amounts]
            for plan in itertools.product(*(decisions[one].allowed for one in by)):
                picked = [amount[option] for amount, option in zip(amounts, plan, strict=True)]
                change = [
                    (math.prod(picked[one] for one in places) - math.prod(first[one] for one in places), weights, uses)
                    for weights, uses, places in own
                ]
                at[plan] = (
                    sum(more * weights for more, weights, _ in change),
                    sum(more * uses for more, _, uses in change),
                )
            yield by, at

    def given(self, traced: Traced, node: Node, values: Values, *, bare: bool = False) -> Given:
        """The layer with fewer weights."""
        cut, layer = shorter(self._stays(traced, node, values)), traced.parts[str(node.target)]
        sides = [(axis.tensor, axis.dim, stays) for axis, stays in cut]
        left = {axis.dim: stays.tolist() for axis, stays in cut if axis.tensor == "weight"}
        return Given(("width", values), lambda: narrowed(layer, sides, bare=bare), left.get(0), left.get(1))

    def apply(
        self, draft: Draft, node: Node, values: Values, find: Callable[[Node], Node], given: Given | None = None
    ) -> Node:
        """The node with fewer channels: a layer with fewer weights, a parameter, or another size in its arguments."""
        axes = self._stays(draft.traced, node, values)
        cut = shorter(axes)
        if not cut:
            return draft.plain(node, find)
        path, key = str(node.target), ("width", values)
        if node.op == "call_module":
            own = self.given(draft.traced, node, values)
            made = draft.call(path, own.key, own.make, find(node.all_input_nodes[0]), node)
            if own.outputs is not None:
                draft.cuts[made] = own.outputs
            return made
        if node.op == "get_attr":
            dims = [(axis.dim, stays) for axis, stays in cut]
            return draft.tensor(path, key, lambda: selected(draft.traced.parts[path], dims))
        axes = [(axis, stays) for axis, stays in axes if axis.tensor != ASKED]
        sizes = [len(stays) for _, stays in axes]
        if axes[0][0].tensor == PIECE:
            return draft.function(torch.split, find(node.all_input_nodes[0]), sizes, operand(node, 2, "dim") or 0)
        made = draft.plain(node, find)
        if axes[0][0].tensor.startswith(SLICE):
            at, index = int(axes[0][0].tensor.split()[1]), made.args[1]
            written = list(index) if isinstance(index, tuple) else [index]
            written[at] = slice(sizes[0], sum(sizes))
            made.args = (made.args[0], tuple(written))
        else:
            _write_sizes(node, made, axes)
        return made

    def _stays(self, traced: Traced, node: Node, values: Values) -> list[tuple[Axis, NDArray[np.int64]]]:
        """The dimensions of a node that have channels, with the positions that stay."""
        removed = [self._removed(traced, group, count) for group, count in self._kept(node, values).items()]
        gone = np.concatenate(removed)
        return [(axis, axis.kept(gone)) for axis in self._axes(node)]

    # Groups of a node.

    def _axes(self, node: Node) -> tuple[Axis, ...]:
        assert self.channels is not None
        return self.channels.axes.get(node, ())

    @functools.cached_property
    def _by_node(self) -> dict[Node, list[int]]:
        assert self.channels is not None
        found = defaultdict(list)
        for number, group in enumerate(self.channels.groups):
            for node in group.nodes if counts(group) else ():
                found[node].append(number)
        return found

    def _groups(self, node: Node) -> list[int]:
        """The numbers of the groups that a node depends on, in the order of their decisions."""
        return self._by_node[node]

    def _kept(self, node: Node, values: Values) -> dict[int, int]:
        assert self.channels is not None
        groups = self.channels.groups
        return {
            number: int(count) // groups[number].times  # type: ignore[call-overload]
            for number, count in zip(self._groups(node), values, strict=True)
        }

    def _amounts(self, decision: Decision, number: int) -> list[int]:
        assert self.channels is not None
        times = self.channels.groups[number].times
        return [int(option.value) // times for option in decision.options]  # type: ignore[call-overload]

    def _terms(self, traced: Traced, node: Node) -> list[tuple[int, int, tuple[int, ...]]]:
        """The cost of a node: parameters and multiply-adds, each times the numbers of channels of some groups."""
        assert self.channels is not None
        by_tensor: dict[str, list[Axis]] = defaultdict(list)
        for axis in self._axes(node):
            if not axis.tensor.startswith((ASKED, SIZE, PIECE, SLICE, SHAPE)):
                by_tensor[axis.tensor].append(axis)
        found = []
        for name, axes in by_tensor.items():
            if name == HEADS:
                rest, uses = 1, products(node) // len(axes[0].channels)
            else:
                tensor = _tensor(node, name, traced.parts)
                if not isinstance(tensor, nn.Parameter):
                    continue
                rest = tensor.numel() // math.prod(len(axis.channels) for axis in axes)
                multiplies = name == USES or (name == "weight" and tensor.dim() > 1)
                uses = value(node).numel() // tensor.shape[0] if multiplies else 0
            sides = []
            for axis in axes:
                fixed, some = counted(axis, self.channels)
                for group in [group for group in some if not counts(self.channels.groups[group])]:
                    fixed += some.pop(group) * len(self.channels.groups[group].channels)
                sides.append([(fixed, ()), *((times, (group,)) for group, times in some.items())])
            for pairs in itertools.product(*sides):
                weights = rest * math.prod(count for count, _ in pairs)
                if weights:
                    held = 0 if name in (USES, HEADS) else weights
                    found.append((held, weights * uses, tuple(group for _, groups in pairs for group in groups)))
        return found

    def _removed(self, traced: Traced, number: int, count: int) -> NDArray[np.int64]:
        assert self.channels is not None
        group = self.channels.groups[number]
        if count == len(group.channels):
            return np.zeros(0, dtype=np.int64)
        if number not in self.orders:
            self.orders[number] = ranked(group, traced.parts)
        return group.channels[self.orders[number][count:]]

    @functools.cached_property
    def orders(self) -> dict[int, NDArray[np.int64]]:
        """Per group, its channels by number, the first to be removed last; by L1 norm unless set before."""
        return {}


KINDS.add("width", Width())


def counts(group: Group) -> list[int]:
    """The numbers of channels that a group may keep, largest first."""
    count = len(group.channels)
    whole = count * group.times
    multiple = ROUND if whole >= 4 * ROUND else ROUND // 2 if whole >= 2 * ROUND else 1
    step = multiple // math.gcd(multiple, group.times)
    found = (max(step, round(share * count / step) * step) for share in SHARES)
    return list(dict.fromkeys(one for one in found if one < count))


def shorter(axes: Sequence[tuple[Axis, NDArray[np.int64]]]) -> list[tuple[Axis, NDArray[np.int64]]]:
    """The dimensions that lose positions."""
    return [(axis, stays) for axis, stays in axes if len(stays) < len(axis.channels)]


def ranked(group: Group, parts: Mapping[str, Any]) -> NDArray[np.int64]:
    """The channels of a group by the L1 norm of all weights that make them, the largest first."""
    norms = np.zeros(len(group.channels))
    order = np.argsort(group.channels)
    for node, axis in group.makers:
        weight = _tensor(node, axis.tensor, parts).detach()
        if weight.is_meta:
            continue
        others = [dim for dim in range(weight.dim()) if dim != axis.dim]
        size = weight.abs().sum(dim=others, dtype=torch.float64).cpu().numpy()
        own = np.isin(axis.channels, group.channels)
        places = order[np.searchsorted(group.channels[order], axis.channels[own])]
        np.add.at(norms, places, size[own])
    found: NDArray[np.int64] = np.argsort(-norms, kind="stable")
    return found


def _tensor(node: Node, name: str, parts: Mapping[str, Any]) -> Tensor:
    """A tensor of a node by its name among the axes: of its layer, itself, or the weight that its function reads."""
    holder = operand(node, 1, "weight") if name == USES else node
    part = parts[str(holder.target)]
    found: Tensor = operator.attrgetter(name)(part) if name and name != USES else part
    return found


def _write_sizes(node: Node, made: Node, axes: Sequence[tuple[Axis, NDArray[np.int64]]]) -> None:
    """Write new sizes in the arguments of a view, reshape, expand or layer norm, and new groups of a convolution."""
    for axis, stays in axes:
        if axis.tensor == USES:
            if axis.dim == 0 and (groups := operand(made, 6, "groups") or 1) > 1 and len(axes) == 1:
                count = groups * len(stays) // len(axis.channels)  # depthwise
                if len(made.args) > 6:
                    made.args = (*made.args[:6], count)
                else:
                    made.kwargs = {**made.kwargs, "groups": count}
            continue
        if axis.tensor == HEADS:
            continue
        if axis.tensor == SHAPE:
            made.args = (made.args[0], (len(stays),), *made.args[2:])
            continue
        sizes = list(sizes_of(node))
        if sizes[axis.dim] != -1:
            sizes[axis.dim] = len(stays)
        written = dict(zip(node.all_input_nodes, made.all_input_nodes, strict=True))
        made.args, made.kwargs = map_arg(with_sizes(node, sizes), written.__getitem__), {}
