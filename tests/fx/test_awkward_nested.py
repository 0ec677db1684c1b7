"""Sequentials inside Sequentials, with identities between."""

import torch
from torch import nn

from tests.fx.promises import keeps_promises


def test_nested_sequentials() -> None:
    def unit(channels: int, width: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(
            nn.Sequential(
                nn.Conv2d(channels, width, 3, stride, 1), nn.Identity(), nn.Sequential(nn.BatchNorm2d(width))
            ),
            nn.Sequential(nn.Sequential(nn.ReLU(inplace=True)), nn.Dropout2d(0.1)),
        )

    module = nn.Sequential(
        nn.Sequential(nn.Sequential(unit(3, 8), unit(8, 8)), nn.Sequential(unit(8, 12, 2), unit(12, 12))),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Sequential(nn.Flatten(), nn.Linear(12, 2))),
    )
    traced = keeps_promises(module, torch.randn(2, 3, 9, 9))
    names = set(dict(module.named_parameters()))
    from natpp.fx.rewrite import rewrite

    assert set(dict(rewrite(traced).named_parameters())) == names  # names are stable
