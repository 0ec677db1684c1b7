"""Channels that can only be removed together, found on a traced graph.

Every channel that a layer makes has a number. Every value has an array with the channel number of each of its elements
(`follow.py` says how an operation moves them). Where two channels must stay or go together, as in the terms of a sum,
they get the same number. Channels that occur equally often in all the same places form a group: any of them may be
removed, and shapes and costs depend only on how many are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch.fx.node import Node

from natpp.fx.follow import Follower, followed
from natpp.fx.labels import FIXED, PIECE, SLICE, Numbers, flat
from natpp.fx.sites import Keep
from natpp.fx.traced import Traced, some_of


class Axis(NamedTuple):
    """One dimension of a tensor of a layer, or of a value: the channel of every position there."""

    tensor: str
    """its attribute in the layer; empty for a parameter read by itself; `size`, `piece`: a number in the arguments"""
    dim: int
    channels: Numbers
    makes: bool
    """whether the layer makes these channels"""

    def kept(self, removed: Numbers) -> Numbers:
        """The positions that stay when some channels go."""
        found: Numbers = np.flatnonzero(~np.isin(self.channels, removed))
        return found


@dataclass(frozen=True, eq=False)
class Group:
    """Channels that are interchangeable: any number of them may be removed."""

    name: str
    """the first layer that makes them"""
    channels: Numbers
    """their numbers, in the order in which the first layer makes them"""
    times: int
    """how often each occurs in what the first layer makes"""
    makers: tuple[tuple[Node, Axis], ...]
    nodes: tuple[Node, ...]
    """the nodes whose value or parameters have them"""


@dataclass(frozen=True, eq=False)
class Channels:
    """The groups of a traced module."""

    groups: tuple[Group, ...]
    axes: Mapping[Node, tuple[Axis, ...]]
    """per node, the dimensions that lose positions"""
    of: Mapping[int, int]
    """per channel, the number of its group; channels that stay are left out"""
    notes: tuple[str, ...]


def find_channels(traced: Traced, keep: Keep = ()) -> Channels:
    """The groups of channels of a module, in the order in which they are made.

    Examples:
        >>> from natpp.fx.channels import find_channels
        >>> from natpp.fx.trace import trace
        >>> model = natpp.zoo.network("resnet20")
        >>> found = find_channels(trace(model, torch.randn(1, 3, 32, 32)))
        >>> [(group.name, len(group.channels)) for group in found.groups][:3]
        [('conv1', 16), ('layer1.0.conv1', 16), ('layer1.1.conv1', 16)]
    """
    follower = followed(traced, keep)
    root = follower.book.roots()
    order = {node: index for index, node in enumerate(traced.graph.nodes)}
    axes: dict[Node, list[Axis]] = defaultdict(list)
    for node, tensor, dim, labels, makes in sorted(follower.book.axes, key=lambda one: order[one.node]):
        channels = root[labels]
        if channels.any() or tensor.startswith((PIECE, SLICE)):
            axes[node].append(Axis(tensor, dim, channels, makes))
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    makers: dict[int, list[tuple[Node, Axis]]] = defaultdict(list)
    number = 0
    for node, dimensions in axes.items():
        for axis in dimensions:
            for channel, count in zip(
                *(one.tolist() for one in np.unique(axis.channels, return_counts=True)), strict=True
            ):
                if channel != FIXED:
                    places[channel].append((number, count))
                    if axis.makes:
                        makers[channel].append((node, axis))
            number += 1
    alike: dict[object, list[int]] = defaultdict(list)
    for channel, where in places.items():
        if makers[channel]:
            alike[tuple(where)].append(channel)
    having = _having(follower, root)
    groups, names = list[Group](), Counter[str]()
    firsts = sorted(alike.values(), key=lambda some: order[makers[some[0]][0][0]])
    for some in firsts:
        made = tuple(makers[some[0]])
        first, axis = made[0]
        chosen = set(some)
        own = [channel for channel in dict.fromkeys(axis.channels.tolist()) if channel in chosen]
        if len(own) > 1:
            nodes = {node for channel in some for node in having[channel]}
            names[str(first.target)] += 1
            count = names[str(first.target)]
            name = str(first.target) if count == 1 else f"{first.target} ({count})"
            times = int((axis.channels == own[0]).sum())
            numbers: Numbers = np.array(own, dtype=np.int64)
            groups.append(Group(name, numbers, times, made, tuple(sorted(nodes, key=order.__getitem__))))
    of = {int(channel): number for number, group in enumerate(groups) for channel in group.channels}
    return Channels(tuple(groups), {node: tuple(own) for node, own in axes.items()}, of, _notes(follower))


def _having(follower: Follower, root: Numbers) -> dict[int, set[Node]]:
    """Per channel, the nodes whose value or parameters have it."""
    found: dict[int, set[Node]] = defaultdict(set)
    values = ((node, one.channels) for node, known in follower.book.known.items() for one in flat(known))
    for node, channels in (*values, *((axis.node, axis.channels) for axis in follower.book.axes)):
        for channel in np.unique(root[channels]).tolist():
            found[channel].add(node)
    return found


def _notes(follower: Follower) -> tuple[str, ...]:
    """A note that names the operations that channels could not be followed through."""
    if not follower.stopped:
        return ()
    return (f"the widths next to {some_of(list(follower.stopped))} are kept, since channels cannot be followed there",)


def counted(axis: Axis, channels: Channels) -> tuple[int, dict[int, int]]:
    """How many positions of an axis always stay, and for each group, how many each of its channels has there."""
    numbers = Counter(channels.of.get(channel) for channel in axis.channels.tolist())
    fixed = numbers.pop(None, 0)
    return fixed, {
        group: count // len(channels.groups[group].channels) for group, count in numbers.items() if group is not None
    }
