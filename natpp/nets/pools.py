"""Average pools of torch in channels-last memory, where their gradients are wrong on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class RightPools(TorchFunctionMode):
    """While it lasts, average pools with padding work on contiguous images; those in channels-last memory stay so.

    Torch up to 2.11 at least has wrong gradients for them on a GPU, without a word (pytorch#188344), whether a module
    pools or a function.

    Examples:
        >>> x = torch.ones(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
        >>> with RightPools():
        ...     y = functional.avg_pool2d(x, 3, stride=1, padding=1)
        >>> y.is_contiguous(memory_format=torch.channels_last)
        True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = _pooled if func is functional.avg_pool2d else func
        return call(*args, **(kwargs or {}))


def right_pools(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """`RightPools` where they are needed."""
    return RightPools() if device.type == "cuda" else contextlib.nullcontext()


def _pooled(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *rest: Any,
    **options: Any,
) -> Tensor:
    last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
    if not last or padding in (0, (0, 0), [0, 0]):
        return functional.avg_pool2d(input, kernel_size, stride, padding, *rest, **options)
    found = functional.avg_pool2d(input.contiguous(), kernel_size, stride, padding, *rest, **options)
    return found.contiguous(memory_format=torch.channels_last)
