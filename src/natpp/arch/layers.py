"""Layers as values: cost and module of each; operations and networks are chains of layers.

torch is only imported when a layer is built. Sizes are (height, width); memory is counted for one float32 image.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from natpp.errors import SettingError

if TYPE_CHECKING:
    from torch import nn

Size = tuple[int, int]
Chain = tuple["Layer", ...]

FLOAT_BYTES = 4
INDEX_BYTES = 8  # max pooling also stores the index of every maximum
FACTORIZED = "factorized"  # the form of a `FactorizedConv`


@dataclass(frozen=True)
class Layer:
    """One layer of a chain. By default it keeps channels and size, and only its output takes memory."""

    module: ClassVar[str]  # the class of the layer's module, imported when it is built

    @property
    def params(self) -> int:
        """Number of trainable parameters."""
        return 0

    def madds(self, size: Size) -> int:
        """Multiply-adds for one image of this size."""
        return 0

    def channels(self, channels: int) -> int:
        """Number of output channels."""
        return channels

    def size(self, size: Size) -> Size:
        """Output size."""
        return size

    def bytes_out(self, channels: int, size: Size) -> int:
        """Bytes of the output."""
        return FLOAT_BYTES * self.channels(channels) * area(self.size(size))

    def bytes_held(self, channels: int, size: Size) -> int:
        """Peak bytes while the layer runs, including its output, but not its input."""
        return self.bytes_out(channels, size)

    def build(self) -> nn.Module:
        """The layer with fresh weights: by default a `module` with the layer's fields as arguments."""
        found: nn.Module = pkgutil.resolve_name(self.module)(*astuple(self))
        return found


@dataclass(frozen=True)
class Identity(Layer):
    """The input itself."""

    module = "torch.nn:Identity"

    def bytes_out(self, channels: int, size: Size) -> int:
        return 0


@dataclass(frozen=True)
class ReLU(Layer):
    """ReLU, never in place, since other edges read the same node."""

    module = "torch.nn:ReLU"


@dataclass(frozen=True)
class Conv(Layer):
    """Convolution without bias and with "same" padding; the size is divided by the stride, rounded up."""

    channels_in: int
    channels_out: int
    kernel: Size = (1, 1)
    stride: Size = (1, 1)
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        if self.channels_in < 1 or self.channels_out < 1:
            raise SettingError(
                f"a convolution has {self.channels_in} input and {self.channels_out} output channels, expected at "
                "least 1"
            )

    @property
    def params(self) -> int:
        return self.channels_in // self.groups * self.channels_out * area(self.kernel)

    def madds(self, size: Size) -> int:
        return self.params * area(self.size(size))

    def channels(self, channels: int) -> int:
        return self.channels_out

    def size(self, size: Size) -> Size:
        return halved(size, self.stride)

    def build(self) -> nn.Module:
        from torch import nn

        padding = self.dilation * (self.kernel[0] // 2), self.dilation * (self.kernel[1] // 2)
        sizes = self.channels_in, self.channels_out, self.kernel, self.stride, padding
        return nn.Conv2d(*sizes, self.dilation, self.groups, bias=False)


@dataclass(frozen=True)
class FactorizedConv(Layer):
    """Two 1x1 convs of stride 2, on x and on x shifted by one pixel (odd sizes padded), each half of the channels."""

    module = "natpp.arch.modules:FactorizedConv2d"
    channels_in: int
    channels_out: int

    @property
    def params(self) -> int:
        return self.channels_in * self.channels_out

    def madds(self, size: Size) -> int:
        return self.params * area(self.size(size))

    def channels(self, channels: int) -> int:
        return self.channels_out

    def size(self, size: Size) -> Size:
        return halved(size, (2, 2))

    def bytes_held(self, channels: int, size: Size) -> int:
        out = self.bytes_out(channels, size)
        height, width = size
        odd = height % 2 or width % 2
        padded = FLOAT_BYTES * channels * (height + 1) * (width + 1) if odd else 0
        if self.channels_out == 1:  # there is only one half
            return padded + out
        return max(padded + out, 2 * out)  # both halves next to the padded input, then next to their concatenation


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch norm with scale and shift."""

    module = "natpp.arch.modules:BatchNorm2d"
    features: int

    @property
    def params(self) -> int:
        return 2 * self.features


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling with "same" padding; averages leave out the padding. The size is divided by the stride, rounded up."""

    kind: Literal["max", "avg"]
    kernel: int
    stride: int = 1

    def size(self, size: Size) -> Size:
        return halved(size, (self.stride, self.stride))

    def bytes_held(self, channels: int, size: Size) -> int:
        height, width = size
        each = FLOAT_BYTES + (INDEX_BYTES if self.kind == "max" else 0)
        held = each * channels * area(self.size(size))
        if self.kernel == 2:
            bottom, right = (self.stride == 1 or side % 2 for side in size)
            if bottom or right:
                held += FLOAT_BYTES * channels * (height + bottom) * (width + right)
        return held

    def build(self) -> nn.Module:
        from natpp.arch.modules import AvgPool2d, MaxPool2d, Pool2x2

        if self.kernel == 2:
            return Pool2x2(self.kind, self.stride)
        return (MaxPool2d if self.kind == "max" else AvgPool2d)(self.kernel, self.stride)


@dataclass(frozen=True)
class Zeros(Layer):
    """Zeros of the output's shape."""

    module = "natpp.arch.modules:Zeros2d"
    channels_out: int
    stride: int = 1

    def channels(self, channels: int) -> int:
        return self.channels_out

    def size(self, size: Size) -> Size:
        return halved(size, (self.stride, self.stride))


@dataclass(frozen=True)
class Form:
    """A convolution or pooling that replaces a site of a module."""

    kind: str
    """conv, max, avg or factorized"""
    kernel: int
    channels_in: int
    channels_out: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    bias: bool = False

    @property
    def depthwise(self) -> bool:
        return self.kind == "conv" and self.groups == self.channels_in == self.channels_out and self.groups > 1

    @property
    def looks(self) -> tuple[str, int, bool, bool]:
        """What identifies an operation: kind, kernel, whether it is depthwise, whether it is depthwise and dilated."""
        return self.kind, self.kernel, self.depthwise, self.depthwise and self.dilation > 1


@dataclass(frozen=True)
class GlobalPool(Layer):
    """The mean over all pixels: one number per channel."""

    module = "natpp.arch.modules:GlobalPool2d"

    def size(self, size: Size) -> Size:
        return (1, 1)


@dataclass(frozen=True)
class Linear(Layer):
    """Linear layer with bias; the bias counts as parameters, but not as multiply-adds."""

    module = "torch.nn:Linear"
    features_in: int
    features_out: int

    @property
    def params(self) -> int:
        return (self.features_in + 1) * self.features_out

    def madds(self, size: Size) -> int:
        return self.features_in * self.features_out

    def channels(self, channels: int) -> int:
        return self.features_out


def area(size: Size) -> int:
    """Number of pixels."""
    return size[0] * size[1]


def halved(size: Size, stride: Size) -> Size:
    """The size divided by the stride, rounded up."""
    return -(-size[0] // stride[0]), -(-size[1] // stride[1])


@functools.lru_cache(maxsize=1 << 16)
def chain_cost(layers: Chain, size: Size) -> tuple[int, int]:
    """Parameters and multiply-adds of a chain for one image of this size."""
    params = madds = 0
    for layer in layers:
        params += layer.params
        madds += layer.madds(size)
        size = layer.size(size)
    return params, madds


def chain_shape(layers: Iterable[Layer], channels: int, size: Size) -> tuple[int, Size]:
    """Output channels and size of a chain."""
    for layer in layers:
        channels, size = layer.channels(channels), layer.size(size)
    return channels, size


@functools.lru_cache(maxsize=1 << 16)
def chain_room(layers: Chain, channels: int, size: Size) -> tuple[int, int]:
    """Bytes of a chain's output (0 if it is the input itself), and peak bytes of the chain in addition to its input."""
    most = held = 0  # held: bytes of the current value, unless it is the chain's input
    for layer in layers:
        most = max(most, held + layer.bytes_held(channels, size))
        held = layer.bytes_out(channels, size) if not isinstance(layer, Identity) else held
        channels, size = layer.channels(channels), layer.size(size)
    return held, most


def build_chain(layers: Chain) -> nn.Module:
    """The chain as one flat module; a single layer is not wrapped."""
    from natpp.arch.modules import Layers

    modules = [layer.build() for layer in layers]
    return modules[0] if len(modules) == 1 else Layers(*modules)
