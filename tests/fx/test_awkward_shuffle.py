"""Split and channel shuffle, as in ShuffleNet V2."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


def shuffled(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, -1, height, width)


class Unit(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
            *(nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half)),
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return shuffled(torch.cat((first, self.branch(second)), dim=1), 2)


def test_split_and_shuffle() -> None:
    module = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), Unit(12), Unit(12), Unit(12))
    traced = keeps_promises(module, torch.randn(2, 3, 8, 8))
    from natpp.fx.blocks import find_blocks, grouped

    blocks = find_blocks(traced)
    assert [len(group) for group in grouped(blocks)] == [1, 3]  # the three units are one decision
