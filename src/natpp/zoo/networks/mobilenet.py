"""MobileNetV2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018).

Parameter names match torchvision.
"""

from __future__ import annotations

from torch import Tensor, nn

from natpp.zoo.networks.weights import draw_weights

# Expansion, channels, blocks, stride: Table 2 of the paper.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(nn.Module):
    """Images (batch, 3, height, width) to logits.

    The small variant, for 32 x 32, has stride 1 in its first convolution and in the stage with 24 channels.
    """

    def __init__(self, classes: int, *, small: bool):
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 32, 3, stride=1 if small else 2)]
        channels_in = 32
        for expansion, channels, count, stride in STAGES:
            for index in range(count):
                first = 1 if small and channels == 24 else stride
                layers.append(InvertedResidual(channels_in, channels, first if index == 0 else 1, expansion))
                channels_in = channels
        layers.append(_conv(channels_in, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        logits: Tensor = self.classifier(self.flatten(self.avgpool(x)))
        return logits


class InvertedResidual(nn.Module):
    """1x1 conv to `expansion` times the channels, depthwise 3x3, linear 1x1; plus the input if the shape stays."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int):
        super().__init__()
        width = channels_in * expansion
        layers = [_conv(channels_in, width, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *layers,
            _conv(width, width, 3, stride=stride, groups=width),
            nn.Conv2d(width, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.adds_input = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds_input else out


def _conv(channels_in: int, channels_out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU6(inplace=True),
    )
