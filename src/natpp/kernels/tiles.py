"""How kernels divide a channels-last tensor into tiles: pixels are rows, channels are columns."""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor


def columns_of(channels: int) -> tuple[int, int]:
    """Columns of a tile, and the width of loads: the largest power of two up to 16 that divides the channels.

    There are few different widths, so that few kernels are compiled. 32 columns of bf16 fill two memory sectors; if 32
    does not divide the channels, tiles get 64, since much of the last one would be empty.
    """
    if channels <= 16:
        width = 16
    elif channels <= 32 or channels % 32 == 0:
        width = 32
    else:
        width = 64
    return width, math.gcd(channels, 16)


class Shares(NamedTuple):
    """How pixels or strips are divided: `share` of them for each of `blocks` programs."""

    share: int
    blocks: int


def divided(count: int, tile: int, most: int, least: int) -> Shares:
    """At most `most` programs with at least `least` whole tiles each; no program is empty."""
    tiles = -(-count // tile)
    share = max(-(-tiles // max(most, 1)), least) * tile
    return Shares(share, -(-count // share))


def in_rows(tensor: Tensor) -> Tensor:
    """The tensor with memory (images, height, width, channels), aligned for wide loads; copied only if necessary."""
    tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor if aligned(tensor) else tensor.clone(memory_format=torch.channels_last)


def in_steps(tensor: Tensor, align: int) -> tuple[Tensor, int]:
    """The tensor (also a slice of channels), and the step to the next pixel; copied if steps vary or are unaligned."""
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
    """Whether its memory is aligned to 16 bytes, as compiled kernels assume."""
    return tensor.data_ptr() % 16 == 0


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the tensor's device the current one, on which Triton launches."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
