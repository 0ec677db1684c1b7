"""The bytes that kernels read and write, as the benchmark of trainings counts them: counted by hand for a pool."""

import os
import runpy
from pathlib import Path

import pytest
import torch

from natpp import kernels

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "training.py"
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_pool_reads_and_writes_each_side_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARK.parent)  # it imports its neighbours
    counting = runpy.run_path(str(BENCHMARK))["counting"]
    x = torch.ones(2, 16, 8, 8, device=device).to(memory_format=torch.channels_last).requires_grad_()
    dy = torch.ones_like(x)
    assert kernels.fast(x)
    with counting() as found:
        y = kernels.average_pool(x, 3)
    assert found.total == 2 * x.nbytes
    with counting() as found:
        torch.autograd.grad(y, x, dy)
    assert found.total == 2 * x.nbytes
