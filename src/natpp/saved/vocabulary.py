"""Names of functions in saved files: the allow-list of what `restore` may call.

Functions that read files, load or run code are not on it. A user's own functions are looked up in the user's module.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from natpp.fx.tracer import INFIX

Function = Callable[..., Any]

OPERATORS = (
    *INFIX,
    *("neg", "pos", "invert", "inv", "not_", "truth", "abs", "getitem", "setitem", "contains", "index"),
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"),
)
BUILTINS = (getattr, len, int, float, bool, round, min, max, abs, sum, range, tuple, list)
ATTRIBUTES = frozenset(
    (
        *("shape", "dtype", "device", "layout", "ndim", "T", "mT", "H", "mH", "real", "imag", "data", "requires_grad"),
        *("is_cuda", "is_cpu", "is_sparse", "is_quantized", "itemsize", "nbytes", "values", "indices", "mode", "sign"),
        *("logabsdet", "eigenvalues", "eigenvectors", "U", "S", "Vh", "Q", "R", "L", "solution", "residuals", "rank"),
        *("min", "max", "eps", "tiny", "smallest_normal"),  # attributes of `torch.finfo` and `torch.iinfo`
    )
)
FORBIDDEN = frozenset(
    (
        *("from_file", "numpy", "storage", "untyped_storage", "storage_type", "data_ptr", "share_memory_", "to_dlpack"),
        *("register_hook", "register_post_accumulate_grad_hook", "reinforce", "apply_", "map_", "map2_", "backward"),
        *("module_load", "from_numpy", "from_dlpack", "frombuffer", "pin_memory", "set_"),
    )
)
ATEN = re.compile(r"torch\.ops\.(aten|prims)\.([a-z]\w*)\.(\w+)")


def name_of(function: Any) -> str | None:
    """The name of a known function; None if it is not known."""
    if isinstance(function, torch._ops.OpOverload):
        name = f"torch.ops.{function}"
        return name if function_named(name) is function else None
    try:
        return _names().get(function)
    except TypeError:  # unhashable
        return None


def function_named(name: str) -> Function | None:
    """The known function of this name; None if there is none."""
    if found := ATEN.fullmatch(name):
        space, base, overload = found.groups()
        if base in FORBIDDEN:
            return None
        operation = getattr(getattr(getattr(torch.ops, space), base, None), overload, None)
        return operation if isinstance(operation, torch._ops.OpOverload) else None  # not an attribute of an operation
    return _functions().get(name)


def is_method(name: str) -> bool:
    """Whether a saved graph may call this method on its values."""
    known = any(hasattr(kind, name) for kind in (torch.Tensor, tuple, list, dict))
    if name.startswith("_"):
        return known and name.strip("_") in OPERATORS and name.startswith("__")
    return known and name not in FORBIDDEN


def address_of(function: Any) -> str:
    """Where a user's function or class can be imported from: `package.module:name`."""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"


def is_importable(function: Any) -> bool:
    """Whether another program can import it from its address."""
    home, _, name = address_of(function).partition(":")
    if home in ("", "None", "__main__") or not name.isidentifier():
        return False
    return getattr(sys.modules.get(home), name, None) is function


@functools.cache
def _functions() -> dict[str, Function]:
    found: dict[str, Any] = {f"torch.{name}": getattr(torch, name) for name in ("_assert", "finfo", "iinfo")}
    for space in ("torch.linalg", "torch.fft", "torch.special"):
        module = getattr(torch, space.rpartition(".")[2])
        names = [name for name in vars(module) if not name.startswith("_")]
        found |= {f"{space}.{name}": getattr(module, name) for name in names if _computes(getattr(module, name))}
    for name, function in vars(F).items():
        own = getattr(function, "__module__", "") == F.__name__
        if own or (_computes(function) and not name.startswith(("_", "has_torch_function"))):
            found[f"torch.nn.functional.{name}"] = function
    names = [*torch.functional.__all__, *dir(torch._C._VariableFunctions), *(n for n in vars(torch) if n[:4] == "sym_")]
    found |= {f"torch.{name}": getattr(torch, name, None) for name in names if not name.startswith("_")}
    found |= {f"operator.{name}": getattr(operator, name) for name in OPERATORS}
    found |= {f"math.{name}": function for name, function in vars(math).items()}
    found |= {f"builtins.{function.__name__}": function for function in BUILTINS}
    return {
        name: function
        for name, function in found.items()
        if callable(function) and name.rpartition(".")[2] not in FORBIDDEN and not isinstance(function, type(torch.nn))
    }


@functools.cache
def _names() -> dict[Function, str]:
    names: dict[Function, list[str]] = {}
    for name, function in _functions().items():
        names.setdefault(function, []).append(name)
    return {one: min(known, key=lambda name: ("._" in name, len(name))) for one, known in names.items()}


def _computes(function: Any) -> bool:
    """Whether it is one of torch's own compiled functions."""
    return type(function).__name__ == "builtin_function_or_method" and not isinstance(function, type)
