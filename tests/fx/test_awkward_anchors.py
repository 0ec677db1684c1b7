"""Detection heads: anchors that are computed at the first call and kept, and parts that read data."""

import torch
from torch import Tensor, nn

import natpp
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.subjects.module import Module

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Detect(nn.Module):
    """A head that computes its anchors when the size of its input changes, from a stride in a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.box = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.stride = torch.tensor([2.0, 4.0])
        self.shape: torch.Size | None = None
        self.anchors = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        found = self.box(x).flatten(2)
        if self.shape != x.shape:
            height, width = x.shape[2:]
            self.anchors = x.new_full((height * width,), self.stride[0], dtype=x.dtype)
            self.shape = x.shape
        return found * self.anchors


def detector() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), Detect()).eval()


def test_a_fresh_module_is_answered_as_one_that_ran_before() -> None:
    fresh, ran = detector(), detector()
    assert torch.equal(rewrite(trace(fresh, X))(X), ran(X))
    first, second = (natpp.optimize(one, budget=0.5, example_input=X) for one in (fresh, ran))
    assert first.cost_after == second.cost_after
    assert first.changes == second.changes
    assert torch.equal(first.module(X), second.module(X))
    larger = torch.randn(1, 3, 24, 24)
    assert first.module(larger).shape == (1, 4, 144)


class Counted(nn.Module):
    """A part that is kept whole since it reads the data of a tensor after a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x if x.mean().item() > 0 else -x


def test_what_runs_again_to_read_data_is_counted_once() -> None:
    traced = trace(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Counted(), nn.Conv2d(8, 8, 3, padding=1)).eval(), X)
    assert traced.notes[0].startswith("1 (Counted) is kept whole")
    module = Module(traced)
    module.apply((0,) * len(module.decisions))  # it asserts that what is counted is what is built
