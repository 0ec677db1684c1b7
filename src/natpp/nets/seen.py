"""Passes that compute nothing: operations whose output shapes are known from an earlier pass make empty tensors.

The cost of a module depends on shapes only. So the first pass of a module runs in full, and later passes of the module,
or of others made from it, run only the operations that the first one did not have. That is not possible if shapes may
depend on data: then every pass runs in full.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Made = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
KNOWN = ("aten", "prim", "prims")  # namespaces of operations whose tags are complete
ON_DATA = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded)
PLACES = re.compile("max_pool|::max$|::min$|max.dim|min.dim")  # these also return where the largest numbers are
MASKS = (torch.bool, torch.uint8)


class Seen:
    """What operations made in earlier passes, by what they were given."""

    def __init__(self) -> None:
        self.made: dict[Hashable, tuple[bool, list[Made]]] = {}
        self.full = False
        """whether a pass has been run in full"""
        self.on_data = False
        """whether shapes may depend on data"""

    def watched(self, module: nn.Module) -> Unfilled:
        """A mode for a pass of a module: it records what operations make, or makes it again without computing it."""
        return Unfilled(self, module)


class Unfilled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes empty tensors for operations that were seen, and runs all others."""

    def __init__(self, seen: Seen, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.skips = seen, seen.full and not seen.on_data
        self.own = {id(one.untyped_storage()) for one in (*module.parameters(), *module.buffers())}

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.seen.full |= raised[0] is None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        key = None
        if _pure(func) and all(map(_plain, tensors)):
            key = func, _told(args), *((name, _told(one)) for name, one in kwargs.items())
            if self.skips and key in self.seen.made:
                alone, made = self.seen.made[key]
                found = [torch.empty_strided(size, steps, dtype=kind, device=at) for size, steps, kind, at in made]
                return found[0] if alone else tuple(found)
        out = func(*args, **kwargs)
        outs = out if isinstance(out, tuple | list) else [out]
        self.seen.on_data |= _on_data(func, tensors, outs) or any(map(self._foreign, tensors))
        held = {id(one.untyped_storage()) for one in tensors} if key is not None else set()
        if key is not None and all(_plain(one) and _alone(one, held) for one in outs):
            made = [(one.shape, one.stride(), one.dtype, one.device) for one in outs]
            self.seen.made[key] = isinstance(out, Tensor), made
        return out

    def _foreign(self, tensor: Tensor) -> bool:
        """Whether a tensor has integers that may have been computed from data, such as indices."""
        return _counts(tensor) and id(tensor.untyped_storage()) not in self.own


def _on_data(func: Any, tensors: Sequence[Tensor], outs: Sequence[Any]) -> bool:
    """Whether what an operation makes of arbitrary numbers may differ in shape, or be an error."""
    if func is torch.ops.aten.index.Tensor:  # only the shape of what a mask selects does
        return any(one.dtype in MASKS for one in tensors[1:])
    counts = any(isinstance(one, Tensor) and _counts(one) for one in outs)  # such as places, or codes of errors
    known = func.namespace in KNOWN and not any(tag in func.tags for tag in ON_DATA)
    return not known or (counts and any(map(_plain, tensors)) and not PLACES.search(func.name()))


def _counts(tensor: Tensor) -> bool:
    """Whether a tensor has integers."""
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operation."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for one in tree:
            yield from tensors_in(one)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


def _told(tree: Any) -> Hashable:
    """What an operation was given, with tensors told by shape and type."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.stride(), tree.dtype, tree.device
    if isinstance(tree, tuple | list):
        return tuple(map(_told, tree))
    return type(tree), tree


@functools.cache
def _pure(func: Any) -> bool:
    """Whether an operation of torch makes new tensors only."""
    sides = (*func._schema.arguments, *func._schema.returns)
    return func.namespace == "aten" and all(one.alias_info is None for one in sides)


def _plain(tensor: Any) -> bool:
    """Whether something is a plain tensor of floating-point numbers."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.is_floating_point()


def _alone(tensor: Tensor, held: set[int]) -> bool:
    """Whether a tensor fills a storage of its own."""
    storage = tensor.untyped_storage()
    return id(storage) not in held and storage.nbytes() == tensor.numel() * tensor.element_size()
