"""Parts that a rewritten module may have and that torch does not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FADE_RATE = 0.01  # of what is missing, each step of training


class FadeIn(nn.Module):
    """A shortcut that is nothing at first and comes in while the network trains; its share is a buffer."""

    share: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # in its place, where averages and captured steps look for it
            with torch.no_grad():
                self.share += FADE_RATE * (1 - self.share)
            return x * self.share.clone()  # it may come in further before the gradient is taken
        return x * self.share
