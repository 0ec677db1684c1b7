"""The structure of a network: stems, cells and blocks with their shapes, before anything is built.

Block k reads earlier values (value 0 is the image) and computes value k + 1; the head reads the last value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass

from natpp.arch.graph import NUM_INPUTS
from natpp.arch.layers import (
    FLOAT_BYTES,
    BatchNorm,
    Chain,
    Conv,
    GlobalPool,
    Identity,
    Layer,
    Linear,
    Pool,
    ReLU,
    Size,
    area,
    chain_cost,
    chain_room,
    chain_shape,
    halved,
)
from natpp.arch.ops import LARGEST, Place, input_map
from natpp.core.blueprint import Room
from natpp.errors import SettingError
from natpp.registry import NETWORKS

IMAGE_CHANNELS = 3
LARGEST_CELLS = 1000


@dataclass(frozen=True)
class Setting:
    """The network that an architecture is placed in, with all of its settings."""

    network: str
    channels: int  # of the first cells
    cells: int  # number of cells (nasbench201: a stage)
    classes: int
    size: int  # height and width of the image

    def __post_init__(self) -> None:
        for field in ("channels", "cells", "classes", "size"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError(f"{field} is {value!r}, expected a whole number from 1 up")
            if value > (limit := LARGEST_CELLS if field == "cells" else LARGEST):
                raise SettingError(f"{field} is too large, expected at most {limit:,}")


def setting(
    network: str = "cifar",
    *,
    channels: int | None = None,
    cells: int | None = None,
    classes: int | None = None,
    size: int | None = None,
) -> Setting:
    """The setting of a network; omitted values get the network's defaults.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> setting("cifar", channels=16)
        Setting(network='cifar', channels=16, cells=20, classes=10, size=32)
    """
    given = {"channels": channels, "cells": cells, "classes": classes, "size": size}
    default = asdict(NETWORKS[network].default)
    return Setting(**default | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Block:
    """Chains that read the same value, and whose outputs are added: a stem or a residual block."""

    name: str
    branches: tuple[Chain, ...]
    reads: tuple[int]
    channels_in: int
    size_in: Size
    channels_out: int
    size_out: Size
    halvings_in: int  # number of times the image was halved before this block

    @functools.cached_property
    def cost(self) -> tuple[int, int]:
        """Parameters and multiply-adds."""
        params, madds = zip(*(chain_cost(chain, self.size_in) for chain in self.branches), strict=True)
        return sum(params), sum(madds)

    @functools.cached_property
    def rooms(self) -> tuple[Room, Room]:
        """Output bytes and peak bytes: when the block runs, and when zeros replace its input and output."""
        read = FLOAT_BYTES * self.channels_in * area(self.size_in)
        most = held = made = 0
        for chain in self.branches:
            made, needed = chain_room(chain, self.channels_in, self.size_in)
            most, held = max(most, held + needed), held + made
        if len(self.branches) > 1:
            most = max(most, held + made)  # when they are added
        return (made, most), (made, read + max(most, 2 * made))


@dataclass(frozen=True)
class CellBlock:
    """A cell's place in the network: its channels and stride, and how its two inputs are mapped."""

    name: str
    kind: str  # normal or reduce
    channels: int
    stride: int  # of edges that read an input of the cell
    inputs: tuple[Chain, Chain]
    reads: tuple[int, int]
    channels_in: tuple[int, int]
    sizes_in: tuple[Size, Size]
    size: Size  # of the mapped inputs
    channels_out: int
    size_out: Size
    from_input: Place  # the place of operations that read an input
    from_node: Place  # the place of operations that read an intermediate node

    @functools.cached_property
    def input_costs(self) -> tuple[tuple[int, int], ...]:
        """Parameters and multiply-adds of the mapping of each input."""
        return tuple(chain_cost(chain, size) for chain, size in zip(self.inputs, self.sizes_in, strict=True))

    @functools.cached_property
    def input_rooms(self) -> tuple[Room, ...]:
        """Output bytes and peak bytes of the mapping of each input."""
        shapes = zip(self.inputs, self.channels_in, self.sizes_in, strict=True)
        return tuple(chain_room(chain, channels, size) for chain, channels, size in shapes)

    @property
    def node_bytes(self) -> int:
        """Bytes of a node's value."""
        return FLOAT_BYTES * self.channels * area(self.size_out)

    def place(self, source: int) -> Place:
        """The place of an edge that reads this node."""
        return self.from_input if source < NUM_INPUTS else self.from_node


@dataclass(frozen=True)
class Layout:
    """The blocks of a network in order, and its head."""

    setting: Setting
    blocks: tuple[Block | CellBlock, ...]
    head: Chain
    auxiliary: tuple[int, int] | None = None  # the value that the auxiliary head reads, and the stride of its pooling

    @functools.cached_property
    def width(self) -> int:
        """Channels that the head reads."""
        return self.blocks[-1].channels_out

    @functools.cached_property
    def head_cost(self) -> tuple[int, int]:
        """Parameters and multiply-adds of the head."""
        return chain_cost(self.head, self.blocks[-1].size_out)

    @functools.cached_property
    def head_rooms(self) -> tuple[Room, Room]:
        """Output bytes and peak bytes of the head: when it runs, and when zeros (1 x 1 pixel) replace its input."""
        made, most = chain_room(self.head, self.width, (1, 1))
        return chain_room(self.head, self.width, self.blocks[-1].size_out), (made, FLOAT_BYTES * self.width + most)


Widths = tuple[int, int]  # numbers of nodes that the normal and the reduction cell concatenate


@dataclass(frozen=True)
class Skeleton:
    """A kind of network: its defaults, and its layout for given numbers of concatenated nodes."""

    default: Setting
    layout: Callable[[Setting, Widths], Layout]


class _Builder:
    """Adds blocks one after the other and tracks the shape of each value."""

    def __init__(self, where: Setting, widths: Widths):
        self.setting = where
        self.widths = dict(zip(("normal", "reduce"), widths, strict=True))
        self.blocks: list[Block | CellBlock] = []
        self.shapes: list[tuple[int, Size]] = [(IMAGE_CHANNELS, (where.size, where.size))]
        self.halvings = [0]  # per value: number of times the image was halved

    @property
    def last(self) -> int:
        return len(self.blocks)

    def block(self, name: str, *branches: Chain, halvings: int = 0) -> None:
        channels, size = self.shapes[-1]
        channels_out, size_out = chain_shape(branches[0], channels, size)
        before = self.halvings[-1]
        self.blocks.append(Block(name, branches, (self.last,), channels, size, channels_out, size_out, before))
        self.shapes.append((channels_out, size_out))
        self.halvings.append(before + halvings)

    def cell(self, kind: str, channels: int, reads: tuple[int, int], *, map_all: bool = True) -> None:
        """Add a cell; both inputs are mapped to `channels`, and the older one to the size of the newer one."""
        stride = 2 if kind == "reduce" else 1
        (channels_0, size_0), (channels_1, size) = (self.shapes[value] for value in reads)
        chains: list[Chain] = []
        for value in reads:
            channels_in, size_in = self.shapes[value]
            halved_since = self.halvings[reads[1]] - self.halvings[value]
            if channels_in == channels and not halved_since and not map_all:
                chains.append((Identity(),))
            else:
                chains.append(input_map(Place(channels_in, channels, 1 + halved_since, size_in)))
        size_out = halved(size, (stride, stride))
        channels_out = channels * self.widths[kind]
        number = sum(isinstance(block, CellBlock) for block in self.blocks)
        self.blocks.append(
            CellBlock(
                name=f"cell_{number}",
                kind=kind,
                channels=channels,
                stride=stride,
                inputs=(chains[0], chains[1]),
                reads=reads,
                channels_in=(channels_0, channels_1),
                sizes_in=(size_0, size),
                size=size,
                channels_out=channels_out,
                size_out=size_out,
                from_input=Place(channels, channels, stride, size),
                from_node=Place(channels, channels, 1, size_out),
            )
        )
        self.shapes.append((channels_out, size_out))
        self.halvings.append(self.halvings[reads[1]] + stride - 1)

    def stacked_cells(self, first_reads: tuple[int, int]) -> int:
        """Add N cells, with reduction cells at N // 3 and 2N // 3; returns the index of the second one's value."""
        cells, channels = self.setting.cells, self.setting.channels
        older, newer = first_reads
        second = 0
        for index in range(cells):
            reduces = index in (cells // 3, 2 * cells // 3)
            channels *= 2 if reduces else 1
            self.cell("reduce" if reduces else "normal", channels, (older, newer))
            older, newer = newer, self.last
            if index == 2 * cells // 3:
                second = self.last
        return second

    def layout(self, *before_pooling: Layer, auxiliary: tuple[int, int] | None = None) -> Layout:
        channels, _ = self.shapes[-1]
        head = (*before_pooling, GlobalPool(), Linear(channels, self.setting.classes))
        return Layout(self.setting, tuple(self.blocks), head, auxiliary)


def _cifar(where: Setting, widths: Widths) -> Layout:
    builder = _Builder(where, widths)
    stem = 3 * where.channels
    builder.block("stem", (Conv(IMAGE_CHANNELS, stem, (3, 3)), BatchNorm(stem)))
    second = builder.stacked_cells((1, 1))
    return builder.layout(auxiliary=(second, 3))


def _imagenet(where: Setting, widths: Widths) -> Layout:
    builder = _Builder(where, widths)
    channels = where.channels
    half = channels // 2
    if half < 1:
        raise SettingError("channels is 1, expected 2 or more: the imagenet network starts with half of them")
    stride = (2, 2)
    first = (Conv(IMAGE_CHANNELS, half, (3, 3), stride), BatchNorm(half), ReLU())
    builder.block("stem_0", (*first, Conv(half, channels, (3, 3), stride), BatchNorm(channels)), halvings=2)
    builder.block("stem_1", (ReLU(), Conv(channels, channels, (3, 3), stride), BatchNorm(channels)), halvings=1)
    second = builder.stacked_cells((1, 2))
    return builder.layout(auxiliary=(second, 2))


def _nasbench201(where: Setting, widths: Widths) -> Layout:
    """Three stages with residual blocks between them; both inputs of a cell are the output of the previous block."""
    builder = _Builder(where, widths)
    channels = where.channels
    builder.block("stem", (Conv(IMAGE_CHANNELS, channels, (3, 3)), BatchNorm(channels)))
    for stage in range(3):
        if stage:
            wide, channels = builder.shapes[-1][0], 2 * channels
            main = (
                *(ReLU(), Conv(wide, channels, (3, 3), (2, 2)), BatchNorm(channels)),
                *(ReLU(), Conv(channels, channels, (3, 3)), BatchNorm(channels)),
            )
            builder.block(f"residual_{stage}", main, (Pool("avg", 2, 2), Conv(wide, channels)), halvings=1)
        for _ in range(where.cells):
            builder.cell("normal", channels, (builder.last, builder.last), map_all=False)
    return builder.layout(BatchNorm(builder.shapes[-1][0]), ReLU())


NETWORKS.add("cifar", Skeleton(Setting("cifar", 36, 20, 10, 32), _cifar))
NETWORKS.add("imagenet", Skeleton(Setting("imagenet", 48, 14, 1000, 224), _imagenet))
NETWORKS.add("nasbench201", Skeleton(Setting("nasbench201", 16, 5, 10, 32), _nasbench201))


def layout_of(where: Setting, widths: Widths) -> Layout:
    """The layout of a network whose cells concatenate these numbers of nodes."""
    return _layout(NETWORKS[where.network], where, widths)


@functools.lru_cache(maxsize=1 << 10)
def _layout(skeleton: Skeleton, where: Setting, widths: Widths) -> Layout:
    return skeleton.layout(where, widths)
