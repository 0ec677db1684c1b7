"""Transposed and 1-D convolutions have no name in the vocabulary."""

import torch
from torch import Tensor, nn

from natpp.fx.sites import Site, find_items
from tests.fx.promises import keeps_promises


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(
            *(nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(True)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU(0.2, True), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()),
        )
        self.lines = nn.Conv1d(3 * 16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.lines(self.up(x).flatten(1, 2))


def test_transposed_convolutions_stay() -> None:
    traced = keeps_promises(Generator(), torch.randn(2, 4, 4, 4))
    assert [item.name for item in find_items(traced) if isinstance(item, Site)] == ["up.3"]
