"""Padding worked out from sizes, as in TensorFlow: the sizes are checked, and a check is no reader."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from natpp.fx.blocks import find_blocks
from tests.fx.promises import keeps_promises


class Padded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        side, kernel, stride = int(x.shape[-1]), self.kernel_size[0], self.stride[0]
        more = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return F.conv2d(
            F.pad(x, [more // 2, more - more // 2] * 2), self.weight, self.bias, self.stride, groups=self.groups
        )


class Inverted(nn.Module):
    def __init__(self, channels: int, kernel: int):
        super().__init__()
        wide = 2 * channels
        self.expand = nn.Sequential(Padded(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depthwise = nn.Sequential(
            Padded(wide, wide, kernel, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.reduce = nn.Sequential(Padded(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.reduce(self.depthwise(self.expand(x)))


def network(kernel: int = 3) -> nn.Module:
    return nn.Sequential(Padded(3, 4, 3, stride=2), *(Inverted(4, kernel) for _ in range(3)))


def test_padding_from_sizes() -> None:
    keeps_promises(network(), torch.randn(2, 3, 9, 9), seeds=2, deploys=False)


def test_nothing_is_computed_only_to_be_checked() -> None:
    result = natpp.optimize(network(9), budget="strict", example_input=torch.randn(2, 3, 8, 8))
    assert result.changes
    result.module.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    unused = [name for name, parameter in result.module.named_parameters() if parameter.grad is None]
    assert not unused
    assert {f"{block}.depthwise.0.weight" for block in (1, 2, 3)} <= result.module.state_dict().keys()


class Outside(nn.Module):
    """Zeros around a map, as a layer or a function, before a convolution without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        self.conv, self.wide = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.both = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3, padding=1))  # it makes the map larger

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.conv(F.pad(torch.relu(x), (1, 1, 1, 1)))
        return self.both(x + self.wide(F.pad(x, (1, 1, 1, 1), value=1.0))).mean((2, 3))


def test_zeros_around_a_map_belong_to_the_convolution() -> None:
    traced = keeps_promises(Outside(), torch.randn(2, 3, 8, 8), seeds=2, deploys=False)
    sites = [term.site for block in find_blocks(traced) for _, term in block.terms if term.site is not None]
    names = [(site.name, site.op, site.place.stride, len(site.pad)) for site in sites]
    assert names[:2] == [("stem.1", "conv_3x3", 2, 1), ("conv", "conv_3x3", 1, 1)]
    assert [name for name, *_ in names[2:]] == ["both.1"]
