"""One tiny kernel, to see whether Triton can compile and launch on a device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from natpp.kernels.tiles import on_device_of


def trial(device: torch.device) -> None:
    """An error of Triton's where it cannot."""
    place = torch.zeros(1, device=device)
    with on_device_of(place):
        _write[(1,)](place, enable_fp_fusion=True)


@triton.jit
def _write(place):
    tl.store(place, 1.0)
