"""Grouped and dilated convolutions."""

import torch
from promises import keeps_promises
from torch import nn

from natpp.fx.sites import Site, find_items


def test_grouped_stay_and_dilated_are_sites() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv2d(8, 8, 1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.BatchNorm2d(8)),
        *(nn.Conv2d(8, 4, 7, padding=3), nn.Conv2d(4, 4, 3, stride=3), nn.Conv2d(4, 4, 3)),
    )
    traced = keeps_promises(module, torch.randn(2, 3, 16, 16))
    ops = {item.name: item.op for item in find_items(traced) if isinstance(item, Site)}
    assert ops == {"0": "conv_3x3", "4": "conv_3x3", "6": "dil_conv_3x3", "9": "sep_conv_5x5"}
