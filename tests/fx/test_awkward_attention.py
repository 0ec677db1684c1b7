"""Residual attention beside convolutions, and ResNeXt's blocks: what has no name is never thrown away."""

import pytest
import torch
from torch import Tensor, nn

import natpp
from tests.fx.promises import keeps_promises


class Attention(nn.Module):
    """Over pixels, on a feature map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x).flatten(2)).chunk(3, 1)
        mixed = (query.transpose(1, 2) @ key).softmax(-1) @ value.transpose(1, 2)
        return mixed.transpose(1, 2).reshape(x.shape) * self.scale


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.attention = nn.ModuleList(Attention(8) for _ in range(3))
        self.mix = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for attention, mix in zip(self.attention, self.mix, strict=True):
            x = x + attention(x)
            x = x + mix(x)
        return x.mean((2, 3))


class ResNeXt(nn.Module):
    """The shortcut's convolution runs after the others, which it can then not feed."""

    def __init__(self, wide: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(wide, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.conv2 = nn.Conv2d(8, 8, 3, stride, 1, groups=4, bias=False)
        self.conv3 = nn.Sequential(nn.Conv2d(8, out, 1, bias=False), nn.BatchNorm2d(out))
        self.down = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv3(self.conv2(self.conv1(x)).relu())
        return torch.relu(y + self.down(x))


def test_attention() -> None:
    keeps_promises(Transformer(), torch.randn(2, 3, 6, 6))


def test_grouped_convolutions_between_pointwise_ones() -> None:
    keeps_promises(nn.Sequential(ResNeXt(3, 8, 1), ResNeXt(8, 8, 1), ResNeXt(8, 16, 2)), torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize("budget", ["strict", {"madds": 0.9}])
def test_what_has_no_name_is_not_thrown_away(budget: object) -> None:
    module = Transformer()
    found = natpp.optimize(module, budget=budget, example_input=torch.randn(2, 3, 6, 6))
    kept = {name for name, _ in module.attention.named_parameters(prefix="attention")}
    assert found.changes
    assert kept <= found.module.state_dict().keys()
