"""How a channels-last tensor is cut for the kernels: its pixels are rows, its channels columns."""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def columns_of(channels: int) -> tuple[int, int]:
    """Columns of a tile, and the largest power of two up to 16 that divides the channels: loads are that wide.

    Few widths, so that few kernels are compiled: 32 columns of bf16 fill two sectors of memory; a number of channels
    that 32 does not divide would leave much of the last tile empty, and its rows start anywhere, so it gets 64.
    """
    if channels <= 16:
        width = 16
    elif channels <= 32 or channels % 32 == 0:
        width = 32
    else:
        width = 64
    return width, math.gcd(channels, 16)


def in_rows(tensor: Tensor) -> Tensor:
    """The tensor with memory (images, height, width, channels) that starts where wide loads may; itself if it has."""
    tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor if aligned(tensor) else tensor.clone(memory_format=torch.channels_last)


def aligned(tensor: Tensor) -> bool:
    """Whether its memory starts at 16 bytes, as kernels are compiled for."""
    return tensor.data_ptr() % 16 == 0


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
