"""Passes that compute nothing cost what full passes do, and are full where shapes may depend on data."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import natpp
from natpp.nets.measure import module_cost
from natpp.nets.seen import Seen

X = torch.randn(2, 3, 16, 16)


class Ran(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the convolutions that are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


class Masked(nn.Module):
    """The shape of its output depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x[x > 0]


class Asking(Masked):
    """A number that it computes decides what it does."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.conv(x[:, :3]) if float(x.abs().sum()) >= 0 else x


class Picking(Masked):
    """It picks channels by indices that it computes."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x[:, x.mean((0, 2, 3)).topk(2).indices]


class Inverting(Masked):
    """It inverts a matrix that it computes, which must be positive definite."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(2)
        return torch.linalg.cholesky(x @ x.transpose(1, 2) + torch.eye(4)) @ x


class Looking(Masked):
    """It picks channels by indices that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([2, 0]))

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x)[:, self.get_buffer("places").view(-1)], 2)


def costs(module: nn.Module, x: Tensor) -> tuple[Any, list[Any], list[int]]:
    seen, found, ran = Seen(), [], []
    for _ in range(2):
        with Ran() as mode:
            found.append(module_cost(module, x, seen=seen))
        ran.append(mode.count)
    return module_cost(module, x), found, ran


@pytest.mark.parametrize("name", ["resnet20", "shufflenet", "mobilenetv2"])
def test_a_second_pass_of_a_network_computes_no_convolution(name: str) -> None:
    module = natpp.zoo.network(name).eval()
    x = torch.randn(1, *natpp.registry.MODELS[name].input_shape)
    own, found, ran = costs(module, x)
    assert found == [own, own]
    assert ran[0] > 0 == ran[1]


def test_indices_that_a_module_holds_are_known() -> None:
    own, found, ran = costs(Looking(), X)
    assert found == [own, own]
    assert ran == [1, 0]


@pytest.mark.parametrize("make", [Masked, Asking, Picking, Inverting])
def test_where_shapes_may_depend_on_data_every_pass_is_full(make: type[nn.Module]) -> None:
    own, found, ran = costs(make(), X)
    assert found == [own, own]
    assert ran[0] == ran[1] > 0


def test_a_layer_that_makes_nothing_beside_its_output_costs_the_same() -> None:
    own, found, _ = costs(nn.LSTM(16, 6, batch_first=True, bidirectional=True), torch.randn(2, 5, 16))
    assert found == [own, own]


def test_another_module_computes_only_what_is_new() -> None:
    seen = Seen()
    module_cost(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), X, seen=seen)
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3))
    with Ran() as mode:
        found = module_cost(other, X, seen=seen)
    assert found == module_cost(other, X)
    assert mode.count == 1


def test_a_pass_that_fails_is_not_a_full_one() -> None:
    seen = Seen()
    with pytest.raises(natpp.NatppError):
        module_cost(nn.Conv2d(5, 4, 3), X, seen=seen)
    assert not seen.full
