"""Kernels against float64: on a GPU (marker gpu), and on a CPU under Triton's interpreter, in a process of its own.

Without either, the same tests are of what is composed of torch's operations.
"""

import copy
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import natpp
from natpp import kernels
from natpp.arch.layers import BatchNorm, Conv, Pool, ReLU, build_chain
from natpp.arch.modules import AvgPool2d, BatchNorm2d, MaxPool2d
from natpp.errors import SettingError
from natpp.kernels import reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # relative, and of the largest
both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
rounds_between = pytest.mark.skipif(not INTERPRETED, reason="torch's kernels for CPUs also round what is between")


GPU = [pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in TOLERANCE]
HALF = [pytest.param("cpu", dtype, marks=rounds_between) for dtype in (torch.bfloat16, torch.float16)]
everywhere = pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), *GPU])
in_half = pytest.mark.parametrize(("device", "dtype"), HALF)  # on a CPU; a GPU has all types of numbers everywhere


def images(
    shape: Sequence[int], device: str, dtype: torch.dtype = torch.float32, *, mean: float = 0.0, seed: int = 0
) -> Tensor:
    """Normal numbers in channels-last memory, drawn on the CPU so that all devices see the same."""
    drawn = mean + torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(device, dtype, memory_format=torch.channels_last)


def assert_near(found: Tensor, exact: Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    found, exact = found.detach(), exact.detach()
    largest = float(exact.abs().max())
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * max(largest, 0.1) / 4)


def takes(device: str) -> bool:
    """Whether the kernels must be what is tested here."""
    return device == "cuda" or INTERPRETED


def compare_batch_norm(
    x: Tensor, groups: int, *, weighted: bool = True, biased: bool = True, tolerance: float | None = None
) -> None:
    """Values, statistics and gradients, those of float64."""
    assert kernels.fast(x) == takes(x.device.type)
    tolerance = TOLERANCE[x.dtype] if tolerance is None else tolerance
    channels = x.shape[1]
    weight = torch.linspace(0.5, 2, channels, device=x.device).requires_grad_() if weighted else None
    bias = torch.linspace(-1, 1, channels, device=x.device).requires_grad_() if biased else None
    dy = images(x.shape, x.device.type, x.dtype, mean=0.3, seed=1)
    inputs = [x.detach().requires_grad_(), weight, bias]
    y, mean, var = kernels.batch_norm(*inputs, eps=1e-5, groups=groups)
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert mean.dtype == var.dtype == torch.float32
    assert not mean.requires_grad
    given = [one for one in inputs if one is not None]
    gradients = torch.autograd.grad(y, given, dy)
    exact_inputs = [None if one is None else one.detach().double().requires_grad_() for one in inputs]
    exact_y, exact_mean, exact_var = reference.batch_norm(*exact_inputs, eps=1e-5, groups=groups)
    exact_gradients = torch.autograd.grad(exact_y, [one for one in exact_inputs if one is not None], dy.double())
    assert_near(y, exact_y, tolerance)
    assert_near(mean, exact_mean, 1e-5)
    assert_near(var, exact_var, 1e-4)
    for found, exact, given_one in zip(gradients, exact_gradients, given, strict=True):
        assert found.dtype == given_one.dtype
        assert_near(found, exact, tolerance)


@everywhere
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((6, 32, 5, 7), 3),
        ((3, 36, 7, 5), 1),  # neither width of a tile divides it
        ((4, 1, 3, 3), 2),
        ((2, 3, 33, 31), 1),
        ((3, 130, 2, 1), 1),
        ((2, 544, 2, 2), 1),
        ((8, 7, 1, 1), 2),
        ((20, 16, 16, 16), 5),
        ((3, 16, 32, 33), 1),  # more than one tile, the last one not full
    ],
)
def test_batch_norm(device: str, dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> None:
    compare_batch_norm(images(shape, device, dtype), groups)


@in_half
@pytest.mark.parametrize(("shape", "groups"), [((6, 32, 5, 7), 3), ((3, 36, 7, 5), 1)])
def test_batch_norm_in_half(device: str, dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> None:
    compare_batch_norm(images(shape, device, dtype), groups)


@both
@pytest.mark.parametrize(("weighted", "biased"), [(False, False), (True, False), (False, True)])
def test_batch_norm_without_weight_or_bias(device: str, weighted: bool, biased: bool) -> None:
    compare_batch_norm(images((4, 20, 6, 6), device), 2, weighted=weighted, biased=biased)


@both
def test_batch_norm_of_two_pixels(device: str) -> None:
    y, mean, var = kernels.batch_norm(images((2, 18, 1, 1), device))
    assert_near(y.abs().double(), torch.ones_like(y, dtype=torch.float64), 1e-2)  # plus and minus one
    assert mean.shape == var.shape == (1, 18)


@both
@pytest.mark.parametrize(
    ("dtype", "mean", "tolerance"),
    [(torch.bfloat16, 100.0, 2**-7), (torch.float16, 1000.0, 2**-8), (torch.float32, 1000.0, 1e-2)],
)
def test_a_large_mean_costs_no_digits(device: str, dtype: torch.dtype, mean: float, tolerance: float) -> None:
    """A difference of sums of squares would have no right digit left at 1000 in float32, nor a variance within 1e-4.

    What remains: a mean of 1000 is itself known to 6e-5 only, which the sum over dy multiplies.
    """
    compare_batch_norm(images((4, 16, 17, 19), device, dtype, mean=mean), 2, tolerance=tolerance)


@both
@pytest.mark.parametrize(("groups", "channels"), [(1, 36), (3, 16)])
def test_programs_that_go_over_many_tiles(
    device: str, groups: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for tensors of many megabytes: tiles made small, and few programs."""
    if takes(device):
        from natpp.kernels import norm

        monkeypatch.setattr(norm, "TILE_BYTES", 2048)
        monkeypatch.setattr(norm, "PARTS", 256)
        monkeypatch.setattr(norm, "TILES", 1)
        monkeypatch.setattr(norm, "PROGRAMS", 12)
    compare_batch_norm(images((3, channels, 15, 13), device, mean=20.0), groups, tolerance=1e-3)


@everywhere
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (3, (3, 36, 7, 9)),
        (3, (1, 1, 1, 1)),
        (5, (2, 72, 4, 5)),
        (5, (2, 5, 2, 3)),
        (7, (2, 6, 9, 8)),
    ],
)
def test_average_pool(device: str, dtype: torch.dtype, stride: int, kernel: int, shape: tuple[int, ...]) -> None:
    compare_average_pool(images(shape, device, dtype), kernel, stride)


@in_half
def test_average_pool_in_half(device: str, dtype: torch.dtype) -> None:
    compare_average_pool(images((3, 36, 7, 9), device, dtype), 3, 2)
    compare_average_pool(images((2, 5, 2, 3), device, dtype), 5, 1)


def compare_average_pool(x: Tensor, kernel: int, stride: int) -> None:
    """Values and gradients, those of float64."""
    device, dtype = x.device.type, x.dtype
    x = x.requires_grad_()
    assert kernels.fast(x) == takes(device)
    y = kernels.average_pool(x, kernel, stride)
    exact_x = x.detach().double().contiguous().requires_grad_()  # torch's gradients in channels-last memory are wrong
    exact = functional.avg_pool2d(exact_x, kernel, stride, kernel // 2, count_include_pad=False)
    dy = images(exact.shape, device, dtype, seed=1)
    assert y.dtype == dtype
    assert_near(y, exact, TOLERANCE[dtype])
    found = torch.autograd.grad(y, x, dy)[0]
    assert_near(found, torch.autograd.grad(exact, exact_x, dy.double())[0], TOLERANCE[dtype])


@everywhere
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "shape"), [(3, (2, 16, 7, 5)), (3, (1, 1, 1, 1)), (5, (2, 20, 6, 3)), (7, (1, 6, 9, 8))]
)
def test_max_pool(device: str, dtype: torch.dtype, stride: int, kernel: int, shape: tuple[int, ...]) -> None:
    """Of equal values, of which there are many here, the first counts; all results are exact, sums but rounded."""
    x = images(shape, device, dtype).mul(2).round().requires_grad_()
    assert kernels.fast(x) == takes(device)
    y = kernels.max_pool(x, kernel, stride)
    exact_x = x.detach().double().contiguous().requires_grad_()
    exact = functional.max_pool2d(exact_x, kernel, stride, kernel // 2)
    assert y.dtype == dtype
    assert torch.equal(y.double(), exact)
    dy = images(exact.shape, device, dtype, seed=1)
    found = torch.autograd.grad(y, x, dy)[0]
    assert_near(found, torch.autograd.grad(exact, exact_x, dy.double())[0], TOLERANCE[dtype])


@both
def test_maxima_that_are_no_numbers(device: str) -> None:
    x = images((1, 2, 4, 4), device)
    x[0, 0, 1, 1], x[0, 1] = float("nan"), float("-inf")
    x.requires_grad_()
    y = kernels.max_pool(x, 3)
    assert torch.equal(y.isnan(), functional.max_pool2d(x, 3, 1, 1).isnan())
    assert (y[0, 1] == float("-inf")).all()
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert float(dx.sum()) == y.numel()


@both
def test_gradients_in_any_memory(device: str) -> None:
    """What comes back from a mean over pixels has strides of zero, and not all networks are channels-last."""
    x = images((4, 16, 6, 6), device).requires_grad_()
    weight = torch.rand(16, device=device).requires_grad_()
    dy = torch.randn(4, 16, 1, 1, device=device).expand(4, 16, 6, 6)
    for one in (kernels.batch_norm(x, weight)[0], kernels.average_pool(x, 3), kernels.max_pool(x, 3)):
        wanted = torch.autograd.grad(one, x, dy.contiguous(memory_format=torch.channels_last), retain_graph=True)[0]
        for given in (dy, dy.contiguous(), torch.cat([dy[:, :1], dy], dim=1)[:, 1:]):
            found = torch.autograd.grad(one, x, given, retain_graph=True)[0]
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@both
def test_gradients_of_gradients(device: str) -> None:
    x = images((3, 4, 5, 5), device).requires_grad_()
    weight = torch.rand(4, device=device).requires_grad_()
    found = []
    for switch in (False, True):
        y = x
        with kernels.plain() if switch else torch.enable_grad():
            y = kernels.max_pool(kernels.average_pool(kernels.batch_norm(y, weight)[0], 3), 3, 2)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), (x, weight)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@both
def test_the_module_is_torchs(device: str) -> None:
    """Several steps of training, then evaluation: the same statistics, weights, outputs and names."""
    ours, theirs = BatchNorm2d(12).to(device), nn.BatchNorm2d(12).to(device)
    for step in range(3):
        x = images((2 + step, 12, 5, 4), device, mean=float(step))
        for module in (ours, theirs):
            module.zero_grad()
            module(x).square().mul(images(x.shape, device, seed=1)).sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.01 * parameter.grad
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-4)
    x = images((2, 12, 5, 4), device)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)
    assert repr(ours) == repr(theirs)
    assert torch.equal(copy.deepcopy(ours)(x), ours(x))
    assert torch.equal(pickle.loads(pickle.dumps(ours))(x), ours(x))  # noqa: S301


@both
def test_statistics_that_are_not_tracked(device: str) -> None:
    """As short trainings do it: none are kept, and evaluation takes those of the batch too."""
    module = BatchNorm2d(6).to(device)
    module.track_running_stats, module.running_mean, module.running_var = False, None, None
    module.num_batches_tracked = None
    x = images((3, 6, 4, 4), device, mean=2.0)
    wanted = functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(module(x), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(module.eval()(x), wanted, rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("momentum", [None, 0.3, 1])
def test_momentum(device: str, momentum: float | None) -> None:
    ours, theirs = BatchNorm2d(6, momentum=momentum).to(device), nn.BatchNorm2d(6, momentum=momentum).to(device)
    for step in range(3):
        x = images((3, 6, 4, 4 + step), device, mean=2.0)
        ours(x), theirs(x)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert torch.equal(ours.num_batches_tracked, theirs.num_batches_tracked)


@both
def test_running_statistics_by_the_function(device: str) -> None:
    running = torch.zeros(5, device=device), torch.ones(5, device=device)
    wanted = torch.zeros(5, device=device), torch.ones(5, device=device)
    x = images((4, 5, 3, 3), device, mean=1.0)
    kernels.batch_norm(x, running_mean=running[0], running_var=running[1], momentum=0.25)
    functional.batch_norm(x, *wanted, training=True, momentum=0.25)
    torch.testing.assert_close(running, wanted)


@both
def test_the_pools_are_torchs(device: str) -> None:
    for ours, theirs in (
        (AvgPool2d(3, 2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        (MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1)),
    ):
        assert repr(ours) == repr(theirs)
        for x in (
            images((2, 6, 7, 8), device),
            torch.randn(2, 6, 7, 8, device=device),
            torch.randn(6, 7, 8, device=device),
        ):
            torch.testing.assert_close(ours(x), theirs(x))


@both
def test_autocast_changes_nothing(device: str) -> None:
    with torch.autocast(device, torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = images((2, 16, 4, 4), device, dtype)
            assert BatchNorm2d(16).to(device)(x).dtype == dtype
            assert AvgPool2d(3, 1)(x).dtype == dtype


@both
def test_what_the_kernels_leave_to_torch(device: str) -> None:
    x = images((2, 16, 4, 4), device)
    assert kernels.fast(x) == takes(device)
    with kernels.plain():
        assert not kernels.fast(x)
    assert kernels.fast(x) == takes(device)
    assert not kernels.fast(x.contiguous())
    assert not kernels.fast(x.double())
    assert not kernels.fast(x[:, :, 1:])
    assert not kernels.fast(x[0])
    assert not kernels.fast(x[:0])
    assert not kernels.fast(nn.Parameter(x))
    odd = torch.empty(2 * 16 * 16 + 1, device=device)[1:].view(2, 4, 4, 16).permute(0, 3, 1, 2)
    assert odd.is_contiguous(memory_format=torch.channels_last)
    assert not kernels.fast(odd)  # it starts at 4 bytes, loads are of 16


def test_a_traced_module_is_one_step() -> None:
    chain = build_chain((ReLU(), Conv(4, 4), BatchNorm(4), Pool("avg", 3, 1), Pool("max", 3, 1)))
    traced = torch.fx.symbolic_trace(chain)
    steps = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert steps == ["0", "1", "2", "3", "4"]
    x = images((2, 4, 5, 5), "cpu")
    torch.testing.assert_close(traced(x), chain(x))


def test_compilers_see_torchs_operations() -> None:
    chain = build_chain((BatchNorm(4), Pool("avg", 3, 1))).train()
    x = images((2, 4, 5, 5), "cpu")
    wanted = copy.deepcopy(chain)(x)
    graph = torch.export.export(chain, (x,)).graph_module
    targets = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert any("batch_norm" in target for target in targets)
    assert any("avg_pool2d" in target for target in targets)
    torch.testing.assert_close(torch.compile(chain, backend="eager", fullgraph=True)(x), wanted)


def test_wrong_groups() -> None:
    with pytest.raises(SettingError, match="5 images cannot be split into 2 equal groups"):
        kernels.batch_norm(torch.randn(5, 3, 2, 2), groups=2)
    with pytest.raises(SettingError, match="a single group, got 2"):
        kernels.batch_norm(torch.randn(4, 3, 2, 2), groups=2, running_mean=torch.zeros(3), running_var=torch.ones(3))


@both
def test_one_pixel_has_no_variance(device: str) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        kernels.batch_norm(images((2, 3, 1, 1), device), groups=2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        BatchNorm2d(3).to(device)(images((1, 3, 1, 1), device))


@both
def test_the_log_says_once_what_is_used(
    device: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not takes(device):
        pytest.skip("there is no choice on a CPU")
    x = images((2, 16, 4, 4), device)
    with caplog.at_level(logging.INFO, logger="natpp"):
        kernels._available.cache_clear()
        assert kernels.fast(x)
        assert kernels.fast(x)
        monkeypatch.setenv("NATPP_KERNELS", "plain")
        kernels._available.cache_clear()
        assert not kernels.fast(x)
    kernels._available.cache_clear()
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "using natpp's kernels, except for separable convs in float32",
        "using torch's kernels, since NATPP_KERNELS is plain",
    ]


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_the_kernels_under_tritons_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install natpp[triton]")
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", folder, "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not gpu"]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.gpu
def test_a_large_tensor_and_bits_that_repeat() -> None:
    """38 million numbers, more than one tile for every program; nothing depends on the order of programs."""
    x = images((192, 48, 64, 64), "cuda", torch.bfloat16, mean=1.0)
    compare_batch_norm(x, 2)
    compare_batch_norm(images((4, 2048, 7, 7), "cuda", torch.bfloat16), 1)
    weight = torch.rand(48, device="cuda").requires_grad_()
    x.requires_grad_()
    found = []
    for _ in range(2):
        y = kernels.average_pool(kernels.batch_norm(x, weight, groups=2)[0], 3, 2)
        found.append((y, *torch.autograd.grad(y.float().square().sum(), (x, weight))))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


@pytest.mark.gpu
def test_inside_a_cuda_graph_on_several_streams() -> None:
    """Two branches on streams of their own: replayed with other images they give what steps outside of a graph give."""
    x = images((8, 16, 16, 16), "cuda", torch.bfloat16)
    modules = [nn.Sequential(BatchNorm2d(16), AvgPool2d(3, 1)).cuda() for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in modules]

    def step() -> list[tuple[Tensor, ...]]:
        found = []
        main = torch.cuda.current_stream()
        for module, stream in zip(modules, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                y = module(x)
                found.append((y, *torch.autograd.grad(y.float().square().sum(), list(module.parameters()))))
        for stream in streams:
            main.wait_stream(stream)
        return found

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(images((8, 16, 16, 16), "cuda", torch.bfloat16, mean=3.0))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [[tensor.clone() for tensor in branch] for branch in captured]
    for found, wanted in zip(replayed, step(), strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
    assert all(module[0].num_batches_tracked.item() == 3 for module in modules)  # two steps, one replay


@pytest.mark.gpu
def test_a_network_trains_as_with_torchs_kernels() -> None:
    torch.manual_seed(0)
    network = natpp.build("darts", "cifar:channels=8,cells=3").cuda().to(memory_format=torch.channels_last)
    x = images((8, 3, 32, 32), "cuda")
    found = []
    for switch in (False, True):
        with kernels.plain() if switch else torch.enable_grad():
            loss = functional.cross_entropy(network(x), torch.arange(8, device="cuda"))
        found.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(network.parameters()))]))
    assert float((found[0] - found[1]).norm()) <= 0.01 * float(found[1].norm())
