"""A pre-activation ResNet: norm and activation come first."""

import torch
from torch import Tensor, nn

from natpp.fx.sites import Site, find_items
from tests.fx.promises import keeps_promises


class PreBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int = 1):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None if stride == 1 and channels == width else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(x))
        identity = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(self.relu(self.bn2(self.conv1(out))))
        return out + identity


def test_preactivation() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), PreBlock(8, 8), PreBlock(8, 8), PreBlock(8, 16, 2), PreBlock(16, 16)),
        *(nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
    )
    traced = keeps_promises(module, torch.randn(2, 3, 12, 12))
    first = next(item for item in find_items(traced) if isinstance(item, Site) and item.name == "1.conv1")
    assert [str(node.target) for node in first.before] == ["1.bn1", "1.relu"]
