"""Functional style: parameters and calls, dropout and batch norm with the module's own `training`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natpp.fx.sites import Site, find_items
from tests.fx.promises import keeps_promises


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)
        self.weight2 = nn.Parameter(torch.randn(8, 8, 5, 5) / 14)
        self.bias2 = nn.Parameter(torch.randn(8))
        self.scale, self.shift = nn.Parameter(torch.rand(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.register_buffer("unsaved", torch.ones(1, 8, 1, 1), persistent=False)
        self.head = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.weight1, None, 1, 1)
        x = F.batch_norm(x, self.mean, self.var, self.scale, self.shift, training=self.training)
        x = F.max_pool2d(F.relu(x), 3, stride=2, padding=1)
        x = F.relu(F.conv2d(x, self.weight2, bias=self.bias2, padding=2)) * self.unsaved
        x = F.dropout(x, 0.5, self.training)
        x = F.avg_pool2d(x, 3, 1, 1)
        return F.linear(x.mean((2, 3)), self.head)


def test_functional_style() -> None:
    traced = keeps_promises(Functional(), torch.randn(4, 3, 8, 8))
    ops = [item.op for item in find_items(traced) if isinstance(item, Site)]
    assert ops == ["conv_3x3", "max_pool_3x3", "conv_5x5", "avg_pool_3x3"]


def test_modes_still_mean_what_they_meant() -> None:
    from natpp.fx.rewrite import rewrite
    from natpp.fx.trace import trace

    module = Functional().eval()
    same = rewrite(trace(module, torch.randn(4, 3, 8, 8)))
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(same(x), same(x))
    same.train()
    assert not torch.equal(same(x), same(x))  # dropout is on
    assert not torch.equal(same.mean, module.mean)  # and the statistics follow
