"""When two calls do the same: a key made of what is called, with tensors told by their shape and type only.

Calls with equal keys make values of the same shapes, so only the first of them has to be run.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_leaves

PLAIN = (
    bool,
    int,
    float,
    str,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
SEQUENCES = (tuple, list, torch.Size, immutable_list)
EMPTY = (dict, OrderedDict, set)


class Untold(Exception):
    """A value whose key is not known."""


def call_key(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """The key of a call of a module, a function of torch or a method of a tensor; None if it has none."""
    try:
        if isinstance(target, nn.Module):
            return _module(target), _told(args), _told(kwargs)
        own = isinstance(args[0], FakeTensor) if isinstance(target, str) and args else _of_torch(target)
        if not own or not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return None
        return target, _told(args), _told(kwargs)
    except Untold:
        return None


def module_key(module: nn.Module) -> Hashable | None:
    """The key of a module: its class, settings and the shapes of its tensors; None if it has none."""
    try:
        return _module(module)
    except Untold:
        return None


def _of_torch(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return True
    if not isinstance(target, types.FunctionType | types.BuiltinFunctionType):
        return False
    home = target.__module__ or "torch"  # built-in functions of torch have none
    return home in ("torch", "_operator") or home.startswith("torch.")


def _told(tree: Any) -> Hashable:
    """The key of a value."""
    kind = type(tree)
    if isinstance(tree, Tensor):
        if tree.layout is not torch.strided or getattr(tree, "constant", None) is not None:
            raise Untold
        return kind, tree.shape, tree.stride(), tree.dtype, tree.device
    if kind in PLAIN:
        return kind, tree
    if kind in SEQUENCES:
        return kind, *map(_told, tree)
    if isinstance(tree, dict):
        return kind, *((key, _told(one)) for key, one in tree.items())
    if kind is slice:
        return kind, _told(tree.start), _told(tree.stop), _told(tree.step)
    if isinstance(tree, type) or _of_torch(tree):
        return kind, tree
    raise Untold


def _module(module: nn.Module) -> Hashable:
    """The key of a module; hooks have none."""
    if isinstance(module, torch.jit.ScriptModule):
        raise Untold
    found: list[Any] = [type(module)]
    for name, held in vars(module).items():
        if name == "_non_persistent_buffers_set" or (type(held) in EMPTY and not held):
            continue
        if name == "_modules":
            found += [(key, None if part is None else _module(part)) for key, part in held.items()]
        else:
            found.append((name, _told(held)))
    return tuple(found)


def like(tree: Any, given: Any, make: Callable[[Tensor], Any]) -> Any:
    """The value that a call made, in terms of its arguments: their tensors by number, `make` of all others.

    Raises `Untold` if it has anything else in it.
    """
    if type(tree) in (tuple, list):
        return type(tree)([like(one, given, make) for one in tree])
    if type(tree) is not FakeTensor or tree.layout is not torch.strided or tree.constant is not None:
        raise Untold
    same = [number for number, leaf in enumerate(tree_leaves(given)) if leaf is tree]
    return same[0] if same else make(tree)
