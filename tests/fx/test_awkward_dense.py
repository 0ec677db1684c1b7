"""Dense connections: every layer reads all earlier ones."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


class Dense(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(channels + i * growth), nn.ReLU(inplace=True)),
                nn.Conv2d(channels + i * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def test_dense_connections() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), Dense(8, 4, 4), nn.BatchNorm2d(24), nn.ReLU(inplace=True)),
        *(nn.Conv2d(24, 8, 1), nn.AvgPool2d(2, 2), Dense(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    keeps_promises(module, torch.randn(2, 3, 12, 12))
