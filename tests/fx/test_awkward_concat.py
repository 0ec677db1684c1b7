"""Branches that are concatenated."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True))
        self.right = nn.Sequential(nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(inplace=True), nn.Conv2d(6, 6, 1))
        self.mix = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.left(x), self.right(x)], dim=1))


def test_concatenation_separates() -> None:
    keeps_promises(Concatenated(), torch.randn(2, 3, 8, 8))
