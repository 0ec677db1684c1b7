"""Squeeze-and-excite, with 1x1 convolutions on a single pixel, which are no sites."""

import torch
from torch import Tensor, nn

from natpp.fx.blocks import find_blocks
from natpp.fx.sites import Site, find_items
from tests.fx.promises import keeps_promises


class Squeeze(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, 2, 1)
        self.fc2 = nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.fc2(torch.relu(self.fc1(self.pool(x)))))
        return x * scale


class Block(nn.Module):
    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.block = nn.Sequential(
            *(nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(inplace=True)),
            nn.Conv2d(hidden, hidden, 5, padding=2, groups=hidden, bias=False),
            *(nn.BatchNorm2d(hidden), nn.Hardswish(inplace=True), Squeeze(hidden)),
            *(nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        result += x
        return result


def test_squeeze_and_excite() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Block(8, 12), Block(8, 12), nn.AdaptiveAvgPool2d(1))
    traced = keeps_promises(module, torch.randn(2, 3, 8, 8))
    assert not any("fc" in item.name for item in find_items(traced) if isinstance(item, Site))
    last = find_blocks(traced)[-1]
    assert last.name == "2" or last.name.startswith("2.")
    assert [edge.source for edge in last.graph.edges][-2:] == [0, 3]  # the shortcut is the older input
