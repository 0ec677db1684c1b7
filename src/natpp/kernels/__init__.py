"""Convs, batch norms and pools of channels-last tensors on a GPU; faster in training than torch's kernels.

They are written in Triton. Torch operations compute the same without it, on a CPU, for other memory formats, and while
compiling or exporting; also convs in float32, which tensor cores would round. `fast` makes this decision, for convs
with `fits`; `plain` and the environment variable NATPP_KERNELS=plain turn the kernels off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from natpp.errors import SettingError
from natpp.kernels import reference
from natpp.kernels.conv_block import Half, Norm
from natpp.kernels.tiles import aligned

__all__ = ["Half", "Norm", "average_pool", "batch_norm", "compile_ahead", "fast"]
__all__ += ["fits", "max_pool", "plain", "separable"]

LOG = logging.getLogger("natpp")
LARGEST = 2**31 - 2**24  # numbers in a tensor, since offsets have 32 bits
MOST_GROUPS = 2**16 - 1  # limit of a grid's third dimension
POOLS = (3, 5, 7)
WINDOWS = (1, 3, 5, 7)
MOST_CHANNELS = 256  # output channels of a 1x1 conv: its input is read once for every 64 of them
TYPES = (torch.bfloat16, torch.float16, torch.float32)
PRODUCTS = (torch.bfloat16, torch.float16)  # types for tensor cores; float32 they would round, so torch computes it
MOST_PRODUCTS = 2304  # of a merged conv per output, taps times channels; beyond, torch's separable conv is faster
MARGIN = 16  # extra pixels of a buffer per image, in addition to windows
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

    The images are `groups` equal parts, each normalized by its own statistics (groups, channels; at least float32).
    Running statistics, which need a single group, move towards those of the batch by `momentum`.
    """
    if groups < 1 or x.shape[0] % groups:
        raise SettingError(f"{x.shape[0]} images cannot be split into {groups} equal groups")
    if running_mean is not None and groups > 1:
        raise SettingError(f"running statistics need a single group, got {groups}")
    rows = x.numel() // max(groups * x.shape[1], 1)
    if rows > 1 and groups <= MOST_GROUPS and fast(x) and all(map(_simple, (weight, bias, running_mean, running_var))):
        from natpp.kernels.norm import Normalized

        y, mean, var = Normalized.apply(x, weight, bias, float(eps), groups, running_mean, running_var, float(momentum))  # type: ignore[no-untyped-call]
        return y, mean, var
    y, mean, var = reference.batch_norm(x, weight, bias, eps, groups)
    reference.follow(running_mean, running_var, mean, var, rows, momentum)
    return y, mean, var


def separable(x: Tensor, halves: Sequence[Half], groups: int = 1, added: Tensor | None = None) -> Tensor:
    """Images after (ReLU, depthwise conv, 1x1 conv, batch norm) or (ReLU, conv, batch norm) per half, plus `added`."""
    if groups < 1 or x.shape[0] % groups:
        raise SettingError(f"{x.shape[0]} images cannot be split into {groups} equal groups")
    if groups > 1 and any(half.norm.running_mean is not None for half in halves):
        raise SettingError(f"running statistics need a single group, got {groups}")
    dtype = _computed_in(x)
    if fast(x) and fits(x, halves, groups, added):
        from natpp.kernels.separated import Separated

        tensors = [tensor for half in halves for tensor in half.tensors()]
        z: Tensor = Separated.apply(x, tuple(halves), groups, dtype, added, *tensors)  # type: ignore[no-untyped-call]
        return z
    found = reference.separable(x, halves, groups, dtype)
    return found if added is None else added + found


def fits(x: Tensor, halves: Sequence[Half], groups: int = 1, added: Tensor | None = None) -> bool:
    """Whether the kernels can compute these halves for images that are `fast`, and are faster than torch.

    Depthwise and 1x1 conv become one dense conv: faster up to MOST_PRODUCTS taps times channels, and in half precision.
    """
    dtype = _computed_in(x)
    cast = torch.is_autocast_enabled(x.device.type)
    images, channels, *size = x.shape
    pixels = math.prod(size)
    for half in halves:
        stride = half.stride
        if stride not in (1, 2) or half.kernel not in WINDOWS or not 1 <= half.dilation <= 2:
            return False
        if half.depthwise is not None and half.depthwise.shape != (channels, 1, half.kernel, half.kernel):
            return False
        out = half.channels_out
        pointwise = [one for one in (half.pointwise, half.shifted) if one is not None]
        side = half.kernel if half.dense else 1
        if any(one.shape != (len(one), channels, side, side) for one in pointwise) or out > MOST_CHANNELS:
            return False
        if half.shifted is not None and (half.depthwise is not None or stride != 2 or len(halves) > 1):
            return False
        convs = pointwise if half.depthwise is None else [half.depthwise, *pointwise]
        if any(one.dtype not in TYPES if cast else one.dtype != x.dtype for one in convs):
            return False
        if any(one.dtype != halves[0].pointwise.dtype for one in convs) or half.kernel**2 * channels > MOST_PRODUCTS:
            return False
        margin = half.dilation * (half.kernel - 1) + MARGIN
        if images * (size[0] + margin) * (size[1] + margin) * max(channels, out) >= LARGEST:
            return False
        statistics = (half.norm.running_mean, half.norm.running_var)
        windows = half.pointwise if half.dense else None
        if not all(_simple(one, last=one is windows) for one in (*half.tensors(), *statistics)):
            return False
        size = [-(-side // stride) for side in size]
        pixels, channels = math.prod(size), out
        if images // groups * pixels < 2:
            return False
    if added is not None and (not fast(added) or added.dtype != dtype or added.shape != (images, channels, *size)):
        return False
    return dtype in PRODUCTS and groups <= MOST_GROUPS


def _computed_in(x: Tensor) -> torch.dtype:
    """The dtype that convolutions of x compute in: its own, or that of autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def average_pool(x: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """Means over windows around every pixel (or every second one, with stride 2); the padding is not averaged in."""
    if kernel in POOLS and stride in (1, 2) and fast(x):
        from natpp.kernels.pool import Pooled

        y: Tensor = Pooled.apply(x, kernel, stride)  # type: ignore[no-untyped-call]
        return y
    return reference.average_pool(x, kernel, stride)


def max_pool(x: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """Maxima over windows around every pixel (or every second one, with stride 2); ties go to the first."""
    if kernel in POOLS and stride in (1, 2) and fast(x):
        from natpp.kernels.pool import MaxPooled

        y: Tensor = MaxPooled.apply(x, kernel, stride)  # type: ignore[no-untyped-call]
        return y
    return functional.max_pool2d(x, kernel, stride, kernel // 2)


def fast(x: object) -> bool:
    """Whether the kernels accept x: a plain float tensor on a GPU in channels-last memory, while not tracing."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or not (x.is_cuda or _interpreted()):
        return False
    return (
        x.dim() == 4
        and x.dtype in TYPES
        and 0 < x.numel() < LARGEST
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.onnx.is_in_onnx_export()
        and aligned(x)
        and not _PLAIN.get()
        and _available(x.device)
    )


def compile_ahead(step: Callable[[], object], device: torch.device, kind: Hashable) -> int:
    """Compile the kernels that a step needs on all CPU cores; returns their number. The step's results are undefined.

    The step must not read values. Once a step of a kind needed no new kernels, later ones of that kind are skipped.
    """
    if device.type != "cuda" or _PLAIN.get() or _interpreted() or not _available(device):
        return 0
    from natpp.kernels.precompile import compile_for

    return compile_for(step, kind)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Use torch's operations inside this context; backward passes follow their forward passes."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


def _interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels on a CPU, as in the tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _available(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device, and are not turned off; logged once."""
    what = f"separable convs, batch norms and pools on {device}"
    if os.environ.get("NATPP_KERNELS") == "plain":
        LOG.info("%s: using torch's kernels, since NATPP_KERNELS is plain", what)
        return False
    if importlib.util.find_spec("triton") is None:
        LOG.warning("%s: using torch's slower kernels, since triton is not installed", what)
        return False
    from natpp.kernels.probe import trial

    obstacle = trial(device)
    if obstacle is not None:
        LOG.warning("%s: using torch's slower kernels, since triton cannot compile here: %s", what, obstacle)
        return False
    LOG.info("%s: using natpp's kernels, except for separable convs in float32", what)
    return True


def _simple(parameter: Tensor | None, *, last: bool = False) -> bool:
    """Whether a weight or statistic is None or a plain contiguous tensor; `last` also allows channels-last memory."""
    if parameter is None:
        return True
    in_a_row = parameter.is_contiguous() or (last and parameter.is_contiguous(memory_format=torch.channels_last))
    return in_a_row and type(parameter) in (Tensor, nn.Parameter)
