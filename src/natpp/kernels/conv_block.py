"""The parts of a separable convolution, shared by the kernels and their torch implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A batch norm that uses batch statistics and, if it has running statistics, updates them."""

    weight: Tensor
    bias: Tensor
    eps: float = 1e-5
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    momentum: float = 0.1

    def __post_init__(self) -> None:  # momentum is often given as the integer 1
        object.__setattr__(self, "eps", float(self.eps))
        object.__setattr__(self, "momentum", float(self.momentum))


@dataclass(frozen=True)
class Half:
    """ReLU, depthwise conv (k x k), 1x1 conv, batch norm; or ReLU, conv (k x k or 1x1), batch norm; the size stays.

    In a factorized reduction, a second 1x1 conv, on the shifted input, makes the remaining channels; both have
    stride 2.
    """

    depthwise: Tensor | None  # (channels, 1, k, k)
    pointwise: Tensor  # (channels out, channels, 1, 1), or (…, k, k) without a depthwise conv
    norm: Norm
    stride: int = 1
    dilation: int = 1
    shifted: Tensor | None = None  # (remaining channels out, channels, 1, 1)

    @property
    def channels_out(self) -> int:
        """Output channels of both 1x1 convs together."""
        return len(self.pointwise) + (0 if self.shifted is None else len(self.shifted))

    @property
    def kernel(self) -> int:
        """The side length of the windows."""
        return (self.pointwise if self.depthwise is None else self.depthwise).shape[2]

    @property
    def dense(self) -> bool:
        """Whether it is a single k x k conv, without a depthwise one."""
        return self.depthwise is None and self.kernel > 1

    def tensors(self) -> list[Tensor]:
        """The tensors that get gradients."""
        convs = (self.depthwise, self.pointwise, self.shifted)
        return [*(one for one in convs if one is not None), self.norm.weight, self.norm.bias]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Half:
        """The same half with other tensors, in the order of `tensors`; running statistics stay the same."""
        *convs, weight, bias = tensors
        norm = replace(self.norm, weight=weight, bias=bias, running_mean=None, running_var=None)
        given = iter(convs)
        return replace(
            self,
            depthwise=None if self.depthwise is None else next(given),
            pointwise=next(given),
            shifted=None if self.shifted is None else next(given),
            norm=norm,
        )
