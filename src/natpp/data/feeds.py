"""Where the batches of a training come from: images that natpp holds, or a loader that somebody else wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natpp.data.batches import Batches
from natpp.data.loader import Batch, batches_of, checked_loader, count_batches, moved_to, samples_in
from natpp.errors import SettingError
from natpp.seeds import Use, generator, torch_generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

IMAGES_AT_ONCE = 256  # when judging


class Source(Protocol):
    """Batches by the number of the step, on the device."""

    steps_an_epoch: int
    samples_an_epoch: int

    def batch(self, step: int, total: int) -> Batch:
        """This process's share of what a step sees, of `total` steps in all."""

    def validation(self) -> Iterator[Batch]:
        """What choices are made by; nothing where nothing was set aside."""


class ImageSource:
    """Images of a set: what a step sees follows from the seed and its number."""

    def __init__(self, images: Batches, batch: int, fabric: Fabric, seed: int):
        if batch % fabric.world_size:
            raise SettingError(f"a batch of {batch} cannot be shared evenly by {fabric.world_size} processes")
        self.images, self.fabric, self.seed = images, fabric, seed
        self.size = min(batch, len(images) // fabric.world_size * fabric.world_size)
        if self.size < 2 * fabric.world_size:
            raise SettingError(f"{len(images)} images are too few to learn from: batch norms need 2 for each process")
        self.steps_an_epoch = len(images) // self.size
        self.samples_an_epoch = self.steps_an_epoch * self.size
        self.format = torch.channels_last if fabric.device.type == "cuda" else torch.contiguous_format
        self._order: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)

    def batch(self, step: int, total: int) -> tuple[Tensor, Tensor]:
        """Those of the step after it are begun with."""
        mine = slice(self.fabric.global_rank, None, self.fabric.world_size)
        images, labels = self.images.take(self._chosen(step), self._draws(step), mine)
        if not self.images.held and step + 1 < total:
            self.images.take_ahead(self._chosen(step + 1), self._draws(step + 1), mine)
        return images.contiguous(memory_format=self.format), labels

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        images = self.images
        if not len(images.validation):
            return
        parts = -(-len(images.validation) // IMAGES_AT_ONCE)
        yield from self._formatted(
            zip(images.validation.tensor_split(parts), images.validation_labels.tensor_split(parts), strict=True)
        )

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images: for the one look at them, when all is chosen."""
        return self._formatted(self.images.test_batches(IMAGES_AT_ONCE))

    def _formatted(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        return ((images.contiguous(memory_format=self.format), labels) for images, labels in batches)

    def _chosen(self, step: int) -> NDArray[np.int64]:
        """The images of a step, over all processes."""
        epoch, place = divmod(step, self.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, self.images.order(generator(self.seed, Use.ORDER, 0, epoch))
        return self._order[1][place * self.size :][: self.size]

    def _draws(self, step: int) -> torch.Generator:
        """How they are moved."""
        return torch_generator(self.seed, Use.AUGMENT, step)


class LoaderSource:
    """Batches of loaders, an epoch a pass; what they hold and how it is shuffled is theirs to say."""

    def __init__(self, train: Any, val: Any, device: torch.device):
        self.train = checked_loader(train, "train")
        self.val = None if val is None else checked_loader(val, "val")
        self.device = device
        self.steps_an_epoch = count_batches(self.train, "train")
        self.first = next(batches_of(self.train, "train"))
        if self.val is not None:
            next(batches_of(self.val, "val"))  # an empty one shows now, not after an epoch
        self.samples_an_epoch = self.steps_an_epoch * samples_in(self.first)
        self._next, self._pass = 0, iter(())  # type: tuple[int, Iterator[Batch]]

    def batch(self, step: int, total: int) -> Batch:
        """The next one; where a training goes on in the middle of a pass, what came before is left out."""
        place = step % self.steps_an_epoch
        if place == 0 or step != self._next:
            self._pass = batches_of(self.train, "train")
            for _ in range(place):
                next(self._pass, None)
        found = next(self._pass, None)
        if found is None:  # a pass that is shorter than the loader says
            self._pass = batches_of(self.train, "train")
            found = next(self._pass)
        self._next = step + 1
        inputs, targets = moved_to(found, self.device)
        return inputs, targets

    def validation(self) -> Iterator[Batch]:
        if self.val is not None:
            for inputs, targets in batches_of(self.val, "val"):
                yield moved_to(inputs, self.device), moved_to(targets, self.device)
