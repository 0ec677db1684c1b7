"""Batches of a loader: any iterable of (inputs, targets) that can be iterated over repeatedly, such as a `DataLoader`.

Inputs are a tensor, a tuple of arguments or a dict of named ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from natpp.errors import SettingError, shortened

Batch = tuple[Any, Any]  # inputs, targets
LARGEST_VALIDATION = 5000  # samples kept to validate candidates


def checked_loader(loader: Any, name: str) -> Iterable[Any]:
    """The loader; an error if it cannot be iterated over, or only once."""
    if isinstance(loader, str | bytes | dict | Tensor) or not isinstance(loader, Iterable):
        raise SettingError(
            f"{name} is {shortened(repr(loader))}, expected batches (inputs, targets): a DataLoader or a list"
        )
    if isinstance(loader, Iterator):
        raise SettingError(
            f"{name} is an iterator, which is used up after one pass: give a DataLoader, or a list of its batches"
        )
    return loader


def batches_of(loader: Iterable[Any], name: str) -> Iterator[Batch]:
    """One pass over a loader; an error if it is empty or a batch is not a pair."""
    number = -1
    for number, batch in enumerate(loader):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            what = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
            raise SettingError(f"batch {number} of {name} is a {what}, expected a pair (inputs, targets)")
        inputs, targets = batch
        yield tuple(inputs) if isinstance(inputs, list) else inputs, targets
    if number < 0:
        raise SettingError(f"{name} is empty, expected at least one batch")


def count_batches(loader: Iterable[Any], name: str) -> int:
    """Batches in one pass: the length of the loader, or counted if it has none."""
    try:
        count = len(loader)  # type: ignore[arg-type]
    except TypeError:
        count = sum(1 for _ in batches_of(loader, name))
    if count < 1:
        raise SettingError(f"{name} is empty, expected at least one batch")
    return count


def moved_to(tree: Any, device: torch.device) -> Any:
    """A batch on a device; images in the memory format that is fastest there."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        images = device.type == "cuda" and leaf.dim() == 4 and leaf.is_floating_point()
        layout = torch.channels_last if images else torch.preserve_format
        return leaf.to(device, non_blocking=True, memory_format=layout)

    return tree_map(moved, tree)


def samples_in(batch: Batch) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    return 1


def shapes(tree: Any) -> list[Any]:
    """What batches must have in common to be interchangeable: shapes, dtypes and values that are not tensors."""
    return [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(tree)]


@dataclass(frozen=True, eq=False)
class Loaded:
    """Batches kept for short trainings, so that all candidates see the same ones."""

    train: list[Batch]
    """one per step, all of one shape"""
    validation: list[Batch]

    @staticmethod
    def of(train: Any, val: Any, steps: int) -> Loaded:
        """`steps` training batches, from as many passes as needed, and validation batches up to a limit.

        Training batches of other shapes than the first are left out, as are validation batches of one sample.
        """
        learned: list[Batch] = []
        loader = checked_loader(train, "train")
        while len(learned) < steps:
            for batch in batches_of(loader, "train"):
                if len(learned) == steps:
                    break
                if not learned or shapes(batch) == shapes(learned[0]):
                    learned.append(batch)
        judged: list[Batch] = []
        for batch in batches_of(checked_loader(val, "val"), "val"):
            if sum(samples_in(one) for one in judged) >= LARGEST_VALIDATION:
                break
            judged.append(batch)
        return Loaded(learned, [one for one in judged if samples_in(one) > 1] or judged)

    @property
    def samples(self) -> int:
        """Validation samples."""
        return sum(samples_in(batch) for batch in self.validation)
