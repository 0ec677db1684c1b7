"""Stand-ins for values, which can be asked what `torch.fx` alone cannot answer."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Node

from natpp.fx.traced import VALUE, TraceError


class Known:
    """What a stand-in can be asked beyond what `torch.fx` allows, since its value is known."""

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
        """A size as a plain number, for `range` and its like: from then on only inputs of that size will do."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int):
            raise TraceError(f"it asks for a whole number where a {type(known).__name__} is")
        self.tracer.fix(self, known)
        return known

    def __hash__(self) -> int:
        """That of a known number or type, to look it up by; from then on only inputs of that size will do."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float | torch.dtype):
            return object.__hash__(self)
        if isinstance(known, bool) and not self.tracer.quiet:
            self.tracer.to_bool(self)
        elif isinstance(known, int | float) and not self.tracer.quiet:
            self.tracer.fix(self, known)
        return hash(known)

    def __eq__(self, other: Any) -> Any:
        """A stand-in for the answer. What a cache kept of another pass equals nothing: its value is not known here."""
        if self.tracer.quiet or (isinstance(other, Known) and other.tracer is not self.tracer):
            return self is other
        return super().__eq__(other)

    def __float__(self) -> float:
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float):
            raise TraceError(f"it asks for a number where a {type(known).__name__} is")
        self.tracer.fix(self, known)
        return float(known)

    def __int__(self) -> int:
        return int(float(self)) if isinstance(self.node.meta.get(VALUE), float) else self.__index__()

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)


class Proxy(Known, fx.Proxy):
    """A stand-in for a value."""


class Attribute(Known, fx.proxy.Attribute):
    """A stand-in for an attribute of a value."""
