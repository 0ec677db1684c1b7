"""Numbers worked out from shapes and types: roots, quotients, the limits of a type."""

import math

import pytest
import torch
from torch import Tensor, nn

from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from tests.fx.promises import keeps_promises


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x).flatten(2).transpose(1, 2)
        side = int(math.sqrt(tokens.shape[1]))
        other = round(tokens.shape[1] / side)
        weights = (tokens @ tokens.transpose(1, 2)) * float(tokens.shape[2]) ** -0.5
        mask = torch.ones_like(weights).tril() == 0
        weights = weights.masked_fill(mask, torch.finfo(weights.dtype).min)
        mixed = weights.softmax(-1) @ self.mix(tokens)
        maps = mixed.transpose(1, 2).reshape(len(x), -1, side, other)
        return self.second(maps)


def test_numbers() -> None:
    keeps_promises(Tokens(), torch.randn(2, 3, 4, 4), seeds=2, deploys=False)


def test_a_number_that_shaped_the_result_is_checked() -> None:
    same = rewrite(trace(Tokens(), torch.randn(2, 3, 4, 4)))
    with pytest.raises(AssertionError, match=r"traced with a size of 4\.0 here"):
        same(torch.randn(2, 3, 5, 5))
