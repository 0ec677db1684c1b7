"""VGG16 of Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014).

Thirteen 3x3 convolutions and three linear layers, configuration D. Parameter names match torchvision.
"""

from __future__ import annotations

from torch import Tensor, nn

from natpp.zoo.networks.weights import draw_weights

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions; each stage ends with pooling


class VGG16(nn.Module):
    """Images (batch, 3, height, width) to logits, from features pooled to `pooled` x `pooled`.

    `hidden` is the width of the two hidden linear layers. With batch norm, convolutions have no bias.
    """

    def __init__(self, classes: int, *, pooled: int, hidden: int, batch_norm: bool):
        super().__init__()
        self.features = _features(batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(512 * pooled * pooled, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))  # (batch, 512, pooled, pooled)
        logits: Tensor = self.classifier(self.flatten(x))
        return logits


def _features(batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels_in = 3
    for channels, count in STAGES:
        for _ in range(count):
            layers.append(nn.Conv2d(channels_in, channels, 3, padding=1, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU(inplace=True))
            channels_in = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)
