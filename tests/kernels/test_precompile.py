"""Kernels that are compiled before they are launched, for a GPU that is not there: are they those that are launched?"""

import importlib.util
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: pip install natpp[triton]", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled under the interpreter", allow_module_level=True)

import triton.compiler
from test_compile import separable
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import natpp
from natpp import kernels
from natpp.arch.networks import setting
from natpp.kernels import merged, merged_back, norm, pool, precompile
from natpp.nets.network import build_network

if not precompile.can_compile_ahead():
    pytest.skip("this Triton compiles in no threads: 3.6 does", allow_module_level=True)


def channels_last(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()


def all_kernels() -> list[JITFunction[Any]]:
    return [
        one
        for module in (merged, merged_back, norm, pool)
        for one in vars(module).values()
        if isinstance(one, JITFunction)
    ]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the kernels that are compiled, on a machine with a GPU that has compiled nothing yet."""
    found: list[str] = []

    def compiled(source: Any, **_: Any) -> object:
        found.append(source.fn.__name__)
        if source.fn.__name__ == "_max_pool":
            raise RuntimeError("cannot be compiled")
        return SimpleNamespace()

    fake = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    monkeypatch.setattr(driver, "_active", fake)
    monkeypatch.setattr(triton.compiler, "compile", compiled)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "_exchange_device", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", lambda _: 0)
    monkeypatch.setattr(precompile, "_NOTES", precompile._Notes())
    for kernel in all_kernels():
        kernel.device_caches.clear()
    yield found
    for kernel in all_kernels():
        kernel.device_caches.clear()


def step() -> None:
    """Operations of several kinds and sizes, forward and backward."""
    for images, channels, kernel in ((8, 16, 3), (6, 16, 5), (8, 20, 3)):
        separable(images, channels, kernel, 2, torch.bfloat16, running=True)()
    for shape in ((8, 32, 8, 8), (6, 32, 16, 16)):
        x = channels_last(*shape)
        torch.autograd.grad(norm.Normalized.apply(x, None, None, 1e-5, 1, None, None, 0.1)[0].sum(), x)
        torch.autograd.grad(pool.Pooled.apply(x, 3, 1).sum(), x)


def test_what_is_compiled_ahead_is_what_is_launched(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(JITFunction, "__getitem__", lambda kernel, grid: pytest.fail("launched"))
        count = precompile.compile_for(step, "a kind")
    assert 10 < len(compilations) <= count < 60
    assert {"prepare", "forward", "through_norm", "backward", "finish", "_normalize", "_pool_back"} <= set(compilations)
    compilations.clear()

    launches = 0

    def launched(kernel: Any, grid: tuple[int, ...]) -> Any:
        def run(*given: Any, **options: Any) -> None:
            nonlocal launches
            launches += 1
            kernel.run(*given, grid=grid, warmup=True, **options)

        return run

    monkeypatch.setattr(JITFunction, "__getitem__", launched)
    step()
    assert launches > count
    assert not compilations


def test_steps_are_gone_through_until_nothing_is_new(compilations: list[str]) -> None:
    went = []
    assert precompile.compile_for(lambda: (went.append(1), step()), "a kind")
    before = len(compilations)
    assert precompile.compile_for(lambda: (went.append(2), step()), "a kind") == 0
    assert precompile.compile_for(lambda: went.append(3), "a kind") == 0
    assert precompile.compile_for(lambda: went.append(4), "another") == 0
    assert went == [1, 2, 4]
    assert len(compilations) == before


def test_a_kernel_that_cannot_be_compiled_is_left_to_its_launch(compilations: list[str]) -> None:
    x = channels_last(2, 16, 8, 8)
    assert precompile.compile_for(lambda: pool.MaxPooled.apply(x, 3, 1), "a kind") == 1
    assert compilations == ["_max_pool"]
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        pool.MaxPooled.apply(x, 3, 1)


def test_a_step_that_fails_leaves_nothing_switched_off(compilations: list[str]) -> None:
    def fails() -> None:
        raise ValueError("some reason")

    with pytest.raises(ValueError, match="some reason"):
        precompile.compile_for(fails, "a kind")
    with pytest.raises(RuntimeError, match="cannot be compiled"):  # it is tried, so launches are launches again
        pool.MaxPooled.apply(channels_last(2, 16, 8, 8), 3, 1)


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_compiled_by_launches_later(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    where = setting("cifar", channels=8, cells=3, classes=10, size=16)
    network = build_network(natpp.load("darts"), where).to(device, torch.bfloat16, memory_format=torch.channels_last)
    images = torch.randn(8, 3, 16, 16, device=device, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)

    def step() -> torch.Tensor:
        loss: torch.Tensor = network(images).float().square().mean()
        torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)
        return loss.detach()

    monkeypatch.setattr(precompile, "_NOTES", precompile._Notes())
    for kernel in all_kernels():
        kernel.device_caches.clear()
    assert kernels.compile_ahead(step, device, "a kind") > 10

    def compiled(source: Any, **_: Any) -> None:
        pytest.fail(f"{source.fn} is compiled")

    monkeypatch.setattr(triton.compiler, "compile", compiled)  # of kernels that were never launched
    for kernel in all_kernels():
        monkeypatch.setattr(kernel, "compile", compiled, raising=False)
    assert torch.isfinite(step())
