"""Separable convolutions against float64, on a GPU (marker gpu) and under Triton's interpreter: see test_kernels.py."""

import copy
import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import natpp
from natpp import kernels
from natpp.arch.layers import Chain, build_chain
from natpp.arch.modules import GlobalPool2d, Layers
from natpp.arch.ops import Place
from natpp.errors import SettingError
from natpp.kernels import Half, Norm, reference
from natpp.nets.supernet import Shared
from natpp.registry import OPS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
rounds_between = pytest.mark.skipif(not INTERPRETED, reason="torch's kernels for CPUs also round what is between")
GPU = [pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
HALF = [pytest.param("cpu", dtype, marks=rounds_between) for dtype in (torch.bfloat16, torch.float16)]
everywhere = pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), *GPU])
in_half = pytest.mark.parametrize(("device", "dtype"), HALF)  # on a CPU; a GPU has all types of numbers everywhere
# Of the norm of what is compared. In half precision more is allowed where torch's own operations in it are further off:
# what is between two convolutions is rounded, and one ReLU of the few here that opens or shuts is felt in bf16.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-4}


@pytest.fixture(autouse=True)
def whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All digits of float32, in torch's convolutions and in the kernels, which are not asked for them otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(kernels, "PRODUCTS", kernels.TYPES)


def takes(device: str) -> bool:
    """Whether the kernels must be what is tested here."""
    return device == "cuda" or INTERPRETED


def images(
    shape: Sequence[int], device: str, dtype: torch.dtype = torch.float32, *, mean: float = 0.0, seed: int = 0
) -> Tensor:
    drawn = mean + torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(device, dtype, memory_format=torch.channels_last)


def halves(
    channels: Sequence[int],
    kernel: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    *,
    stride: int = 1,
    dilation: int = 1,
    running: bool = True,
) -> list[Half]:
    """Halves with these channels one after the other, and drawn weights."""
    draws = torch.Generator().manual_seed(sum(channels) + kernel)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws)

    made: list[Half] = []
    for number, (into, out) in enumerate(itertools.pairwise(channels)):
        depthwise = None if kernel == 1 else (drawn(into, 1, kernel, kernel) / kernel).to(device, dtype)
        pointwise = (drawn(out, into, 1, 1) / into**0.5).to(device, dtype)
        norm = Norm((1.5 + drawn(out).tanh() / 2).to(device), drawn(out).to(device))
        if running:
            norm = dataclasses.replace(
                norm, running_mean=torch.zeros(out, device=device), running_var=torch.ones(out, device=device)
            )
        made.append(Half(depthwise, pointwise, norm, 1 if number else stride, dilation))
    return [with_gradients(half) for half in made]


def with_gradients(half: Half, change: Callable[[Tensor], Tensor] = Tensor.clone) -> Half:
    """The same, with tensors of its own."""
    made = half.with_tensors([change(tensor.detach()).requires_grad_() for tensor in half.tensors()])
    running = [None if one is None else change(one) for one in (half.norm.running_mean, half.norm.running_var)]
    return dataclasses.replace(
        made, norm=dataclasses.replace(made.norm, running_mean=running[0], running_var=running[1])
    )


def distance(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference, as a share of the norm."""
    assert found.shape == exact.shape
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm()) / max(float(exact.norm()), 1.0)


def results(
    x: Tensor, some: Sequence[Half], groups: int, run: Callable[..., Tensor] = reference.separable
) -> list[Tensor]:
    """Values, all gradients and running statistics."""
    x = x.detach().requires_grad_()
    z = run(x, some, groups)
    assert z.dtype == x.dtype
    dz = images(z.shape, x.device.type, mean=0.3, seed=1).to(x.dtype)
    inputs = [x, *(tensor for half in some for tensor in half.tensors())]
    gradients = torch.autograd.grad(z, inputs, dz)
    for gradient, one in zip(gradients, inputs, strict=True):
        assert gradient.dtype == one.dtype
    running = [one for half in some for one in (half.norm.running_mean, half.norm.running_var) if one is not None]
    return [z, *gradients, *running]


def compare(x: Tensor, given_halves: Sequence[Half], groups: int = 1) -> None:
    """The results are those of float64."""
    assert kernels.fast(x) == takes(x.device.type)
    assert kernels.fits(x, given_halves, groups)
    exact = results(x.double(), [with_gradients(half, lambda tensor: tensor.double()) for half in given_halves], groups)
    plain = results(x, [with_gradients(half) for half in given_halves], groups)
    found = results(x, given_halves, groups, kernels.separable)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs, wanted in zip(found, plain, exact, strict=True):
        allowed = TOLERANCE[x.dtype]
        if x.dtype != torch.float32:
            allowed = max(allowed, 1.5 * distance(theirs, wanted))
        assert distance(ours, wanted) <= allowed


@everywhere
@pytest.mark.parametrize(
    ("shape", "channels", "kernel", "stride", "dilation", "groups"),
    [
        ((16, 16, 8, 8), (16, 16, 16), 3, 1, 1, 2),  # sep_conv_3x3, whole tiles of strips
        ((2, 64, 8, 8), (64, 128), 3, 1, 1, 1),  # the same with more columns than a program has
        ((4, 20, 7, 9), (20, 20, 20), 5, 2, 1, 2),  # sep_conv_5x5 in a supernet
        ((2, 7, 6, 5), (7, 12), 3, 2, 2, 1),  # dil_conv_3x3, odd in every way
        ((2, 6, 9, 7), (6, 6), 5, 1, 2, 1),
        ((2, 5, 9, 8), (5, 5), 7, 1, 1, 1),
        ((2, 80, 5, 4), (80, 20), 1, 1, 1, 1),  # what brings a cell's input to its channels
        ((3, 9, 5, 7), (9, 16), 1, 2, 1, 3),
    ],
)
def test_separable(
    device: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    channels: tuple[int, ...],
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
) -> None:
    made = halves(channels, kernel, device, dtype, stride=stride, dilation=dilation, running=groups == 1)
    compare(images(shape, device, dtype), made, groups)


@in_half
@pytest.mark.parametrize(
    ("shape", "channels", "kernel", "stride", "groups"),
    [((8, 16, 8, 8), (16, 16, 16), 3, 1, 1), ((4, 7, 6, 5), (7, 12), 5, 2, 2), ((2, 20, 5, 4), (20, 16), 1, 1, 1)],
)
def test_separable_in_half(
    device: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    channels: tuple[int, ...],
    kernel: int,
    stride: int,
    groups: int,
) -> None:
    made = halves(channels, kernel, device, dtype, stride=stride, running=groups == 1)
    compare(images(shape, device, dtype), made, groups)


@everywhere
@pytest.mark.parametrize(
    ("shape", "channels", "groups"),
    [((2, 16, 8, 6), (8, 8), 1), ((4, 7, 5, 8), (3, 4), 2), ((2, 70, 3, 7), (6, 6), 1), ((3, 5, 1, 3), (1, 1), 1)],
)
def test_factorized_reduction(
    device: str, dtype: torch.dtype, shape: tuple[int, ...], channels: tuple[int, int], groups: int
) -> None:
    (half,) = halves((shape[1], sum(channels)), 1, device, dtype, stride=2, running=groups == 1)
    parts = half.pointwise.detach().split(channels)
    half = with_gradients(dataclasses.replace(half, pointwise=parts[0].clone(), shifted=parts[1].clone()))
    compare(images(shape, device, dtype), [half], groups)


@everywhere
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shape", "out", "kernel", "stride", "dilation", "groups"),
    [
        ((8, 16, 8, 8), 16, 3, 1, 1, 1),  # nor_conv_3x3
        ((4, 12, 7, 9), 20, 3, 2, 1, 2),
        ((2, 7, 6, 5), 70, 3, 1, 2, 1),  # more columns than a program has
        ((2, 6, 9, 7), 5, 5, 1, 1, 1),
    ],
)
def test_dense(
    device: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    out: int,
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
    memory: torch.memory_format,
) -> None:
    (half,) = halves((shape[1], out), 1, device, dtype, running=groups == 1)
    weight = torch.randn(out, shape[1], kernel, kernel, generator=torch.Generator().manual_seed(3)) / (kernel * 4)
    weight = weight.to(device, dtype).contiguous(memory_format=memory)
    half = dataclasses.replace(half, pointwise=weight.requires_grad_(), stride=stride, dilation=dilation)
    assert half.dense
    compare(images(shape, device, dtype), [half], groups)


@both
@pytest.mark.parametrize(
    ("shape", "channels", "kernel"),
    [
        ((2, 66, 3, 3), (66, 66), 3),  # more than one block of channels to read
        ((2, 4, 3, 3), (4, 130), 3),
        ((1, 6, 2, 2), (6, 256), 1),
        ((5, 1, 3, 2), (1, 1, 1), 3),
        ((9, 3, 1, 1), (3, 2), 3),
    ],
)
def test_channels_and_sizes(device: str, shape: tuple[int, ...], channels: tuple[int, ...], kernel: int) -> None:
    compare(images(shape, device), halves(channels, kernel, device))


@settings(max_examples=10 if INTERPRETED else 40, suppress_health_check=list(HealthCheck))
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    channels=st.lists(st.integers(1, 20), min_size=2, max_size=3),
    kernel=st.sampled_from([1, 3, 5, 7]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
)
def test_any_shape(
    size: tuple[int, int, int], channels: list[int], kernel: int, stride: int, dilation: int, groups: int
) -> None:
    """Values; of two pixels the variance may be next to nothing, so there are more."""
    count, height, width = size
    if count * -(-height // stride) * -(-width // stride) < 6:
        count = 6
    channels = channels[:2] if kernel == 1 else channels
    made = halves(channels, kernel, "cpu", stride=stride, dilation=dilation, running=groups == 1)
    x = images((groups * count, channels[0], height, width), "cpu", mean=0.5)
    z = kernels.separable(x, made, groups)
    exact = reference.separable(
        x.double(), [with_gradients(half, lambda tensor: tensor.double()) for half in made], groups
    )
    torch.testing.assert_close(z.double(), exact, rtol=1e-3, atol=1e-3)


@both
@pytest.mark.parametrize("groups", [1, 2])
def test_programs_that_go_over_many_tiles(device: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for tensors of many megabytes: tiles made small, and few programs, whose parts are joined in steps."""
    if takes(device):
        from natpp.kernels import geometry, separated, steps

        monkeypatch.setattr(geometry, "STRIPS", 16)
        monkeypatch.setattr(geometry, "DEPTH", 16)
        monkeypatch.setattr(geometry, "TALL", (32, 16))
        monkeypatch.setattr(steps, "NUMBERS", 1024)
        monkeypatch.setattr(steps, "COPYING", 6)
        monkeypatch.setattr(steps, "PARTS", 48)
        monkeypatch.setattr(steps, "LEAST", 3)
        monkeypatch.setattr(steps, "COPIED", 1)
        monkeypatch.setattr(steps, "MULTIPLIED", 1)
        monkeypatch.setattr(steps, "LONG", 2)
        monkeypatch.setattr(steps, "JOINED", 32)
        monkeypatch.setattr(separated, "FINISHED", 32)
    compare(
        images((4, 10, 9, 13), device, mean=0.5), halves((10, 10, 6), 3, device, stride=2, running=groups == 1), groups
    )


@both
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "dilation", "groups"),
    [((16, 16, 16), 3, 1, 1, 1), ((20, 12), 5, 2, 2, 2), ((8, 70), 1, 1, 1, 1), ((9, 9), 1, 2, 1, 1)],
)
def test_nothing_is_read_or_written_beside_buffers(
    device: str,
    channels: tuple[int, ...],
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New memory holds what is not a number (-1 if it is of integers), around every tensor too, where it stays."""
    guard = 4096
    bases: list[tuple[Tensor, int]] = []
    empty = torch.empty

    def guarded(*shape: object, **options: object) -> Tensor:
        like = empty(*shape, **options)
        base = empty(like.numel() + 2 * guard, dtype=like.dtype, device=like.device)
        base.fill_(float("nan") if base.is_floating_point() else -1)
        bases.append((base, like.numel()))
        return base.as_strided(like.shape, like.stride(), guard)

    made = halves(channels, kernel, device, stride=stride, dilation=dilation, running=False)
    drawn = images((4, channels[0], 5, 7), device, mean=0.3)
    exact = results(drawn, [with_gradients(half) for half in made], groups)
    monkeypatch.setattr(torch, "empty", guarded)
    x = torch.empty(drawn.shape, device=device, memory_format=torch.channels_last).copy_(drawn)
    found = results(x, made, groups, kernels.separable)
    monkeypatch.undo()
    assert len(bases) > 10 or not takes(device)
    for base, size in bases:
        for beside in (base[:guard], base[guard + size :]):
            assert (beside.isnan() if beside.is_floating_point() else beside == -1).all()
    for ours, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3)


@both
def test_a_large_mean_costs_few_digits(device: str) -> None:
    """The mean of what the first norm reads is many deviations; of more, half precision has no digits."""
    made = halves((8, 8, 8), 3, device)
    x = 5 + 0.1 * images((4, 8, 12, 12), device)
    for (
        half
    ) in made:  # weights of one sign do not take the mean away, zeros around the image would bring it into the variance
        assert half.depthwise is not None
    inner = dataclasses.replace(made[0], depthwise=torch.zeros_like(made[0].depthwise))
    inner.depthwise[:, :, 1, 1] = 1  # only the middle: no border
    given_halves = [with_gradients(inner), made[1]]
    exact_halves = [with_gradients(half, lambda tensor: tensor.double()) for half in given_halves]
    z = kernels.separable(x, given_halves)
    exact = reference.separable(x.double(), exact_halves, 1)
    torch.testing.assert_close(z.double(), exact, rtol=5e-3, atol=5e-3)


@both
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_gradients_of_some(device: str, wanted: tuple[bool, bool]) -> None:
    of_x, of_weights = wanted
    x = images((2, 6, 5, 5), device).requires_grad_(of_x)
    made = halves((6, 6, 6), 3, device)
    for half in made:
        for tensor in half.tensors():
            tensor.requires_grad_(of_weights)
    made[1].pointwise.requires_grad_(True)
    loss = kernels.separable(x, made).square().mul(images((2, 6, 5, 5), device, seed=1)).sum()
    loss.backward()
    assert (x.grad is None) != of_x
    for number, half in enumerate(made):
        for tensor in half.tensors():
            assert (tensor.grad is not None) == (of_weights or (number == 1 and tensor is half.pointwise))


@both
def test_gradients_in_any_memory(device: str) -> None:
    """Those of a concatenation are channels of a larger tensor, and are taken as they lie."""
    made = halves((8, 8), 3, device)
    x = images((3, 8, 6, 5), device).requires_grad_()
    z = kernels.separable(x, made)
    whole = images((3, 24, 6, 5), device)
    inputs = [x, *made[0].tensors()]
    for some in (whole[:, 8:16], whole[:, 3:11], whole[:, :8].contiguous(), whole[:1, :8].expand(3, -1, -1, -1)):
        found = torch.autograd.grad(z, inputs, some, retain_graph=True)
        like = some.contiguous(memory_format=torch.channels_last)
        for one, other in zip(found, torch.autograd.grad(z, inputs, like, retain_graph=True), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@both
def test_gradients_of_gradients(device: str) -> None:
    x = images((2, 3, 4, 4), device).requires_grad_()
    made = halves((3, 3, 3), 3, device, running=False)
    found = []
    for switch in (False, True):
        with kernels.plain() if switch else torch.enable_grad():
            z = kernels.separable(x, made)
        inputs = [x, made[0].depthwise, made[1].norm.weight]
        (first,) = torch.autograd.grad(z.square().mul(images(z.shape, device, seed=2)).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), inputs))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@both
def test_twice_in_one_graph(device: str) -> None:
    """The same weights used twice, and the input read by others too."""
    x = images((2, 4, 5, 5), device).requires_grad_()
    found = []
    for switch in (False, True):
        made = halves((4, 4), 3, device)
        with kernels.plain() if switch else torch.enable_grad():
            z = kernels.separable(kernels.separable(x, made) + x, made)
        found.append(
            torch.autograd.grad(z.square().mul(images(z.shape, device, seed=2)).sum(), [x, *made[0].tensors()])
        )
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@both
def test_added_to_something(device: str) -> None:
    """The sum that a node is, in the kernel that normalizes; what cannot be added there is added by torch."""
    x, total = images((3, 6, 5, 4), device), images((3, 6, 5, 4), device, seed=3)
    made = halves((6, 6), 3, device, running=False)
    for one in (total, total.contiguous(), total.bfloat16()):
        found = []
        for switch in (False, True):
            some = one.detach().requires_grad_()
            with kernels.plain() if switch else torch.enable_grad():
                assert kernels.fits(x, made, added=some) == (takes(device) and one is total and not switch)
                z = kernels.separable(x, made, added=some)
            found.append((z, *torch.autograd.grad(z.square().sum(), [some, made[0].pointwise])))
        for ours, theirs in zip(*found, strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=1e-2 if one.dtype == torch.bfloat16 else 1e-3, atol=1e-3)


@both
def test_a_node_of_a_network(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two edges: the second is added to the first by the kernel, unless edges are dropped or somebody listens."""
    torch.manual_seed(0)
    network = natpp.build("darts", "cifar:channels=2,cells=3,size=8").to(device)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.0  # the same statistics every time
    sums: list[bool] = []
    separable = kernels.separable
    monkeypatch.setattr(
        kernels, "separable", lambda *given, **named: sums.append("added" in named) or separable(*given, **named)
    )
    x = images((2, 3, 8, 8), device)
    wanted = None
    with kernels.plain():
        wanted = network(x)
    assert not sums
    torch.testing.assert_close(network(x), wanted, rtol=1e-3, atol=1e-3)
    assert any(sums) == takes(device)
    sums.clear()
    network.drop_path = 0.5
    network(x)
    assert not any(sums)


@both
def test_the_mean_over_all_pixels(device: str) -> None:
    """Its gradient is in memory as x is, so that nobody before it has to copy."""
    x = images((2, 6, 5, 3), device).requires_grad_()
    y = GlobalPool2d()(x)
    torch.testing.assert_close(y, x.mean(dim=(2, 3)))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(dx, (2 * y / 15)[:, :, None, None].expand(x.shape))
    assert dx.is_contiguous(memory_format=torch.channels_last) == takes(device)


def chain(op: str, channels: int, stride: int) -> Chain:
    return OPS[op].layers(Place(channels, channels, stride))


@both
@pytest.mark.parametrize(
    ("op", "stride"),
    [("sep_conv_3x3", 1), ("dil_conv_3x3", 2), ("conv_1x1", 1), ("conv_3x3", 2), ("skip_connect", 2)],
)
def test_the_module_is_torchs(device: str, op: str, stride: int) -> None:
    """Steps of training, then evaluation: the same statistics, weights, outputs, names and counts of batches."""
    torch.manual_seed(0)
    ours = build_chain(chain(op, 6, stride)).to(device)
    assert isinstance(ours, Layers)
    theirs = nn.Sequential(*copy.deepcopy(list(ours)))
    for step in range(2):
        x = images((3 + step, 6, 5, 5), device, mean=0.2)
        for module in (ours, theirs):
            module.zero_grad()
            with kernels.plain() if module is theirs else torch.enable_grad():
                y = module(x)
            y.square().mul(images(y.shape, device, seed=1)).sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.01 * parameter.grad
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-3, atol=1e-3)


@both
@pytest.mark.parametrize("momentum", [1, None])
def test_momentum(device: str, momentum: int | None) -> None:
    """A whole number, and none, which stands for the mean over all batches and is left to torch."""
    ours = build_chain(chain("dil_conv_3x3", 4, 1)).to(device)
    ours[3].momentum = momentum
    theirs = copy.deepcopy(ours)
    for seed in range(2):
        x = images((3, 4, 5, 5), device, seed=seed)
        ours(x)
        with kernels.plain():
            theirs(x)
    torch.testing.assert_close(ours[3].running_var, theirs[3].running_var, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[3].running_mean, theirs[3].running_mean, rtol=1e-4, atol=1e-4)


@both
def test_who_is_called(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels once for both halves; every module where one has a hook, and where statistics are not the batch's."""
    calls: list[int] = []
    separable = kernels.separable
    monkeypatch.setattr(kernels, "separable", lambda *given: calls.append(len(given[1])) or separable(*given))
    module = build_chain(chain("sep_conv_3x3", 4, 1)).to(device)
    x = images((2, 4, 4, 4), device)
    whole = [2] if takes(device) else []
    module(x)
    assert calls == whole
    module.eval()(x)
    module.train()(x.contiguous())
    with kernels.plain():
        module(x)
    assert calls == whole
    seen: list[object] = []
    handle = module[5].register_forward_hook(lambda *given: seen.append(given[0]))
    module(x)
    assert calls == whole + [1] * takes(device)  # the first half alone
    assert seen == [module[5]]
    handle.remove()
    module(x)
    assert calls[-1:] == whole


@both
def test_autocast(device: str) -> None:
    """Convolutions compute in bf16, from weights and images in either type; gradients have their tensors' types."""
    module = build_chain(chain("dil_conv_3x3", 4, 1)).to(device)
    for dtype in (torch.float32, torch.bfloat16):
        x = images((2, 4, 5, 5), device, dtype).requires_grad_()
        found = []
        for switch in (False, True):
            with torch.autocast(device, torch.bfloat16), kernels.plain() if switch else torch.enable_grad():
                y = module(x)
            assert y.dtype == torch.bfloat16
            gradients = torch.autograd.grad(
                y.float().square().mul(images(y.shape, device, seed=1)).sum(), [x, *module.parameters()]
            )
            assert [one.dtype for one in gradients] == [dtype] + [torch.float32] * len(gradients[1:])
            found.append((y.float(), *(one.float() for one in gradients)))
        for ours, theirs in zip(*found, strict=True):
            assert distance(ours, theirs) <= 0.15


@both
def test_in_a_supernet(device: str) -> None:
    """Three architectures at once are what each is alone."""
    torch.manual_seed(0)
    shared = Shared(chain("sep_conv_3x3", 4, 2)).to(device)
    x = images((6, 4, 5, 6), device)
    together = shared(x, 3)
    for number, part in enumerate(x.chunk(3)):
        alone = shared(part.contiguous(memory_format=torch.channels_last), 1)
        torch.testing.assert_close(together[2 * number : 2 * number + 2], alone, rtol=1e-4, atol=1e-4)
    with kernels.plain():
        torch.testing.assert_close(together, shared(x, 3), rtol=1e-4, atol=1e-4)


@both
def test_what_the_kernels_leave_to_torch(device: str) -> None:
    x = images((2, 6, 5, 5), device)
    (half,) = halves((6, 6), 3, device)
    assert kernels.fits(x, [half])
    assert not kernels.fits(x, [dataclasses.replace(half, stride=3)])
    assert not kernels.fits(x, [dataclasses.replace(half, pointwise=half.pointwise.double())])
    assert not kernels.fits(x, [dataclasses.replace(half, pointwise=half.pointwise.expand(-1, -1, 1, 2))])
    assert not kernels.fits(x, halves((6, 257), 3, device))
    assert not kernels.fits(images((1, 6, 1, 1), device), [half])  # one pixel has no variance
    assert not kernels.fits(images((2, 6, 5, 5), device, torch.bfloat16), [half])
    twisted = half.pointwise.detach().flatten(1).t().contiguous().t()[:, :, None, None]
    assert not kernels.fits(x, [dataclasses.replace(half, pointwise=twisted)])


@both
def test_float32_is_left_to_torch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores would round it. Under autocast the products are in half precision, whatever x is in."""
    monkeypatch.undo()
    x = images((2, 6, 5, 5), device)
    made = halves((6, 6), 3, device)
    assert not kernels.fits(x, made)
    with torch.autocast(device, torch.bfloat16):
        assert kernels.fits(x, made)
    assert torch.equal(kernels.separable(x, made), reference.separable(x, made, 1))


@both
def test_too_many_products(device: str) -> None:
    """A merged conv has more products for every number than torch's separable one, which wins where they are many."""
    assert kernels.fits(images((2, 92, 2, 2), device), halves((92, 8), 5, device))
    assert not kernels.fits(images((2, 93, 2, 2), device), halves((93, 8), 5, device))


@both
def test_the_size_of_buffers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are counted in 32 bits, zeros around the images included."""
    x = images((2, 6, 5, 5), device)
    monkeypatch.setattr(kernels, "LARGEST", 2 * (5 + 2 + kernels.MARGIN) ** 2 * 6)
    assert not kernels.fits(x, halves((6, 6), 3, device))
    assert kernels.fits(x, halves((6, 6), 1, device))
    assert not kernels.fits(x, halves((6, 8), 1, device))


def test_wrong_groups() -> None:
    x = torch.randn(5, 4, 3, 3)
    with pytest.raises(SettingError, match="5 images cannot be split into 2 equal groups"):
        kernels.separable(x, halves((4, 4), 3, "cpu"), groups=2)
    with pytest.raises(SettingError, match="a single group, got 2"):
        kernels.separable(x[:4], halves((4, 4), 3, "cpu"), groups=2)


@both
def test_what_is_not_a_number_stays(device: str) -> None:
    """A training that went wrong must not look well: a ReLU lets through what is not a number."""
    x = images((2, 4, 5, 5), device)
    x[0, 1, 2, 2] = float("nan")
    assert kernels.separable(x, halves((4, 4, 4), 3, device)).isnan().all()


@both
@pytest.mark.parametrize("kernel", [1, 3])
def test_groups_are_apart(device: str, kernel: int) -> None:
    """What is not a number in one group is read by no strip of another, though they lie one after the other."""
    x = images((4, 20, 3, 7), device)
    x[:2, :, -1, -1] = float("nan")
    z = kernels.separable(x, halves((20, 20), kernel, device, running=False), 2)
    assert z[:2].isnan().all()
    assert z[2:].isfinite().all()


def test_a_traced_chain_has_its_steps() -> None:
    module = build_chain(chain("sep_conv_3x3", 4, 1))
    traced = torch.fx.symbolic_trace(module)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == [str(one) for one in range(8)]


def test_compilers_see_torchs_operations() -> None:
    module = build_chain(chain("sep_conv_3x3", 4, 1))
    x = images((2, 4, 5, 5), "cpu")
    wanted = copy.deepcopy(module)(x)
    graph = torch.export.export(module, (x,)).graph_module
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("conv2d" in target for target in targets) == 4
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_large_tensors_and_bits_that_repeat() -> None:
    """More than one tile for every program; nothing depends on the order of programs."""
    for shape, kernel in (((128, 20, 32, 32), 5), ((64, 64, 8, 8), 3), ((32, 144, 14, 14), 3)):
        x = images(shape, "cuda", torch.bfloat16, mean=0.1)
        made = halves((shape[1], shape[1], shape[1]), kernel, "cuda", torch.bfloat16, running=False)
        compare(x, made)
        for one, other in zip(
            results(x, made, 1, kernels.separable), results(x, made, 1, kernels.separable), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.gpu
def test_inside_a_cuda_graph_on_several_streams() -> None:
    """Two branches on streams of their own: replayed with other images they give what steps outside of a graph give."""
    x = images((8, 16, 16, 16), "cuda")
    modules = [build_chain(chain(op, 16, 2)).cuda() for op in ("sep_conv_3x3", "skip_connect")]
    streams = [torch.cuda.Stream() for _ in modules]

    def step() -> list[tuple[Tensor, ...]]:
        found = []
        main = torch.cuda.current_stream()
        for module, stream in zip(modules, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                y = module(x)
                found.append((y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))))
        for stream in streams:
            main.wait_stream(stream)
        return found

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(images((8, 16, 16, 16), "cuda", mean=0.5))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [[tensor.clone() for tensor in branch] for branch in captured]
    for found, wanted in zip(replayed, step(), strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
def test_a_network_is_compiled_and_exported() -> None:
    network = natpp.build("darts", "cifar:channels=4,cells=3").cuda().to(memory_format=torch.channels_last)
    x = images((4, 3, 32, 32), "cuda")
    with kernels.plain():
        wanted = copy.deepcopy(network)(x)
    torch.testing.assert_close(copy.deepcopy(network)(x), wanted, rtol=1e-2, atol=1e-2)
    compiled = torch.compile(copy.deepcopy(network), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-2, atol=1e-2)
    exported = torch.export.export(network.eval(), (x,))
    torch.testing.assert_close(exported.module()(x), network(x), rtol=1e-2, atol=1e-2)
