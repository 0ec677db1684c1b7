"""Networks that compute embeddings of face images, 112 x 112 pixels.

LResNet34E-IR of Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", first version (2018);
MobileFaceNet of Chen et al., "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile
Devices" (2018).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from natpp.zoo.networks.resnet import projection
from natpp.zoo.networks.weights import draw_weights


class LResNetEIR(nn.Module):
    """Faces (batch, 3, 112, 112) to embeddings.

    The letters are the paper's. L: the first convolution is 3x3 with stride 1, without pooling. E: the output is batch
    norm, dropout, linear, batch norm. IR: the improved residual block. Each stage halves the size.
    """

    def __init__(self, embedding: int, *, depths: Sequence[int]):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        self.layer1 = _stage(64, 64, depths[0])
        self.layer2 = _stage(64, 128, depths[1])
        self.layer3 = _stage(128, 256, depths[2])
        self.layer4 = _stage(256, 512, depths[3])
        self.bn2 = nn.BatchNorm2d(512)
        self.dropout = nn.Dropout(0.4)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(512 * 7 * 7, embedding)
        self.bn3 = nn.BatchNorm1d(embedding)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (batch, 512, 7, 7)
        embedding: Tensor = self.bn3(self.fc(self.flatten(self.dropout(self.bn2(x)))))
        return embedding


class ImprovedBlock(nn.Module):
    """Batch norm, 3x3 conv, batch norm, PReLU, 3x3 conv with the stride, batch norm; plus a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.prelu = nn.PReLU(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.downsample = projection(channels_in, channels_out, stride) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        x = self.bn3(self.conv2(x))
        return x + shortcut


class MobileFaceNet(nn.Module):
    """Faces (batch, 3, 112, 112) to embeddings, the last features pooled by a 7x7 conv; Table 1 of the paper."""

    def __init__(self, embedding: int):
        super().__init__()
        self.conv1 = _conv(3, 64, 3, stride=2)
        self.conv2 = _conv(64, 64, 3, groups=64)
        self.stage1 = _bottlenecks(64, 64, 5, 2, 2)
        self.stage2 = _bottlenecks(64, 128, 1, 2, 4)
        self.stage3 = _bottlenecks(128, 128, 6, 1, 2)
        self.stage4 = _bottlenecks(128, 128, 1, 2, 4)
        self.stage5 = _bottlenecks(128, 128, 2, 1, 2)
        self.conv3 = _conv(128, 512, 1)
        self.depthwise = nn.Conv2d(512, 512, 7, groups=512, bias=False)
        self.depthwise_bn = nn.BatchNorm2d(512)
        self.linear = nn.Conv2d(512, embedding, 1, bias=False)
        self.linear_bn = nn.BatchNorm2d(embedding)
        self.flatten = nn.Flatten()
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x))
        x = self.stage5(self.stage4(self.stage3(self.stage2(self.stage1(x)))))  # (batch, 128, 7, 7)
        x = self.depthwise_bn(self.depthwise(self.conv3(x)))  # (batch, 512, 1, 1)
        embedding: Tensor = self.flatten(self.linear_bn(self.linear(x)))
        return embedding


class FaceBottleneck(nn.Module):
    """1x1 conv to `expansion` times the channels, depthwise 3x3, linear 1x1; plus the input if the shape stays."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int):
        super().__init__()
        width = channels_in * expansion
        self.expand = _conv(channels_in, width, 1)
        self.depthwise = _conv(width, width, 3, stride=stride, groups=width)
        self.project = nn.Conv2d(width, channels_out, 1, bias=False)
        self.project_bn = nn.BatchNorm2d(channels_out)
        self.adds_input = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project_bn(self.project(self.depthwise(self.expand(x))))
        return x + out if self.adds_input else out


def _stage(channels_in: int, channels_out: int, count: int) -> nn.Sequential:
    first = ImprovedBlock(channels_in, channels_out, 2)
    return nn.Sequential(first, *(ImprovedBlock(channels_out, channels_out, 1) for _ in range(count - 1)))


def _bottlenecks(channels_in: int, channels_out: int, count: int, stride: int, expansion: int) -> nn.Sequential:
    first = FaceBottleneck(channels_in, channels_out, stride, expansion)
    return nn.Sequential(first, *(FaceBottleneck(channels_out, channels_out, 1, expansion) for _ in range(count - 1)))


def _conv(channels_in: int, channels_out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
            bn=nn.BatchNorm2d(channels_out),
            prelu=nn.PReLU(channels_out),
        )
    )
