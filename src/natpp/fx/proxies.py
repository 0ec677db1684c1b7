"""Proxies that know their fake values, so they can answer more than those of `torch.fx`."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Node

from natpp.fx.traced import VALUE, TraceError


class Known:
    """Operations on a proxy that `torch.fx` does not allow, possible since its value is known."""

    node: Node
    tracer: Any

    def __len__(self) -> int:
        return len(self.node.meta[VALUE])

    def __getattr__(self, name: str) -> Any:
        known = self.node.meta.get(VALUE)
        if not isinstance(known, Tensor) and getattr(known, name, self) is None:
            return None
        return Attribute(self, name)  # type: ignore[arg-type]

    def __setitem__(self, key: Any, given: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, given), {})

    def __index__(self) -> int:
        """A size as a plain int, as for `range`; the result then accepts only inputs of that size."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int):
            raise TraceError(f"it needs an int, but the value is a {type(known).__name__}")
        self.tracer.fix(self, known)
        return known

    def __hash__(self) -> int:
        """The hash of a known number or dtype, for lookups; the result then accepts only inputs of that size."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float | torch.dtype):
            return object.__hash__(self)
        if isinstance(known, bool) and not self.tracer.quiet:
            self.tracer.to_bool(self)
        elif isinstance(known, int | float) and not self.tracer.quiet:
            self.tracer.fix(self, known)
        return hash(known)

    def __eq__(self, other: Any) -> Any:
        """A proxy for the comparison. A proxy cached from another pass equals nothing: its value is unknown here."""
        if self.tracer.quiet or (isinstance(other, Known) and other.tracer is not self.tracer):
            return self is other
        return super().__eq__(other)

    def __float__(self) -> float:
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float):
            raise TraceError(f"it needs a number, but the value is a {type(known).__name__}")
        self.tracer.fix(self, known)
        return float(known)

    def __int__(self) -> int:
        return int(float(self)) if isinstance(self.node.meta.get(VALUE), float) else self.__index__()

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)


class Proxy(Known, fx.Proxy):
    """A proxy for a value."""


class Attribute(Known, fx.proxy.Attribute):
    """A proxy for an attribute of a value."""
