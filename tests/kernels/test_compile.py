"""Kernels compiled for a GPU that is not there: what the interpreter lets pass, the compiler may not.

What would be launched is recorded, and compiled for an H200 down to its machine code; the assembler comes with Triton.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from natpp.kernels import Half, Norm

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: pip install natpp[triton]", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled under the interpreter", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED = 227 * 1024  # bytes that a program may have on an H200
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8", torch.int32: "i32"}


def launched(
    run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The kernels that would be launched, with their arguments and options."""
    found: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(
        JITFunction, "run", lambda kernel, *given, grid, warmup, **options: found.append((kernel, given, options))
    )
    run()
    return found


def compiled(kernel: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """As Triton does before it launches: constants are built in, and addresses known to be even, if that may be."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for place, (parameter, value) in enumerate(zip(kernel.params, given, strict=True)):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(place,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + NAMES[value.dtype]
            if not parameter.do_not_specialize:
                assert value.data_ptr() % 16 == 0
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
            assert isinstance(value, float) or parameter.do_not_specialize  # else every new size is compiled anew
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def check(run: Callable[[], object], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        found = launched(run, patch)
    assert len(found) == count
    for kernel, given, options in found:
        made = compiled(kernel, given, options)
        assert made.metadata.shared <= SHARED, kernel
        assert made.asm["cubin"]


def halves(channels: int, kernel: int, count: int, dtype: torch.dtype, *, running: bool = False) -> list[Half]:
    made = []
    for _ in range(count):
        depthwise = None if kernel == 1 else torch.zeros(channels, 1, kernel, kernel, dtype=dtype).requires_grad_()
        statistics = (torch.zeros(channels), torch.ones(channels)) if running else (None, None)
        norm = Norm(torch.ones(channels), torch.zeros(channels), 1e-5, *statistics)
        made.append(Half(depthwise, torch.zeros(channels, channels, 1, 1, dtype=dtype).requires_grad_(), norm))
    return made


def separable(
    images: int, channels: int, kernel: int, count: int, dtype: torch.dtype, **options: bool
) -> Callable[[], object]:
    """Forward and backward."""
    from natpp.kernels.separated import Separated

    some = halves(channels, kernel, count, dtype, **options)
    x = torch.zeros(images, channels, 32, 32, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> None:
        z = Separated.apply(x, some, 1, dtype, None, *(tensor for half in some for tensor in half.tensors()))
        torch.autograd.grad(z, x, torch.zeros_like(z))

    return run


@pytest.mark.parametrize(
    ("channels", "kernel", "count", "dtype", "launches"),
    [
        (16, 3, 2, torch.bfloat16, 11),  # the number of launches is what a step of a small network costs
        (20, 5, 2, torch.bfloat16, 11),
        (32, 3, 2, torch.bfloat16, 11),
        (64, 1, 1, torch.float32, 7),
    ],
)
def test_separable(
    channels: int, kernel: int, count: int, dtype: torch.dtype, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(separable(8, channels, kernel, count, dtype, running=count > 1), launches, monkeypatch)


@pytest.mark.parametrize("kind", ["factorized", "dense"])
def test_other_convs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from natpp.kernels.separated import Separated

    (half,) = halves(16, 1, 1, torch.bfloat16)
    if kind == "factorized":
        half = dataclasses.replace(half, pointwise=half.pointwise[:8], shifted=half.pointwise[8:], stride=2)
    else:
        windows = torch.zeros(16, 16, 3, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        half = dataclasses.replace(half, pointwise=windows.requires_grad_())
    x = torch.zeros(2, 16, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> None:
        z = Separated.apply(x, [half], 1, torch.bfloat16, None, *half.tensors())
        torch.autograd.grad(z, x, torch.zeros_like(z))

    check(run, 7, monkeypatch)


def test_strips() -> None:
    """As many pixels as a product takes; fewer where less is read of a row so."""
    from natpp.kernels.geometry import Conv

    def strip(width: int, channels: int, kernel: int, stride: int = 1, dilation: int = 1) -> tuple[int, int, int]:
        conv = Conv(2, width, width, channels, channels, kernel, stride, dilation)
        return conv.strip, conv.span, conv.across

    assert strip(32, 16, 3) == (4, 6, 8)
    assert strip(32, 20, 5) == (3, 7, 11)  # the last has two pixels
    assert strip(16, 32, 3) == (2, 4, 8)
    assert strip(8, 64, 3) == (1, 3, 8)
    assert strip(32, 16, 3, stride=2) == (4, 9, 8)
    assert strip(32, 16, 5, dilation=2) == (4, 12, 8)
    assert strip(9, 16, 1) == (3, 3, 3)  # x itself is read: no strip may go beyond its row
    assert strip(7, 20, 1) == (1, 1, 7)
    assert strip(4, 144, 3) == (1, 3, 4)


def test_windows_are_copied_while_others_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide copies that nobody waits for, and tensor cores: what the speed hangs on."""
    for channels, width in ((16, 16), (20, 8)):
        with monkeypatch.context() as patch:
            found = launched(separable(8, channels, 3, 1, torch.bfloat16), patch)
        made = {kernel.__name__: compiled(kernel, given, options) for kernel, given, options in found}
        for name in ("forward", "backward"):
            code = made[name].asm["ptx"]
            assert "wgmma.mma_async" in code
            copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?, 0x([0-9a-f]+)", code)
            assert copies
            assert min(int(one, 16) for one in copies) >= width
            assert ".b16" not in "".join(re.findall(r"(?:ld|st)\.global\S*", code))  # one by one


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("channels", [7, 20, 32, 64, 144, 256])
def test_many(channels: int, kernel: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    check(separable(2, channels, kernel, 2, dtype), 11, monkeypatch)


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(16, 3, 1), (36, 5, 2)])
def test_max_pools(channels: int, kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from natpp.kernels.pool import MaxPooled

    x = torch.zeros(2, channels, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> None:
        y = MaxPooled.apply(x, kernel, stride)
        torch.autograd.grad(y, x, torch.zeros_like(y))

    check(run, 2, monkeypatch)
