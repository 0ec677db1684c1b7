"""Detection heads: parts that read the data of a tensor."""

import torch
from torch import Tensor, nn

from natpp.fx.trace import trace
from natpp.subjects.module import Module

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


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
