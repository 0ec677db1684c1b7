"""Batch norms in training and average pools of channels-last tensors on a GPU, faster than torch's own kernels.

Kernels are in Triton, which comes with torch for GPUs. Where it is missing, on a CPU, for other memory layouts and
while a compiler or an export looks on, the same is composed of torch's operations. One place decides, `fast`; `plain`
and the environment's NATPP_KERNELS=plain switch the kernels off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from natpp.errors import SettingError
from natpp.kernels import composed
from natpp.kernels.tiles import aligned

LOG = logging.getLogger("natpp")
LARGEST = 2**31 - 2**24  # numbers in a tensor: places are counted in 32 bits
MOST_GROUPS = 2**16 - 1  # of a grid's third side
POOLS = (3, 5, 7)
_PLAIN: ContextVar[bool] = ContextVar("natpp_plain_kernels", default=False)


def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    groups: int = 1,
    *,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Images (images, channels, height, width) normalized by batch statistics, and these: mean, biased variance.

    The images are `groups` equal parts, one after the other; each is normalized by itself, then all get the same
    weight and bias. Mean and variance are (groups, channels), have no gradients, and are at least in float32. Running
    statistics, for one group only, are moved towards those of the batch by `momentum`.
    """
    if groups < 1 or x.shape[0] % groups:
        raise SettingError(f"{x.shape[0]} images are not {groups} equal groups")
    if running_mean is not None and groups > 1:
        raise SettingError(f"running statistics are of one group, not of {groups}")
    rows = x.numel() // max(groups * x.shape[1], 1)
    if rows > 1 and groups <= MOST_GROUPS and fast(x) and all(map(_simple, (weight, bias, running_mean, running_var))):
        from natpp.kernels.norm import Normalized

        y, mean, var = Normalized.apply(x, weight, bias, float(eps), groups, running_mean, running_var, float(momentum))  # type: ignore[no-untyped-call]
        return y, mean, var
    y, mean, var = composed.batch_norm(x, weight, bias, eps, groups)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean[0].to(running_mean.dtype), momentum)
            running_var.lerp_((var[0] * (rows / (rows - 1))).to(running_var.dtype), momentum)
    return y, mean, var


def average_pool(x: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """Means over windows around every pixel (or every second one, with stride 2); what is outside is left out."""
    if kernel in POOLS and stride in (1, 2) and fast(x):
        from natpp.kernels.pool import Pooled

        y: Tensor = Pooled.apply(x, kernel, stride)  # type: ignore[no-untyped-call]
        return y
    return composed.average_pool(x, kernel, stride)


def fast(x: object) -> bool:
    """Whether the kernels take this: a plain tensor of floats on a GPU in channels-last memory, and nobody looks on."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or not (x.is_cuda or _interpreted()):
        return False
    return (
        x.dim() == 4
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and 0 < x.numel() < LARGEST
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.onnx.is_in_onnx_export()
        and aligned(x)
        and not _PLAIN.get()
        and _available(x.device)
    )


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Torch's own operations inside of this; gradients go the way that their forward pass went."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


def _interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU: the tests do that."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _available(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device, and should; the log says it once."""
    what = f"batch norms and average pools on {device}"
    if os.environ.get("NATPP_KERNELS") == "plain":
        LOG.info("%s: torch's kernels, since NATPP_KERNELS is plain", what)
        return False
    if importlib.util.find_spec("triton") is None:
        LOG.warning("%s: torch's kernels, which take longer, since triton is not installed", what)
        return False
    from natpp.kernels.trial import trial

    obstacle = trial(device)
    if obstacle is not None:
        LOG.warning("%s: torch's kernels, which take longer, since triton cannot compile here: %s", what, obstacle)
        return False
    LOG.info("%s: natpp's kernels", what)
    return True


def _simple(parameter: Tensor | None) -> bool:
    """Whether a weight or statistic is one plain row of numbers, or none."""
    return parameter is None or parameter.is_contiguous()
