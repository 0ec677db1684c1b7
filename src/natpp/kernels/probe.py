"""A tiny kernel to test whether Triton can compile and launch on a device."""

from __future__ import annotations

import subprocess

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

from natpp.kernels.tiles import on_device_of


def trial(device: torch.device) -> str | None:
    """The reason why Triton does not work here, if any; often a missing C compiler or missing Python headers."""
    place = torch.zeros(1, device=device)
    try:
        with on_device_of(place):
            _write[(1,)](place, enable_fp_fusion=True)
    except (RuntimeError, OSError, subprocess.CalledProcessError, TritonError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


@triton.jit
def _write(place):
    tl.store(place, 1.0)
