"""ShuffleNet v1 of Zhang et al., "ShuffleNet: An Extremely Efficient CNN for Mobile Devices" (2017)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from natpp.zoo.networks.weights import draw_weights

STEM_CHANNELS = 24
STAGE_2_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}  # by number of groups; doubled in each further stage


class ShuffleNet(nn.Module):
    """Images (batch, 3, height, width) to logits.

    The small variant, for 32 x 32, has no stride or pooling before its third stage.
    """

    def __init__(self, classes: int, *, groups: int, small: bool):
        super().__init__()
        channels = STAGE_2_CHANNELS[groups]
        self.stem = _stem(small)
        self.stage2 = _stage(STEM_CHANNELS, channels, 4, 1 if small else 2, groups)
        self.stage3 = _stage(channels, 2 * channels, 8, 2, groups)
        self.stage4 = _stage(2 * channels, 4 * channels, 4, 2, groups)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(4 * channels, classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage4(self.stage3(self.stage2(self.stem(x))))
        logits: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


class ShuffleUnit(nn.Module):
    """Grouped 1x1 conv, channel shuffle, depthwise 3x3, grouped 1x1, plus the input."""

    def __init__(self, channels: int, groups: int):
        super().__init__()
        self.branch = _branch(channels, channels // 4, channels, 1, groups, groups)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(x + self.branch(x))
        return out


class WideningUnit(nn.Module):
    """The first unit of a stage: its branch makes the additional channels; the input is pooled (3x3) at stride 2."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, first_groups: int, groups: int):
        super().__init__()
        new = channels_out - channels_in
        self.branch = _branch(channels_in, channels_out // 4, new, stride, first_groups, groups)
        self.shortcut = nn.AvgPool2d(3, stride=stride, padding=1) if stride != 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(torch.cat([self.shortcut(x), self.branch(x)], dim=1))
        return out


class ChannelShuffle(nn.Module):
    """Reorders channels: the first of each group, then the second of each group, and so on."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)


def _stem(small: bool) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(3, STEM_CHANNELS, 3, stride=1 if small else 2, padding=1, bias=False),
        bn=nn.BatchNorm2d(STEM_CHANNELS),
        relu=nn.ReLU(inplace=True),
    )
    if not small:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(layers)


def _branch(
    channels_in: int, width: int, channels_out: int, stride: int, first_groups: int, groups: int
) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels_in, width, 1, groups=first_groups, bias=False),
            bn1=nn.BatchNorm2d(width),
            relu=nn.ReLU(inplace=True),
            shuffle=ChannelShuffle(groups),
            conv2=nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=width, bias=False),
            bn2=nn.BatchNorm2d(width),
            conv3=nn.Conv2d(width, channels_out, 1, groups=groups, bias=False),
            bn3=nn.BatchNorm2d(channels_out),
        )
    )


def _stage(channels_in: int, channels_out: int, count: int, stride: int, groups: int) -> nn.Sequential:
    first_groups = 1 if channels_in == STEM_CHANNELS else groups
    first = WideningUnit(channels_in, channels_out, stride, first_groups, groups)
    return nn.Sequential(first, *(ShuffleUnit(channels_out, groups) for _ in range(count - 1)))
