"""Ways round what torch does wrongly or slowly on a GPU in channels-last memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MOST_GROUPS = 3  # of a 1x1 convolution that is computed densely: up to so many that was measured to be faster


class Workarounds(TorchFunctionMode):
    """While it lasts, some functions of torch go another way where images are in channels-last memory; they stay so.

    Average pools with padding work on contiguous images: torch up to 2.11 at least has wrong gradients for them on a
    GPU, without a word (pytorch#188344). 1x1 convolutions of two or three groups become dense ones, with zeros between
    the groups: cuDNN copies images for them before and after (`benchmarks/workarounds.py`).

    Examples:
        >>> x = torch.ones(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
        >>> with Workarounds():
        ...     y = functional.avg_pool2d(x, 3, stride=1, padding=1)
        >>> y.is_contiguous(memory_format=torch.channels_last)
        True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call: Callable[..., Any] = DETOURS.get(func, func)
        return call(*args, **(kwargs or {}))


def workarounds(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """`Workarounds` where they are needed."""
    return Workarounds() if device.type == "cuda" else contextlib.nullcontext()


def _pooled(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *rest: Any,
    **options: Any,
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
    if few and weight.shape[1] > 1 and weight.shape[2:] == (1, 1) and _last(input):  # those of one channel are fast
        blocks: Tensor = torch.block_diag(*weight.flatten(1).chunk(groups))  # type: ignore[no-untyped-call]
        weight, groups = blocks[:, :, None, None], 1
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _last(images: Tensor) -> bool:
    return images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)


DETOURS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.avg_pool2d: _pooled,
    functional.conv2d: _convolved,
}
