"""Small networks in which channels go together in one way each, with their groups worked out by hand."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv(channels: int, width: int, kernel: int = 3, **more: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel, padding=kernel // 2, **more)


class Residual(nn.Module):
    """Two residual blocks with a PReLU: everything that is summed is one group."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, 8), nn.BatchNorm2d(8)
        self.inner, self.outer, self.act = conv(8, 12), conv(12, 8), nn.PReLU(8)
        self.project, self.last = conv(8, 8, 1), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        y = self.act(x + self.outer(F.relu(self.inner(x))))
        return self.last(self.project(x) + y)


class Mobile(nn.Module):
    """An inverted residual with squeeze-and-excite: the gate has the channels that it scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.deep = conv(3, 8), conv(8, 16, 1), conv(16, 16, groups=16)
        self.down, self.up, self.norm = conv(16, 6, 1), conv(6, 16, 1), nn.BatchNorm2d(16)
        self.project, self.last = conv(16, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.hardswish(self.norm(self.deep(self.expand(x))))
        y = y * torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(y, 1)))))
        x += self.project(y)
        return self.last(x.mean((2, 3)))


class Multiplied(nn.Module):
    """A depthwise convolution that makes two channels of each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.last = conv(3, 6), conv(6, 12, groups=6), conv(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.deep(self.stem(x)))


class Grouped(nn.Module):
    """A grouped convolution: every one of its groups loses the same places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.last = conv(3, 12), conv(12, 18, groups=3), conv(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.middle(self.stem(x))))


class Fire(nn.Module):
    """Concatenation: each part is a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.one, self.three, self.last = conv(3, 6, 1), conv(6, 8, 1), conv(6, 10), conv(21, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.squeeze(x))
        return self.last(torch.cat([self.one(y), x, self.three(y)], dim=1))


class Halves(nn.Module):
    """A block of YOLO: one half passes, the other goes through residual blocks, and all are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.outer, self.last = conv(3, 16, 1), conv(8, 6), conv(6, 8), conv(24, 8, 1)
        self.head = conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        parts.append(parts[-1] + self.outer(self.inner(parts[-1])))
        return self.head(self.last(torch.cat(parts, 1)))


class Sliced(nn.Module):
    """The same with a split into parts of other sizes, and slices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = conv(3, 16, 1), conv(6, 6), conv(10, 8)
        self.last, self.other = conv(6, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.first(x).split([6, 10], dim=1)
        y = torch.cat((self.one(one), self.two(two)), 1)
        return self.last(y[:, 4:10]) * self.other(y[:, :4]).mean((2, 3), keepdim=True)


class Shuffle(nn.Module):
    """A channel shuffle between two pointwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep, self.last = conv(3, 12, 1), conv(12, 12, groups=12), conv(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, 12, height, width)
        return self.last(self.deep(x))


class Next(nn.Module):
    """A block of ConvNeXt: channels last, layer norm, an MLP, layer scale and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.norm = conv(3, 8), conv(8, 8, groups=8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 20), nn.Linear(20, 8)
        self.scale, self.head = nn.Parameter(torch.ones(8, 1, 1)), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return self.head(x + self.scale * y)


class Tokens(nn.Module):
    """A block of a vision transformer: the stream of tokens, and the width of its MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.attend = (
            conv(3, 8, 1),
            nn.LayerNorm(8),
            nn.MultiheadAttention(8, 2, batch_first=True),
        )
        self.second, self.wide, self.narrow, self.head = (
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(24, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        x = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return self.head(x.mean(1))


class Heads(nn.Module):
    """Attention written out: its heads are a group, and so are the tokens, with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places, self.norm = conv(3, 12, 1), nn.Parameter(torch.randn(1, 64, 12)), nn.LayerNorm(12)
        self.qkv, self.proj, self.head = nn.Linear(12, 48), nn.Linear(16, 12), nn.Linear(12, 3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places
        batch, count, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, count, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).reshape(batch, count, 16))
        return self.head(x.mean(1))


class Products(Heads):
    """The same by matrix products; the size of what the heads make is that of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q * 0.5) @ k.transpose(-2, -1)).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places
        batch, count, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, count, 3, 4, 3).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).reshape(batch, count, width))
        return self.head(x.mean(1))


class Padded(nn.Module):
    """A convolution that computes its padding from the sizes of its kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.randn(8, 3, 3, 3)), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        height, width = self.first.shape[-2:]
        return self.last(F.conv2d(F.pad(x, (0, width - 1, 0, height - 1)), self.first))


class Functional(nn.Module):
    """Convolutions and a norm that are called as functions, with parameters of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.Parameter(torch.randn(8))
        self.deep, self.last = nn.Parameter(torch.randn(8, 1, 3, 3)), nn.Parameter(torch.randn(4, 8, 1, 1))
        self.gain, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.first, self.bias, padding=1)
        x = F.batch_norm(x, self.mean, self.var, self.gain, self.shift)
        return F.conv2d(F.conv2d(x, self.deep, padding=1, groups=8), self.last)


class Counting(nn.BatchNorm2d):
    """A batch norm and activation of another package; it takes another path in training mode, so it stays whole."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        return F.silu(F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training))


def strange() -> nn.Module:
    return nn.Sequential(conv(3, 8), Counting(8), conv(8, 6), Counting(6), conv(6, 4))


def flat() -> nn.Module:
    """A flatten before a linear layer, which reads every channel at 16 places."""
    layers = conv(3, 6), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 10), nn.ReLU(), nn.Linear(10, 3)
    return nn.Sequential(*layers)


def group_norm() -> nn.Module:
    return nn.Sequential(conv(3, 12), nn.GroupNorm(3, 12), nn.SiLU(), conv(12, 4))


def line() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveMaxPool1d(2), nn.Conv1d(8, 2, 1))


class Case(NamedTuple):
    """A network, and its groups: the layer, how many channels may go one by one, how many places each has there."""

    make: Callable[[], nn.Module]
    groups: list[tuple[str, int, int]]


CASES = {
    "residual": Case(Residual, [("stem", 8, 1), ("inner", 12, 1)]),
    "mobile": Case(Mobile, [("stem", 8, 1), ("expand", 16, 1), ("down", 6, 1)]),
    "multiplied": Case(Multiplied, [("stem", 6, 1)]),
    "grouped": Case(Grouped, [("stem", 4, 3), ("middle", 6, 3)]),
    "fire": Case(Fire, [("squeeze", 6, 1), ("one", 8, 1), ("three", 10, 1)]),
    "halves": Case(Halves, [("first", 8, 1), ("first (2)", 8, 1), ("inner", 6, 1), ("last", 8, 1)]),
    "shuffled": Case(Shuffle, [("first", 6, 2)]),
    "next": Case(Next, [("stem", 8, 1), ("wide", 20, 1)]),
    "tokens": Case(Tokens, [("wide", 24, 1)]),
    "heads": Case(Heads, [("embed", 12, 1), ("qkv", 4, 12)]),
    "products": Case(Products, [("embed", 12, 1), ("qkv", 4, 9)]),
    "padded": Case(Padded, [("first", 8, 1)]),
    "functional": Case(Functional, [("first", 8, 1)]),
    "strange": Case(strange, [("0", 8, 1), ("2", 6, 1)]),
    "flat": Case(flat, [("0", 6, 1), ("3", 10, 1)]),
    "group_norm": Case(group_norm, [("0", 4, 3)]),
    "sliced": Case(
        Sliced,
        [("first", 6, 1), ("first (2)", 10, 1), ("one", 4, 1), ("one (2)", 2, 1), ("two", 4, 1), ("two (2)", 4, 1)],
    ),
    "line": Case(line, [("0", 8, 1)]),
}


def example(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 8, generator=generator) if name == "line" else torch.randn(2, 3, 8, 8, generator=generator)
