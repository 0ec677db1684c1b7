"""A U-Net: far skips by concatenation, transposed convolutions, interpolation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.fx.promises import keeps_promises


def double(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(3, 6), double(6, 8), double(8, 12)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.up2, self.up1 = double(16, 8), double(14, 6)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.up(self.bottom(self.pool(b)))
        b = self.up2(torch.cat([b, c], 1))
        b = F.interpolate(b, size=a.shape[2:], mode="bilinear", align_corners=False)
        return self.head(self.up1(torch.cat([a, b], 1)))


def test_u_net() -> None:
    keeps_promises(UNet(), torch.randn(2, 3, 16, 16))
