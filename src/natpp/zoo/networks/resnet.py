"""ResNets of He et al., "Deep Residual Learning for Image Recognition" (2015), for CIFAR and for ImageNet.

Parameter names match torchvision; as there, the stride of a bottleneck is in its 3x3 convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from natpp.zoo.networks.weights import draw_weights


class ResNet(nn.Module):
    """Images (batch, 3, height, width) to logits, for 224 x 224: 7x7 stem with pooling, four stages."""

    def __init__(self, classes: int, *, depths: Sequence[int], bottleneck: bool):
        super().__init__()
        block = Bottleneck if bottleneck else BasicBlock
        widths = tuple(width * 4 if bottleneck else width for width in (64, 128, 256, 512))
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, widths[0], depths[0], 1, projection)
        self.layer2 = _stage(block, widths[0], widths[1], depths[1], 2, projection)
        self.layer3 = _stage(block, widths[1], widths[2], depths[2], 2, projection)
        self.layer4 = _stage(block, widths[2], widths[3], depths[3], 2, projection)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(widths[3], classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


class CifarResNet(nn.Module):
    """Images (batch, 3, height, width) to logits, for 32 x 32: three stages with 16, 32 and 64 channels.

    `depth` is 6 n + 2, with n basic blocks per stage. Where the size is halved, the shortcut is the paper's option A:
    every second pixel, with zeros for the new channels.
    """

    def __init__(self, classes: int, *, depth: int):
        super().__init__()
        count = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(BasicBlock, 16, 16, count, 1, PaddedShortcut)
        self.layer2 = _stage(BasicBlock, 16, 32, count, 2, PaddedShortcut)
        self.layer3 = _stage(BasicBlock, 32, 64, count, 2, PaddedShortcut)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(64, classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.downsample = downsample
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        out: Tensor = self.relu2(x + shortcut)
        return out


class Bottleneck(nn.Module):
    """1x1 conv to a quarter of the channels, 3x3, 1x1 back, with a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        width = channels_out // 4
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.downsample = downsample
        self.relu3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        out: Tensor = self.relu3(x + shortcut)
        return out


class PaddedShortcut(nn.Module):
    """The paper's option A: every `stride`-th pixel, padded with zero channels on both sides; has no parameters."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        before = (channels_out - channels_in) // 2
        self.stride = stride
        self.padding = (0, 0, 0, 0, before, channels_out - channels_in - before)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


def projection(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    """The paper's option B, a learned shortcut: 1x1 convolution and batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
    )


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    channels_in: int,
    channels_out: int,
    count: int,
    stride: int,
    downsample: Callable[[int, int, int], nn.Module],
) -> nn.Sequential:
    changes = stride != 1 or channels_in != channels_out
    first = block(channels_in, channels_out, stride, downsample(channels_in, channels_out, stride) if changes else None)
    return nn.Sequential(first, *(block(channels_out, channels_out, 1, None) for _ in range(count - 1)))
