"""Marks modules that are not traced into."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
_MARK = "_natpp_leaf"


def leaf(part: T) -> T:
    """Marks a class or module, and returns it: natpp leaves it unchanged and does not trace its forward.

    Use it as a class decorator (`@natpp.leaf`) or on one module (`natpp.leaf(model.head)`).

    Examples:
        >>> @natpp.leaf
        ... class Attention(torch.nn.Module):
        ...     "Kept whole wherever it is used."
        >>> model = natpp.zoo.network("resnet20")
        >>> model.layer1 = natpp.leaf(model.layer1)
        >>> result = natpp.optimize(model, budget=0.8, example_input=torch.randn(1, 3, 32, 32))
        >>> any(change.name.startswith("layer1") for change in result.changes)
        False
    """
    setattr(part, _MARK, True)
    return part


def is_leaf(part: object) -> bool:
    """Whether it or its class was marked with `leaf`."""
    return bool(getattr(part, _MARK, False))
