"""Operations of edges: the thirteen of the paper, and extras that published cells use.

An operation's module, its cost and its form at a site of a module all follow from its layers at a place. To add an
operation, add one entry here, or call `OPS.add` elsewhere. Convolutions have no bias, as in the published networks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from natpp.arch.layers import (
    FACTORIZED,
    BatchNorm,
    Chain,
    Conv,
    FactorizedConv,
    Form,
    Identity,
    Pool,
    ReLU,
    Size,
    Zeros,
    build_chain,
    chain_cost,
)
from natpp.errors import SettingError, did_you_mean
from natpp.registry import OPS

if TYPE_CHECKING:
    from torch import nn


FAMILIES = ("conv", "sep_conv", "dil_conv", "pool", "skip", "null", "other")
LARGEST = 1_000_000  # a larger number of channels or pixels is surely a typo


@dataclass(frozen=True)
class Place:
    """The place of an operation: channels in and out, stride, size of the input feature map.

    Examples:
        >>> from natpp.arch.ops import Place
        >>> Place(16, 32, stride=2, size=(8, 8))
        Place(channels_in=16, channels_out=32, stride=2, size=(8, 8))
    """

    channels_in: int
    channels_out: int
    stride: int = 1
    size: Size = (32, 32)

    def __post_init__(self) -> None:
        if self.channels_in < 1 or self.channels_out < 1:
            raise SettingError(f"a place has {min(self.channels_in, self.channels_out)} channels, expected at least 1")
        if self.stride not in (1, 2):
            raise SettingError(f"the stride of an operation is {self.stride}, expected 1 or 2")
        if max(self.channels_in, self.channels_out, *self.size) > LARGEST:
            raise SettingError(f"channels and sizes must be at most {LARGEST:,}")
        if min(self.size) < 1:
            raise SettingError(f"a feature map is {self.size[0]} x {self.size[1]}, expected at least 1 x 1")

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.channels_in, self.channels_out, self.stride, self.size))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Op:
    """An operation: its name, its family (for the order of types), its kernel, its layers at a place.

    Examples:
        >>> from natpp.arch.ops import Place
        >>> from natpp.registry import OPS
        >>> OPS["sep_conv_3x3"].cost(Place(16, 16))
        (864, 819200)
    """

    name: str
    """letters, digits and underscores"""
    family: str
    """conv, sep_conv, dil_conv, pool, skip, null or other; the paper's rules let `other` stay or become skip or null"""
    kernel: int
    """the longer side of the kernel; 1 for skip, 0 for null"""
    layers: Callable[[Place], Chain]
    """its layers at a place; module and cost follow from them"""
    extra: bool = False
    """not one of the paper's thirteen: may stay or be replaced, but is never chosen"""
    at_site: Callable[[Place], Chain] | None = None
    """its layers at a site of a module, if they differ from those in a cell"""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise SettingError(f"the name of an operation is {self.name!r}, expected letters, digits and underscores")
        if self.family not in FAMILIES:
            raise SettingError(f"unknown family {self.family!r}. {did_you_mean(self.family, FAMILIES)}")
        if self.kernel < 0 or not callable(self.layers):
            raise SettingError(
                f"the operation {self.name} needs a kernel of 0 or more and a function that returns its layers"
            )

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.name, self.family, self.kernel, self.layers, self.extra))

    def __hash__(self) -> int:
        return self._hash

    def cost(self, place: Place) -> tuple[int, int]:
        """Parameters and multiply-adds at a place."""
        return _cost(self.layers, place)

    def build(self, place: Place) -> nn.Module:
        """The operation as a module with fresh weights."""
        return build_chain(self.layers(place))

    def forms(self, place: Place) -> tuple[Form, ...]:
        """Its convolutions and poolings at a site, whose norm and activation are kept; empty for an identity."""
        return _forms(self.at_site or self.layers, self.name, place)

    @functools.cached_property
    def replaces_sites(self) -> bool:
        """Whether it can replace a site of a module."""
        try:
            self.forms(Place(4, 4))
        except SettingError:
            return False
        return True

    @functools.cached_property
    def looks(self) -> tuple[str, int, bool, bool] | None:
        """`Form.looks` of the site of a module that this operation describes; None if there is none."""
        found = self.forms(Place(4, 4)) if self.replaces_sites else ()
        return found[0].looks if found else None


@functools.lru_cache(maxsize=1 << 16)
def _cost(layers: Callable[[Place], Chain], place: Place) -> tuple[int, int]:
    return chain_cost(layers(place), place.size)


@functools.lru_cache(maxsize=1 << 16)
def _forms(layers: Callable[[Place], Chain], name: str, place: Place) -> tuple[Form, ...]:
    found: list[Form | None] = []
    for layer in layers(place):
        match layer:
            case Conv(kernel=(side, other), stride=(step, _)) if side == other:
                channels = layer.channels_in, layer.channels_out
                found.append(Form("conv", side, *channels, step, layer.dilation, layer.groups))
            case FactorizedConv():
                found.append(Form(FACTORIZED, 1, layer.channels_in, layer.channels_out, 2))
            case Pool():
                found.append(Form(layer.kind, layer.kernel, place.channels_in, place.channels_in, layer.stride))
            case ReLU() | BatchNorm() | Identity() | Zeros():
                pass
            case _:
                found.append(None)
    match found:
        case [] | [Form(groups=1)]:
            pass
        case [Form() as first, Form("conv", 1, _, _, 1, 1, 1)] if first.kind in ("max", "avg") or (
            first.kind == "conv" and first.channels_in == first.channels_out == first.groups
        ):
            pass
        case _:
            raise SettingError(
                f"{name} cannot replace a site of a module: that needs one square convolution or pooling, followed by "
                "at most a 1x1 convolution if it is depthwise or a pooling. Pass such layers as at_site"
            )
    return tuple(form for form in found if form is not None)


def input_map(place: Place) -> Chain:
    """Maps a cell's input to its channels: ReLU, 1x1 conv, BN; at stride 2 a factorized reduction."""
    conv = FactorizedConv if place.stride == 2 else Conv
    return ReLU(), conv(place.channels_in, place.channels_out), BatchNorm(place.channels_out)


def _conv(*kernels: Size) -> Callable[[Place], Chain]:
    """ReLU, convs one after the other (each has the stride along its longer sides), BN."""

    def layers(place: Place) -> Chain:
        convs = []
        channels = place.channels_in
        for kernel in kernels:
            # 1 x k has the stride along the width, k x 1 along the height
            down, across = (place.stride if side > 1 or len(kernels) == 1 else 1 for side in kernel)
            convs.append(Conv(channels, place.channels_out, kernel, (down, across)))
            channels = place.channels_out
        return ReLU(), *convs, BatchNorm(place.channels_out)

    return layers


def _separable(kernel: int, *, dilation: int = 1, repeats: int = 1) -> Callable[[Place], Chain]:
    """(ReLU, depthwise conv, pointwise conv, BN), repeated; the first repeat has the stride."""

    def layers(place: Place) -> Chain:
        chain: Chain = ()
        channels = place.channels_in
        for repeat in range(repeats):
            stride = place.stride if repeat == 0 else 1
            channels_out = place.channels_out if repeat == repeats - 1 else channels
            chain += (
                ReLU(),
                Conv(channels, channels, (kernel, kernel), (stride, stride), dilation, groups=channels),
                Conv(channels, channels_out),
                BatchNorm(channels_out),
            )
        return chain

    return layers


def _pool(kind: Literal["max", "avg"], kernel: int) -> Callable[[Place], Chain]:
    """Pooling; followed by a 1x1 conv and BN if the channels change."""

    def layers(place: Place) -> Chain:
        pool = Pool(kind, kernel, place.stride)
        if place.channels_in == place.channels_out:
            return (pool,)
        return pool, Conv(place.channels_in, place.channels_out), BatchNorm(place.channels_out)

    return layers


def _skip(place: Place) -> Chain:
    """Identity; at stride 2 a factorized reduction, and a 1x1 conv if the channels change."""
    if place.stride == 1 and place.channels_in == place.channels_out:
        return (Identity(),)
    return input_map(place)


def _null(place: Place) -> Chain:
    return (Zeros(place.channels_out, place.stride),)


for op in (
    Op("conv_1x1", "conv", 1, _conv((1, 1))),
    Op("conv_3x3", "conv", 3, _conv((3, 3))),
    Op("conv_5x5", "conv", 5, _conv((5, 5))),
    Op("sep_conv_3x3", "sep_conv", 3, _separable(3, repeats=2), at_site=_separable(3)),
    Op("sep_conv_5x5", "sep_conv", 5, _separable(5, repeats=2), at_site=_separable(5)),
    Op("dil_conv_3x3", "dil_conv", 3, _separable(3, dilation=2)),
    Op("dil_conv_5x5", "dil_conv", 5, _separable(5, dilation=2)),
    Op("max_pool_3x3", "pool", 3, _pool("max", 3)),
    Op("max_pool_5x5", "pool", 5, _pool("max", 5)),
    Op("avg_pool_3x3", "pool", 3, _pool("avg", 3)),
    Op("avg_pool_5x5", "pool", 5, _pool("avg", 5)),
    Op("skip_connect", "skip", 1, _skip),
    Op("null", "null", 0, _null),
    # Extras. The published conv_1x7_7x1 and conv_7x1_1x7 have the same layers.
    Op("sep_conv_7x7", "sep_conv", 7, _separable(7, repeats=2), extra=True, at_site=_separable(7)),
    Op("conv_1x3_3x1", "conv", 3, _conv((1, 3), (3, 1)), extra=True),
    Op("conv_1x7_7x1", "conv", 7, _conv((1, 7), (7, 1)), extra=True),
    Op("conv_7x1_1x7", "conv", 7, _conv((1, 7), (7, 1)), extra=True),
    Op("avg_pool_2x2", "pool", 2, _pool("avg", 2), extra=True),
    Op("max_pool_2x2", "pool", 2, _pool("max", 2), extra=True),
):
    OPS.add(op.name, op)
del op

PAPER_OPS: tuple[str, ...] = tuple(name for name, op in OPS.items() if not op.extra)
