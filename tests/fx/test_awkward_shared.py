"""Shared weights: a module called twice, and two modules with one tensor."""

import torch
from torch import Tensor, nn

from natpp.fx.sites import Site, find_items
from tests.fx.promises import keeps_promises


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.tied_a = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.tied_b = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.tied_b.weight = self.tied_a.weight
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.last(self.tied_b(torch.relu(self.tied_a(x))))


def test_shared_weights_stay_and_stay_shared() -> None:
    module = Shared()
    traced = keeps_promises(module, torch.randn(2, 3, 8, 8))
    assert {item.name for item in find_items(traced) if isinstance(item, Site)} == {"first", "last"}
    from natpp.fx.rewrite import rewrite

    copied = rewrite(traced)
    assert copied.tied_a.weight is copied.tied_b.weight


def test_a_part_under_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = nn.PReLU()
            self.first = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 3, padding=1), "gate": nn.Linear(3, 3)})
            self.second = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 3, padding=1), "gate": self.first["gate"]})
            self.second["activation"] = self.activation

        def forward(self, x: Tensor) -> Tensor:
            for part in (self.first, self.second):
                x = part["conv"](x)
                x = x * part["gate"](x.mean((2, 3)))[:, :, None, None]
            return self.second["activation"](x)

    keeps_promises(Twice(), torch.randn(2, 3, 6, 6), seeds=2, deploys=False)
