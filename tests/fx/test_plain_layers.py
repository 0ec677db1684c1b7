"""Functions of a module's own weights become plain layers that can be changed and fitted, with the same outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import natpp
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace

X = torch.randn(2, 3, 17, 17)


class Same(nn.Conv2d):
    """A convolution that pads as TensorFlow does."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.stride = [self.stride[0]] * 2  # type: ignore[assignment]
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(self.pad(x), self.weight, self.bias, self.stride, self.padding, self.dilation)


class Own(nn.Linear):
    """A linear layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, bias=self.bias)


class Scaled(nn.Conv2d):
    """A convolution of weights that are worked out."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight / self.weight.norm(), self.bias)


class Extra(nn.Conv2d):
    """A convolution with a further parameter, and a weight that something else reads."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.bias) * self.gain + self.weight.mean()


def network(middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first, last = Same(3, 8, 3, stride=2, bias=False), Own(16, 5)
    norm, pool = nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(first, norm, nn.ReLU6(), middle, nn.ReLU(), pool, nn.Flatten(), last).eval()


@pytest.mark.parametrize("middle", [nn.Conv2d, Scaled, Extra])
def test_a_function_of_own_weights_becomes_a_layer(middle: type[nn.Conv2d]) -> None:
    module = network(middle(8, 16, 1))
    traced = trace(module, X)
    made = rewrite(traced)
    assert type(made.get_submodule("0")) is nn.Conv2d
    assert type(made.get_submodule("7")) is nn.Linear
    assert (type(made.get_submodule("3")) is nn.Conv2d) == (middle is nn.Conv2d)
    assert made.state_dict().keys() == module.state_dict().keys()
    assert torch.equal(made(X), module(X))
    assert torch.equal(made.train()(X), module.train()(X))
    assert type(module[0]) is Same
    assert traced.parts["0"].weight is module[0].weight


def test_a_layer_that_is_called_twice_stays() -> None:
    twice = Same(8, 8, 3)
    module = network(nn.Sequential(twice, twice, nn.Conv2d(8, 16, 1)))
    made = rewrite(trace(module, X))
    assert not any(node.target == "3.0" for node in made.graph.nodes)
    assert torch.equal(made(X), module(X))


def test_its_channels_are_cut_and_fitted(tmp_path: Path) -> None:
    module = network(nn.Conv2d(8, 16, 1))
    batches = [torch.randn(32, 3, 17, 17) for _ in range(4)]
    task, only = natpp.Task.inputs(batches), natpp.Decisions(kinds=("width",))
    result = natpp.optimize(module, budget=0.6, example_input=X, task=task, decisions=only)
    assert result.cost_after.madds <= 0.6 * result.cost_before.madds
    assert any("fitted to what the original computes" in note for note in result.notes)
    restored = natpp.restore(result.save(tmp_path / "saved"), module)
    assert torch.equal(restored.eval()(X), result.module(X))
