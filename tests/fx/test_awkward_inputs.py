"""Two inputs, one of them optional, by position and by name."""

import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from tests.fx.promises import keeps_promises, outputs


class TwoStreams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.depth = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.mix = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, image: Tensor, depth: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        out = self.mix(torch.relu(self.image(image) + self.depth(depth)))
        if mask is not None:
            out = out * mask
        return out.mean((2, 3)) * scale


def test_two_inputs() -> None:
    images, depths = torch.randn(2, 3, 8, 8), torch.randn(2, 1, 8, 8)
    keeps_promises(TwoStreams(), (images, depths))
    keeps_promises(
        TwoStreams(), {"image": images, "depth": depths, "mask": torch.ones(2, 1, 8, 8)}, seeds=2, deploys=False
    )


def test_what_was_not_given_is_refused_later() -> None:
    images, depths = torch.randn(2, 3, 8, 8), torch.randn(2, 1, 8, 8)
    module = TwoStreams().eval()
    same = rewrite(trace(module, (images, depths)))
    assert torch.equal(outputs(same, {"image": images, "depth": depths})[0][0], module(images, depths))
    with pytest.raises(AssertionError, match="mask was None"):
        same(images, depths, mask=torch.ones(2, 1, 8, 8))


def test_an_example_that_does_not_fit_is_refused() -> None:
    with pytest.raises(natpp.NatppError, match="depth"):
        natpp.optimize(TwoStreams(), budget="strict", example_input=torch.randn(2, 3, 8, 8))
