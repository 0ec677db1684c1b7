"""Modules that a rewritten module may use and torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FADE_RATE = 0.01  # of the remaining share, per training step


class FadeIn(nn.Module):
    """A shortcut that starts at zero and fades in during training; its share is a buffer."""

    share: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # in place, so that weight averages and CUDA graphs see the update
            with torch.no_grad():
                self.share += FADE_RATE * (1 - self.share)
            return x * self.share.clone()  # the share may be updated again before backward
        return x * self.share
