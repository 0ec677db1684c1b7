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


def in_steps(tensor: Tensor, align: int) -> tuple[Tensor, int]:
    """The tensor, and how many numbers a pixel is after the one before it; a copy where it is not so or loads are odd.

    Part of the channels of a larger tensor, as the gradient of a concatenation is, is taken as it lies.
    """
    _, channels, height, width = tensor.shape
    step = tensor.stride(3) if width > 1 else tensor.stride(2) if height > 1 else tensor.stride(0)
    wanted = (height * width * step, 1, width * step, step)
    even = all(
        size == 1 or stride == want for size, stride, want in zip(tensor.shape, tensor.stride(), wanted, strict=True)
    )
    last = tensor.shape[0] * height * width * step
    if even and step >= channels and step % align == 0 and last < 2**31 - 2**24 and aligned(tensor):
        return tensor, step
    return in_rows(tensor), channels


def aligned(tensor: Tensor) -> bool:
    """Whether its memory starts at 16 bytes, as kernels are compiled for."""
    return tensor.data_ptr() % 16 == 0


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
