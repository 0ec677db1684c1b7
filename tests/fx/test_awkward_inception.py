"""Inception branches: convolutions of several sizes and a pooling, side by side."""

import torch
from torch import Tensor, nn

from natpp.fx.blocks import find_blocks, grouped
from tests.fx.promises import keeps_promises


def unit(channels: int, width: int, kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


class Inception(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.one = unit(channels, 4, 1)
        self.three = nn.Sequential(unit(channels, 4, 1), unit(4, 6, 3))
        self.five = nn.Sequential(unit(channels, 4, 1), unit(4, 4, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(channels, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def test_inception() -> None:
    module = nn.Sequential(unit(3, 8, 3), Inception(8), Inception(18), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    traced = keeps_promises(module, torch.randn(2, 3, 10, 10))
    blocks = find_blocks(traced)
    assert {"1.three", "1.five", "1.pool"} <= {block.name for block in blocks}  # every branch is a block
    assert len(grouped(blocks)) < len(blocks)  # and alike ones of both modules are one decision
