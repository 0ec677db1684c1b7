"""Padding worked out from sizes, as in TensorFlow: the sizes are checked, and a check is no reader."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from tests.fx.promises import keeps_promises


class Padded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        side, kernel, stride = int(x.shape[-1]), self.kernel_size[0], self.stride[0]
        more = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return F.conv2d(
            F.pad(x, [more // 2, more - more // 2] * 2), self.weight, self.bias, self.stride, groups=self.groups
        )


class Inverted(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        wide = 2 * channels
        self.expand = nn.Sequential(Padded(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depthwise = nn.Sequential(Padded(wide, wide, 3, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.reduce = nn.Sequential(Padded(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.reduce(self.depthwise(self.expand(x)))


def network() -> nn.Module:
    return nn.Sequential(Padded(3, 4, 3, stride=2), *(Inverted(4) for _ in range(3)))


def test_padding_from_sizes() -> None:
    keeps_promises(network(), torch.randn(2, 3, 9, 9), seeds=2, deploys=False)


def test_nothing_is_computed_only_to_be_checked() -> None:
    result = natpp.optimize(network(), example_input=torch.randn(2, 3, 8, 8))
    assert result.changes
    result.module.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    unused = [name for name, parameter in result.module.named_parameters() if parameter.grad is None]
    assert not unused
    assert {f"{block}.depthwise.0.weight" for block in (1, 2, 3)} <= result.module.state_dict().keys()
