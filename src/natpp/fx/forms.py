"""What convolutions and poolings look like: the form of a module or a functional call, and the operation it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.fx.node import Node

from natpp.arch.layers import Form
from natpp.arch.modules import MaxPool2d
from natpp.fx.traced import value
from natpp.registry import OPS


def module_form(module: nn.Module, node: Node, pad: tuple[int, ...] | None) -> Form | None:
    """The form of a convolution or pooling that is called as a module; `pad` is a separate padding before."""
    if isinstance(module, nn.Conv2d) and all(
        getattr(type(module), name) is getattr(nn.Conv2d, name) for name in ("forward", "_conv_forward")
    ):
        if module.padding_mode != "zeros":
            return None
        channels = module.in_channels, module.out_channels
        geometry = module.kernel_size, module.stride, padded(module.padding, pad), module.dilation
        return conv_form(*channels, *geometry, module.groups, module.bias is not None)
    if pad is not None or not is_map(node):
        return None
    if type(module) in (nn.MaxPool2d, MaxPool2d) and module.dilation in (1, (1, 1)) and not module.return_indices:
        return pool_form("max", module.kernel_size, module.stride, channels_of(node))
    if type(module) is nn.AvgPool2d and module.divisor_override is None:
        return pool_form("avg", module.kernel_size, module.stride, channels_of(node))
    return None


def conv_form(
    channels_in: int, channels_out: int, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int, bias: bool
) -> Form | None:
    """The form of a convolution; None unless it is square and padded to keep the size (halved at stride 2)."""
    side, step, gap = (square(given) for given in (kernel, stride, dilation))
    if side is None or step not in (1, 2) or gap is None:
        return None
    same = gap * (side // 2)
    if padding == "same":
        fits = step == 1 or side == 1
    elif isinstance(padding, tuple) and len(padding) == 4:
        fits = all(same - (step - 1) <= one <= same for one in padding)  # at stride 2 one pixel may be left out
    else:
        fits = square(0 if padding == "valid" else padding) == same
    return Form("conv", side, channels_in, channels_out, step, gap, groups, bias) if fits else None


def padded(own: Any, pad: tuple[int, ...] | None) -> Any:
    """The padding of a convolution: its own, or the four sides of a separate one before; None if it has both."""
    return own if pad is None else pad if own == "valid" or square(own) == 0 else None


def pool_form(kind: str, kernel: Any, stride: Any, channels: int) -> Form | None:
    """The form of a pooling; None if it is not square."""
    side, step = square(kernel), square(kernel if stride in (None, ()) else stride)
    if side is None or step not in (1, 2):
        return None
    return Form(kind, side, channels, channels, step)


def op_of(form: Form) -> str | None:
    """The operation that looks like this at a site, or None."""
    return next((name for name, op in OPS.items() if op.looks == form.looks), None)


def arguments_of(node: Node, names: str, defaults: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of a functional call by name."""
    order = names.split()
    return dict(zip(order, defaults, strict=True)) | dict(zip(order, node.args, strict=False)) | dict(node.kwargs)


def square(given: Any) -> int | None:
    """The one number of a square setting."""
    if isinstance(given, int):
        return given
    if isinstance(given, (tuple, list)) and len(set(given)) == 1 and isinstance(given[0], int):
        return given[0]
    return None


def is_map(node: Node) -> bool:
    """Whether a node is a feature map: (batch, channels, height, width)."""
    known = value(node)
    return isinstance(known, Tensor) and known.dim() == 4 and known.is_floating_point()


def channels_of(node: Node) -> int:
    return int(value(node).shape[1])
