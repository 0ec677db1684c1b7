"""Networks that tests trace, written the way people write them."""

import torch
from torch import Tensor, nn

from natpp.zoo.networks.shufflenet import ShuffleUnit, WideningUnit


class VGG(nn.Module):
    """Convs in one flat Sequential, max pools of 2x2 between."""

    def __init__(self, widths: tuple = (8, 8, "M", 16, 16, "M"), classes: int = 5, norm: bool = True):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            if width == "M":
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(channels, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels: int, planes: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or channels != planes:
            self.downsample = nn.Sequential(nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels: int, planes: int, stride: int = 1):
        super().__init__()
        wide = planes * 4
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != wide:
            self.downsample = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """With the stem of ImageNet (7x7 and pool) or of CIFAR (3x3)."""

    def __init__(self, block: type, depths: tuple[int, ...], width: int = 8, classes: int = 5, imagenet: bool = False):
        super().__init__()
        self.imagenet = imagenet
        if imagenet:
            self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        channels = width
        self.stages = len(depths)
        for stage, depth in enumerate(depths):
            planes = width * 2**stage
            blocks = []
            for index in range(depth):
                blocks.append(block(channels, planes, 2 if stage and not index else 1))
                channels = planes * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        if self.imagenet:
            x = self.maxpool(x)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class ConvNormAct(nn.Sequential):
    def __init__(self, channels: int, width: int, kernel: int = 3, stride: int = 1, groups: int = 1):
        super().__init__(
            nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, width: int, stride: int, expand: int):
        super().__init__()
        hidden = channels * expand
        layers: list[nn.Module] = [] if expand == 1 else [ConvNormAct(channels, hidden, 1)]
        layers += [
            ConvNormAct(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        ]
        self.conv = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(nn.Module):
    def __init__(self, rows: tuple = MOBILE, stem: int = 32, last: int = 1280, classes: int = 5, stride: int = 2):
        super().__init__()
        features: list[nn.Module] = [ConvNormAct(3, stem, 3, stride)]
        channels = stem
        for expand, width, count, step in rows:
            for index in range(count):
                features.append(InvertedResidual(channels, width, step if index == 0 else 1, expand))
                channels = width
        features.append(ConvNormAct(channels, last, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


def small_vgg() -> nn.Module:
    return VGG((8, 8, "M", 12, 12, 12, "M"))


def small_resnet() -> nn.Module:
    return ResNet(BasicBlock, (3, 3))


def small_bottleneck() -> nn.Module:
    return ResNet(Bottleneck, (3, 2), width=4)


def small_mobilenet() -> nn.Module:
    return MobileNetV2(((1, 8, 1, 1), (3, 12, 3, 1), (3, 16, 3, 2)), stem=8, last=24, stride=1)


def small_shuffle() -> nn.Module:
    units = [WideningUnit(9, 24, 2, 1, 3), *(ShuffleUnit(24, 3) for _ in range(4))]
    return nn.Sequential(ConvNormAct(3, 9), *units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))


SMALL = {
    "vgg": small_vgg,
    "resnet": small_resnet,
    "bottleneck": small_bottleneck,
    "mobilenet": small_mobilenet,
    "shuffle": small_shuffle,
}
