"""Channels that can only be removed together, found on a traced graph.

Every channel that a layer makes has a number. Every value has an array with the channel number of each of its elements
(`follow.py` says how an operation moves them). Where two channels must stay or go together, as in the terms of a sum,
they get the same number. Channels that occur equally often in all the same places form a group: any of them may be
removed, and shapes and costs depend only on how many are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch.fx.node import Node

from natpp.fx.follow import Follower, followed
from natpp.fx.labels import FIXED, PIECE, SLICE, Numbers, flat
from natpp.fx.sites import Keep, kept_parts
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
    key = "channels", kept_parts(keep)
    if key not in traced.found:
        traced.found[key] = _found(traced, keep)
    found: Channels = traced.found[key]
    return found


def _found(traced: Traced, keep: Keep) -> Channels:
    follower = followed(traced, keep)
    root = follower.book.roots()
    order = {node: index for index, node in enumerate(traced.graph.nodes)}
    axes: dict[Node, list[Axis]] = defaultdict(list)
    for node, tensor, dim, labels, makes in sorted(follower.book.axes, key=lambda one: order[one.node]):
        channels = root[labels]
        if channels.any() or tensor.startswith((PIECE, SLICE)):
            axes[node].append(Axis(tensor, dim, channels, makes))
    every = [(node, axis) for node, own in axes.items() for axis in own]
    kind, firsts = _kinds([axis.channels for _, axis in every], len(root))
    makers: dict[int, list[tuple[Node, Axis]]] = defaultdict(list)
    for node, axis in every:
        if axis.makes:
            for channel in np.intersect1d(axis.channels, firsts).tolist():
                makers[channel].append((node, axis))
    having = _having(follower, kind[root])
    groups, names = list[Group](), Counter[str]()
    for one in sorted((one for one in firsts.tolist() if makers[one]), key=lambda one: order[makers[one][0][0]]):
        made = tuple(makers[one])
        first, axis = made[0]
        own, places = np.unique(axis.channels[kind[axis.channels] == kind[one]], return_index=True)
        if len(own) > 1:
            names[str(first.target)] += 1
            count = names[str(first.target)]
            name = str(first.target) if count == 1 else f"{first.target} ({count})"
            times = int((axis.channels == own[0]).sum())
            nodes = tuple(sorted(having[int(kind[one])], key=order.__getitem__))
            groups.append(Group(name, own[np.argsort(places)], times, made, nodes))
    of = {channel: number for number, group in enumerate(groups) for channel in group.channels.tolist()}
    return Channels(tuple(groups), {node: tuple(own) for node, own in axes.items()}, of, _notes(follower))


def _kinds(axes: Sequence[Numbers], count: int) -> tuple[Numbers, Numbers]:
    """Per channel, the number of its kind, 0 for those that stay; and the first channel of every kind, in order.

    Channels that occur equally often along the same axes are of one kind.
    """
    kind, last = np.zeros(count, dtype=np.int64), 0
    for channels in axes:
        some, times = np.unique(channels[channels != FIXED], return_counts=True)
        if len(some):
            _, kinds = np.unique(kind[some] * (times.max() + 1) + times, return_inverse=True)
            kind[some] = last + 1 + kinds
            last += 1 + int(kinds.max())
    seen = list(dict.fromkeys(kind[np.concatenate([np.unique(one) for one in axes])].tolist())) if axes else []
    numbers, first = np.unique(kind, return_index=True)
    place = dict(zip(numbers.tolist(), first.tolist(), strict=True))
    return kind, np.array([place[one] for one in seen if one], dtype=np.int64)


def _having(follower: Follower, kind: Numbers) -> dict[int, set[Node]]:
    """Per kind of channels, the nodes whose value or parameters have some; `kind` is by number before joining."""
    found: dict[int, set[Node]] = defaultdict(set)
    values = ((node, one.channels) for node, known in follower.book.known.items() for one in flat(known))
    for node, channels in (*values, *((axis.node, axis.channels) for axis in follower.book.axes)):
        for one in np.unique(kind[channels]).tolist():
            found[one].add(node)
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
