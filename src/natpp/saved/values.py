"""Arguments of graph nodes and layers as JSON, and as Python source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx.node import Node

from natpp.errors import FormatError, NatppError
from natpp.saved.vocabulary import address_of

PLAIN = (bool, int, str, type(None))
OF_TORCH = (torch.dtype, torch.memory_format, torch.layout)


class UnwritableError(NatppError):
    """A value that cannot be written to a file."""


def encode(value: Any) -> Any:
    """A value as JSON; types that JSON lacks become a dict with their name as its only key."""
    if isinstance(value, Node):
        return {"node": value.name}
    if type(value) in PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is Ellipsis:
        return {"ellipsis": True}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, slice):
        return {"slice": [encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, tuple):
        parts = [encode(part) for part in value]
        return {"tuple": parts} if not hasattr(value, "_fields") else {"made": address_of(type(value)), "of": parts}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(part)] for key, part in value.items()]}
    raise UnwritableError(f"cannot save a value of type {type(value).__name__} ({value!r:.60})")


def decode(data: Any, find: Callable[[str], Any], made: Callable[[str], Any]) -> Any:
    """The value of its JSON form; `find` looks up a node by name, `made` a user's class by its address."""

    def inner(part: Any) -> Any:
        return decode(part, find, made)

    if not isinstance(data, dict):
        return [inner(part) for part in data] if isinstance(data, list) else data
    match data:
        case {"node": str(name)}:
            return find(name)
        case {"float": str(text)}:
            return float(text)
        case {"torch": str(name)}:
            found = getattr(torch, name, None)
            if isinstance(found, OF_TORCH):
                return found
        case {"device": str(text)}:
            return torch.device(text)
        case {"ellipsis": True}:
            return ...
        case {"complex": [real, imaginary]}:
            return complex(real, imaginary)
        case {"slice": [start, stop, step]}:
            return slice(inner(start), inner(stop), inner(step))
        case {"range": [start, stop, step]}:
            return range(start, stop, step)
        case {"tuple": [*parts]}:
            return tuple(inner(part) for part in parts)
        case {"made": str(address), "of": [*parts]}:
            return made(address)(*(inner(part) for part in parts))
        case {"dict": [*pairs]}:
            return {inner(key): inner(part) for key, part in pairs}
    raise FormatError(f"{str(data)[:60]} is not a value that natpp can read")


def text(value: Any, name: Callable[[Node], str], made: Callable[[type], str]) -> str:
    """A value as Python source; `name` gives the name of a node, `made` that of a user's class."""

    def inner(parts: Iterable[Any]) -> str:
        return ", ".join(text(part, name, made) for part in parts)

    match value:
        case Node():
            return name(value)
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case torch.dtype() | torch.memory_format() | torch.layout():
            return str(value)
        case torch.device():
            return f'torch.device("{value}")'
        case slice():
            return f"slice({inner((value.start, value.stop, value.step))})"
        case tuple():
            kind = made(type(value)) if hasattr(value, "_fields") else ""
            return f"{kind}({inner(value)}{',' if len(value) == 1 and not kind else ''})"
        case list():
            return f"[{inner(value)}]"
        case dict():
            return f"{{{', '.join(f'{inner((key,))}: {inner((part,))}' for key, part in value.items())}}}"
    plain = "..." if value is Ellipsis else repr(value)
    return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain else plain
