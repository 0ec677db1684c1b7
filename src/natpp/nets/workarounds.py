"""Workarounds for wrong or slow torch functions on channels-last tensors on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MOST_GROUPS = 3  # maximum groups of a 1x1 convolution to compute it densely; measured to be faster up to here


class Workarounds(TorchFunctionMode):
    """Replaces some torch functions for channels-last images on a GPU while active; outputs stay channels-last.

    Average pools with padding run on contiguous images: in channels-last memory their gradients on a GPU are wrong in
    torch, at least up to 2.11 (pytorch#188344). 1x1 convolutions with two or three groups become dense: for grouped
    ones, cuDNN copies images before and after (`benchmarks/workarounds.py`).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call: Callable[..., Any] = DETOURS.get(func, func)
        return call(*args, **(kwargs or {}))


def workarounds(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """`Workarounds` if the device needs them."""
    return Workarounds() if device.type == "cuda" else contextlib.nullcontext()


def _pooled(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **options: Any
) -> Tensor:
    if not _last(input) or padding in (0, (0, 0), [0, 0]):
        return functional.avg_pool2d(input, kernel_size, stride, padding, *rest, **options)
    found = functional.avg_pool2d(input.contiguous(), kernel_size, stride, padding, *rest, **options)
    return found.contiguous(memory_format=torch.channels_last)


def _convolved(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    few = 1 < groups <= MOST_GROUPS and weight.shape[0] % groups == 0
    if few and weight.shape[1] > 1 and weight.shape[2:] == (1, 1) and _last(input):  # depthwise is fast already
        blocks: Tensor = torch.block_diag(*weight.flatten(1).chunk(groups))  # type: ignore[no-untyped-call]
        weight, groups = blocks[:, :, None, None], 1
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _last(images: Tensor) -> bool:
    return images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)


DETOURS: dict[Callable[..., Any], Callable[..., Tensor]]
DETOURS = {functional.avg_pool2d: _pooled, functional.conv2d: _convolved}
