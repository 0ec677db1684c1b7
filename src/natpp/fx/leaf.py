"""Marking what tracing must not look into."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
_MARK = "_natpp_leaf"


def leaf(part: T) -> T:
    """The class or module itself, marked: natpp keeps it as it is and does not look into its forward.

    Use it as a decorator of a class (`@natpp.leaf`) or on one module (`natpp.leaf(model.head)`).

    Examples:
        >>> @natpp.leaf
        ... class Attention(torch.nn.Module):
        ...     "Kept whole wherever it stands."
        >>> model = natpp.zoo.network("resnet20")
        >>> model.layer1 = natpp.leaf(model.layer1)
        >>> result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32))
        >>> any(change.name.startswith("layer1") for change in result.changes)
        False
    """
    setattr(part, _MARK, True)
    return part


def is_leaf(part: object) -> bool:
    """Whether `leaf` marked it, or its class."""
    return bool(getattr(part, _MARK, False))
