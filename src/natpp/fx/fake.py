"""Values of nodes without data: fake tensors of `torch`, with the shape, type and device of the real ones."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves, tree_map_only

from natpp.fx.alike import Untold, call_key, like
from natpp.fx.traced import CONSTANT, VALUE, TraceError

Watch = Callable[[], AbstractContextManager[Any]]


class Values:
    """Computes the value of a node from those of the nodes it reads; `find` gives the part at a path.

    `known` has what calls made, by their keys; such calls are not run again.
    """

    def __init__(self, find: Callable[[str], Any], known: dict[Hashable, Any] | None = None):
        self.find = find
        self.known: dict[Hashable, Any] = {} if known is None else known
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(self, tree: Any) -> Any:
        """The same with fake tensors in place of tensors."""
        return tree_map_only(Tensor, self.mode.from_tensor, tree)

    def of(self, node: Node) -> Any:
        """The value of a node that calls something or names a parameter or buffer."""
        if node.op == "get_attr":
            held = self.find(str(node.target))
            found = self.fake(held)
            if str(node.target).startswith(CONSTANT) and isinstance(found, FakeTensor) and found.numel() == 1:
                found.constant = held.detach()  # reading the number in a constant does not depend on data
            return found
        args, kwargs = _read(node)
        module = self.find(str(node.target)) if node.op == "call_module" else None
        known = plain_value(module, args[0]) if module is not None and len(args) == 1 and not kwargs else None
        return self._once(node, args, kwargs) if known is None else known

    def _once(self, node: Node, args: Any, kwargs: Any) -> Any:
        """The value of a call, which is run only if no call with the same key has been."""
        key = self.key(node)
        if key is not None and key in self.known:
            return self._again(self.known[key], tree_leaves((args, kwargs)))
        found = self.run(node, contextlib.nullcontext)
        if key is not None and self.key(node) == key:  # it has not changed the shapes of what it read
            with contextlib.suppress(Untold):
                self.known[key] = like(found, (args, kwargs), _Made)
        return found

    def key(self, node: Node) -> Hashable | None:
        """The key of a node that calls something; None if it has none."""
        target = self.find(str(node.target)) if node.op == "call_module" else node.target
        return call_key(target, *_read(node))

    def _again(self, known: Any, given: list[Any]) -> Any:
        if isinstance(known, _Made):
            return known.fake(self.mode)
        return given[known] if isinstance(known, int) else type(known)([self._again(one, given) for one in known])

    def run(self, node: Node, watch: Watch) -> Any:
        """The value of a node that calls something, run under a new context manager, such as a counter."""
        args, kwargs = _read(node)
        module = self.find(str(node.target)) if node.op == "call_module" else None
        try:
            with self.mode, torch.no_grad(), watch():
                if node.op == "call_function":
                    return node.target(*args, **kwargs)  # type: ignore[operator]
                if module is None:
                    return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                return module(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if module is None:
                raise TraceError("its control flow depends on the data in a tensor") from None
            return self._run_once(module, args, kwargs, watch)

    def _run_once(self, module: nn.Module, args: Any, kwargs: Any, watch: Watch) -> Any:
        """The value of a module that reads the data of a tensor: it is run on random data of the right shapes."""
        generator = torch.Generator().manual_seed(0)

        def filled(leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point():
                return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
            return torch.randn(leaf.shape, generator=generator).to(leaf.device, leaf.dtype)

        module = copy.deepcopy(module)
        with torch.no_grad(), watch():
            found = module(*tree_map_only(Tensor, filled, args), **tree_map_only(Tensor, filled, kwargs))
        return self.fake(found)


class _Made:
    """The shape and type of a tensor that a call made."""

    def __init__(self, tensor: Tensor):
        self.sides, self.device = (tensor.shape, tensor.stride()), tensor.device
        self.dtype = tensor.dtype

    def fake(self, mode: FakeTensorMode) -> Tensor:
        """A new fake tensor like it."""
        return FakeTensor(mode, torch.empty_strided(*self.sides, dtype=self.dtype, device="meta"), self.device)


def _read(node: Node) -> tuple[Any, Any]:
    """The arguments of a node, by the values of the nodes that it reads."""
    read: Any = fx.node.map_arg((node.args, node.kwargs), lambda read: read.meta[VALUE])
    return read[0], read[1]


def plain_value(module: nn.Module, x: Any) -> Tensor | None:
    """The value of a plain layer on a plain feature map, ten times faster than with torch; otherwise None."""
    place = x.device.type if isinstance(x, FakeTensor) else ""
    if place not in ("cpu", "cuda") or x.dim() != 4 or not x.is_floating_point():
        return None
    if type(module) is nn.BatchNorm2d:
        return _empty(x, x.shape) if x.shape[1] == module.num_features else None
    if module._forward_hooks or module._forward_pre_hooks or torch.is_autocast_enabled(place) or not _row_major(x):
        return None
    if type(module) is nn.ReLU:
        return x if module.inplace else _empty(x, x.shape)
    if type(module) is nn.Conv2d and (sides := _sides(module, x)) and min(sides) > 0:
        return _empty(x, (x.shape[0], module.out_channels, *sides))
    return None


def _sides(conv: nn.Conv2d, x: FakeTensor) -> tuple[int, ...]:
    """Height and width of a convolution's output; empty if the convolution is not a plain one."""
    weight, padding = conv.weight, conv.padding
    alike = (weight.device, weight.dtype) == (x.device, x.dtype) and x.shape[1] == conv.in_channels
    if not alike or not _row_major(weight) or conv.padding_mode != "zeros" or isinstance(padding, str):
        return ()
    geometry = zip(x.shape[2:], conv.kernel_size, conv.stride, padding, conv.dilation, strict=True)
    return tuple((side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in geometry)


def _empty(like: FakeTensor, shape: Sequence[int]) -> Tensor:
    """A new fake tensor like another one, created without going through the mode."""
    if not _row_major(like):
        with like.fake_mode:
            return torch.empty_like(like)
    return FakeTensor(like.fake_mode, torch.empty(shape, dtype=like.dtype, device="meta"), like.device)


def _row_major(x: Tensor) -> bool:
    """Whether the strides are exactly row-major, even in dimensions of size 1."""
    _, channels, height, width = x.shape
    return x.stride() == (channels * height * width, height * width, width, 1)
