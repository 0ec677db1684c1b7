"""Layers that are computed and then not used stay as they are."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(4, 8, 5, padding=2), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        self.last(x)
        return self.head(x)


def test_what_is_not_used() -> None:
    traced = keeps_promises(Unused(), torch.randn(2, 3, 6, 6), seeds=2, deploys=False)
    assert any(node.target == "last.0" for node in traced.graph.nodes)
