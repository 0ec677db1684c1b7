"""What is counted is what is built, to the digit, for networks of every kind under any plan."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from natpp.arch.decisions import Decisions
from natpp.fx.trace import trace
from natpp.registry import MODELS
from natpp.subjects.module import Module
from tests.fx.fx_models import SMALL
from tests.fx.promises import counted_is_built, random_plan

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Convs(nn.Module):
    """Four convolutions to build odd networks from."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(width, 4, 3, padding=1) for width in (3, 4, 4, 4))


class Unread(Convs):
    """A layer that nothing reads: it stays as it is."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(torch.relu(self.a(x)))
        self.c(x)
        return self.d(x)


class Checked(Convs):
    """Layers one behind the other that only a check of a shape reads: they stay, too."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.linear = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(torch.relu(self.a(x)))
        y = self.e(self.c(x))
        z = self.linear(y.flip(1))
        assert y.shape[1] == z.shape[1] == 4
        return self.d(x)


class Frames(Convs):
    """What sites see is a larger batch than the example's."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None].repeat(1, 3, 1, 1, 1)
        return self.b(torch.relu(self.a(x.flatten(0, 1)))).unflatten(0, (-1, 3)).mean(1)


class Product(Convs):
    """A product outside of blocks in a branch where nothing else is learned: it goes with the branch."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.b(x)
        return torch.relu(x + self.c(y @ y.transpose(-1, -2)))


class Aside(nn.Conv2d):
    """A convolution with a parameter that it does not use."""

    def __init__(self, wide: int, narrow: int):
        super().__init__(wide, narrow, 3, padding=1)
        self.unused = nn.Parameter(torch.ones(7))


class Tied(Convs):
    """Two functional convolutions with one weight; it stays as long as one of them does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.a, self.act = Aside(3, 4), nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = F.conv2d(x, self.weight, padding=1) + F.conv2d(self.b(x), self.weight, padding=1)
        return self.act(x + self.c(y))


class InPlace(Convs):
    """A step that changes a value and whose own result nothing reads."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.b(x)
        torch.relu_(y)
        return torch.relu(x + self.c(y))


class TwoOutputs(Convs):
    """A block with two outputs, of which one can lose all that reads it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x)
        y = self.b(x)
        return torch.relu(x + self.c(y)) + self.d(y.flip(1)), y


def weight_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1),
        parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1)),
        nn.Conv2d(4, 4, 3, padding=1),
    )


ODD = (Unread, Checked, Frames, Product, Tied, InPlace, TwoOutputs, weight_norm)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("make", [*ODD, *SMALL.values()])
def test_what_is_counted_is_what_is_built(make: type[nn.Module], share: bool) -> None:
    traced = trace(make().eval(), X)
    for rule in ("nat++", "cost"):
        counted_is_built(traced, plans=6, share=share, rule=rule)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if max(model.input_shape) < 64])
def test_the_zoo_costs_what_is_counted(name: str) -> None:
    model = MODELS[name]
    counted_is_built(trace(model.build().eval(), torch.randn(1, *model.input_shape)), plans=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if max(model.input_shape) >= 64])
def test_large_networks_of_the_zoo_cost_what_is_counted(name: str) -> None:
    model = MODELS[name]
    counted_is_built(trace(model.build().eval(), torch.randn(1, *model.input_shape)), plans=2)


@functools.cache
def small(name: str, share: bool) -> Module:
    return Module(trace(SMALL[name]().eval(), X), Decisions(rule="cost", share_blocks=share, strict=False))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(SMALL)), st.booleans(), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_any_plan_costs_what_is_counted(name: str, share: bool, seed: int, changed: float) -> None:
    module = small(name, share)
    plan = random_plan(module, np.random.default_rng(seed), changed)
    _, cost = module.built(plan)
    tally = module.tally.at(plan)
    assert (*tally.cost[:2], tally.missing) == (cost.params, cost.madds, 0)
    assert module.plan(module.row(plan)) == plan
