"""What a separable convolution is made of, for kernels and for torch's operations alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A batch norm that takes the statistics of the batch, with the running ones that follow them, if any."""

    weight: Tensor
    bias: Tensor
    eps: float = 1e-5
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    momentum: float = 0.1


@dataclass(frozen=True)
class Half:
    """ReLU, depthwise conv (k x k, or none), 1x1 conv, batch norm; the padding keeps the size."""

    depthwise: Tensor | None  # (channels, 1, k, k)
    pointwise: Tensor  # (channels out, channels, 1, 1)
    norm: Norm
    stride: int = 1
    dilation: int = 1

    @property
    def kernel(self) -> int:
        """The side of the windows, 1 without a depthwise conv."""
        return 1 if self.depthwise is None else self.depthwise.shape[2]

    def tensors(self) -> list[Tensor]:
        """What has gradients."""
        first = [] if self.depthwise is None else [self.depthwise]
        return [*first, self.pointwise, self.norm.weight, self.norm.bias]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Half:
        """The same with others, in the order of `tensors`; running statistics stay as they are."""
        *first, pointwise, weight, bias = tensors
        norm = replace(self.norm, weight=weight, bias=bias, running_mean=None, running_var=None)
        return replace(self, depthwise=first[0] if first else None, pointwise=pointwise, norm=norm)
