"""Weight initialization of He et al."""

from __future__ import annotations

from torch import nn


def draw_weights(network: nn.Module) -> None:
    """Initialize in place: He normal (fan-in) for convolutions, deviation 0.01 for linear layers, zero biases."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.01)
        if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
