"""The cost of any module, against counts worked out by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import natpp
from natpp.errors import NatppError
from natpp.nets.measure import PeakMemory


class Functional(nn.Module):
    """Convolution and linear layer as functions; weights shared between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.matrix = nn.Parameter(torch.randn(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, self.kernel, padding=1))
        x = F.conv2d(x, self.kernel, padding=1)
        return F.linear(x.mean((2, 3)), self.matrix)


class Attention(nn.Module):
    """Matrix products without a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x


class TwoInputs(nn.Module):
    """Two arguments, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 5), nn.Linear(4, 5, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": self.left(a) + self.right(b)}


FIVE = [
    (Functional(), torch.randn(1, 4, 8, 8), 4 * 4 * 9 + 40, 2 * 4 * 4 * 9 * 64 + 40),
    (nn.Conv2d(6, 9, 3, groups=3, stride=2), torch.randn(1, 6, 9, 9), 9 * 2 * 9 + 9, 9 * 2 * 9 * 16),
    (nn.ConvTranspose2d(4, 2, 2, stride=2, bias=False), torch.randn(1, 4, 5, 5), 4 * 2 * 4, 4 * 2 * 4 * 25),
    (Attention(), torch.randn(1, 7, 3), 0, 2 * 7 * 7 * 3),
    (TwoInputs(), (torch.randn(1, 3), torch.randn(1, 4)), 15 + 5 + 20, 15 + 20),
]


@pytest.mark.parametrize(("module", "example", "params", "madds"), FIVE)
def test_five_networks_by_hand(module: nn.Module, example: object, params: int, madds: int) -> None:
    found = natpp.cost(module, example_input=example)
    assert (found.params, found.madds) == (params, madds)
    assert (found.live_params, found.live_madds) == (params, madds)
    assert found.latency_ms is None
    with FlopCounterMode(display=False) as counter:
        module(*example) if isinstance(example, tuple) else module(example)
    assert 2 * found.madds == counter.get_total_flops()


@pytest.mark.parametrize(
    ("module", "example", "madds"),
    [
        # projections 4 * 32 * 32 and attention 2 * 10 * 32 a token, feed-forward 2 * 32 * 64: for 2 x 10 tokens
        (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(2, 10, 32), 20 * (4096 + 640 + 4096)),
        (nn.LSTM(8, 16), torch.randn(5, 1, 8), 5 * 4 * 16 * (8 + 16)),
    ],
)
def test_fused_layers_count_as_the_products_they_are(module: nn.Module, example: Tensor, madds: int) -> None:
    assert natpp.cost(module, example_input=example).madds == madds
    assert torch.backends.mha.get_fastpath_enabled()


def test_lazy_and_in_place_modules() -> None:
    example = -torch.ones(1, 3)
    found = natpp.cost(nn.Sequential(nn.ReLU(inplace=True), nn.LazyLinear(4)), example_input=example)
    assert found.params == 16
    assert torch.equal(example, -torch.ones(1, 3))


def test_named_inputs() -> None:
    found = natpp.cost(TwoInputs(), example_input={"b": torch.randn(1, 4), "a": torch.randn(1, 3)})
    assert found.madds == 35


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    natpp.cost(module, example_input=torch.randn(2, 3, 8, 8))
    assert [part.training for part in module] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_peak_memory_by_hand() -> None:
    """Input 4 KiB; ReLU gives 4 KiB more; the conv's 8 KiB stand beside it; then the ReLU's output is gone."""
    module = nn.Sequential(nn.ReLU(), nn.Conv2d(1, 2, 1, bias=False), nn.ReLU())
    found = natpp.cost(module, example_input=torch.randn(1, 1, 32, 32))
    assert found.peak_memory_bytes == 4096 + max(4096 + 8192, 8192 + 8192)


def test_views_and_in_place_operations_hold_nothing_new() -> None:
    x = torch.randn(4, 4)
    with PeakMemory(x) as memory:
        y = x.view(16)[2:]
        y.mul_(2)
        z = x + 1
        del z
    assert memory.peak == 2 * 64
    assert memory.current == 64


def test_latency_is_measured_on_demand() -> None:
    found = natpp.cost(nn.Conv2d(3, 4, 3), example_input=torch.randn(1, 3, 8, 8), latency=True)
    assert found.latency_ms is not None
    assert found.latency_ms > 0
    assert found.latency_spread_ms is not None
    assert found.latency_spread_ms >= 0
    arch = natpp.cost("darts", "cifar:channels=4,cells=2", latency=True)
    assert arch.latency_ms is not None
    assert arch.madds == natpp.cost("darts", "cifar:channels=4,cells=2").madds


def test_a_module_that_counts_its_calls_has_counted_none() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("none", None)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
            return self.layer(x)

    module = Counting()
    calls, mean = module.calls, module.mean
    natpp.cost(module, example_input=torch.ones(2, 3), latency=True)
    assert (module.calls is calls, module.mean is mean) == (True, True)
    assert (calls.item(), mean.tolist()) == (0.0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize(("kind", "passes"), [("plain", 1), ("caching", 2), ("attending", 2)])
def test_one_pass_counts_everything_where_it_can(kind: str, passes: int) -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.passes, self.cache = 0, None

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            if kind == "caching":
                self.cache = torch.arange(256.0)
            return F.scaled_dot_product_attention(x, x, x) if kind == "attending" else x @ x

    module = Counted()
    found = natpp.cost(module, example_input=torch.randn(1, 2, 8, 8))
    assert module.passes == passes
    assert found.madds == (2 if kind == "attending" else 1) * 2 * 8**3


def test_a_network_too_large_to_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise RuntimeError("not enough memory\nstack")

    monkeypatch.setattr("natpp.nets.network.with_latency", too_large)
    with pytest.raises(NatppError, match=r"cannot time the network on this device: not enough memory\. Lower channels"):
        natpp.cost("darts", "cifar:channels=2,cells=1", latency=True)


@pytest.mark.parametrize(
    ("of", "options", "words"),
    [
        (nn.Linear(3, 4), {}, "needs an example input"),
        (nn.Linear(3, 4), {"example_input": torch.randn(1, 5)}, "Linear does not run on the example input"),
        (3, {"example_input": torch.randn(1, 5)}, "expected an architecture or a torch.nn.Module"),
        (
            nn.Linear(3, 4),
            {"setting": "imagenet", "example_input": torch.randn(1, 3)},
            "only be given with an architecture",
        ),
    ],
)
def test_bad_modules_are_refused(of: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(NatppError) as caught:
        natpp.cost(of, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
