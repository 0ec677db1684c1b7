"""A function with a gradient of its own: its module stays whole, so that the gradient does."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.fx.traced import TraceError
from tests.fx.promises import keeps_promises, no_change_is_no_change


class Sign(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


sign = Sign.apply


class Binary(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(input=x, weight=sign(self.weight), bias=self.bias, padding=1)


class Plain(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(input=x, weight=self.weight, bias=self.bias, padding=1)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sign.apply(x)


X = torch.randn(2, 3, 6, 6)


def test_the_gradient_is_kept() -> None:
    module = nn.Sequential(Binary(3, 4, 3), nn.ReLU(), Plain(4, 4, 3)).eval()
    traced = no_change_is_no_change(module, X)
    assert "0 (Binary) is kept whole: Sign has a gradient of its own" in traced.notes[0]
    same = rewrite(traced)
    for one in (module, same):
        one(X).sum().backward()
    wanted = dict(module.named_parameters())
    assert all(torch.equal(parameter.grad, wanted[name].grad) for name, parameter in same.named_parameters())


def test_in_the_forward_itself_it_is_refused() -> None:
    with pytest.raises(TraceError, match=r"its own forward stops it \(Sign has a gradient of its own"):
        trace(Root(), X)
    assert torch.equal(Sign.apply(X), X.sign())


def test_a_functional_convolution_by_names_is_replaced() -> None:
    keeps_promises(nn.Sequential(Plain(3, 4, 3), nn.ReLU(), Plain(4, 4, 3)), X, seeds=2, deploys=False)
