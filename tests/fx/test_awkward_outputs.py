"""A dict of outputs, one of them a tuple, from several depths of the network."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.boxes, self.classes = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, object]:
        low = self.stem(x)
        middle = self.body(low) + low
        high = self.down(middle)
        return {"features": (low, middle), "boxes": self.boxes(high), "classes": self.classes(high).flatten(2)}


def test_dict_of_outputs() -> None:
    keeps_promises(Heads(), torch.randn(2, 3, 10, 10))
