"""Where the batches of a training come from: images that natpp holds, or a loader.

`fetch` brings the data of a step to the device; `make` turns it into the batch there, also in a CUDA graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from natpp.data.batches import Augment, Batches, moved
from natpp.data.loader import Batch, batches_of, count_batches, moved_to, samples_in
from natpp.errors import SettingError
from natpp.seeds import Use, generator, torch_generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

IMAGES_AT_ONCE = 256  # in validation and test batches


class Feed(ABC):
    """The batches of a training by the number of the step, on the device."""

    device: torch.device

    @abstractmethod
    def fetch(self, step: int) -> Any:
        """The data of the step, on the device; called outside a captured graph."""

    def make(self, step: Tensor, fetched: Any) -> Batch:
        """The batch of a step, given as a tensor of one number; a captured graph can replay this for any step."""
        inputs, targets = fetched
        return inputs, targets

    def batch(self, step: int) -> Batch:
        """This process's share of a step's batch."""
        return self.make(torch.tensor([step], device=self.device), self.fetch(step))

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Held-out batches, in the same order each time; empty if none were set aside."""


class EpochFeed(Feed):
    """A feed that goes through its data epoch by epoch."""

    steps_an_epoch: int
    samples_an_epoch: int

    @abstractmethod
    def example(self) -> Batch:
        """A small batch to try a module on."""

    @abstractmethod
    def test(self) -> Iterator[Batch]:
        """The test batches, to be read once, after all choices are made."""


class ImageFeed(EpochFeed):
    """Images in a new order each epoch; the seed and the number of the step determine its batch."""

    def __init__(self, images: Batches, batch: int, epochs: int, fabric: Fabric, seed: int):
        if batch % fabric.world_size:
            raise SettingError(f"a batch of {batch} cannot be shared evenly by {fabric.world_size} processes")
        self.images, self.fabric, self.seed, self.device = images, fabric, seed, fabric.device
        self.size = min(batch, len(images) // fabric.world_size * fabric.world_size)
        if self.size < 2 * fabric.world_size:
            raise SettingError(
                f"there are {len(images)} training images, expected at least 2 for each process: batch norms need them"
            )
        self.steps_an_epoch = len(images) // self.size
        self.samples_an_epoch = self.steps_an_epoch * self.size
        self.total = epochs * self.steps_an_epoch
        self._order: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)

    def fetch(self, step: int) -> Batch:
        """The batch itself. Reading the next one starts here, if images are not held on the device."""
        mine = slice(self.fabric.global_rank, None, self.fabric.world_size)
        images, labels = self.images.take(self._chosen(step), self._draws(step), mine)
        if not self.images.held and step + 1 < self.total:
            self.images.take_ahead(self._chosen(step + 1), self._draws(step + 1), mine)
        return images.contiguous(memory_format=fast_format(self.device)), labels

    def example(self) -> Batch:
        return self.images.take(np.arange(2))

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        return _formatted(in_parts(self.images.validation, self.images.validation_labels, IMAGES_AT_ONCE))

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        return _formatted(self.images.test_batches(IMAGES_AT_ONCE))

    def _chosen(self, step: int) -> NDArray[np.int64]:
        """The images of a step, over all processes."""
        epoch, place = divmod(step, self.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, self.images.order(generator(self.seed, Use.ORDER, 0, epoch))
        return self._order[1][place * self.size :][: self.size]

    def _draws(self, step: int) -> torch.Generator:
        """Random numbers of the step's augmentation."""
        return torch_generator(self.seed, Use.AUGMENT, step)


class DrawnFeed(Feed):
    """Images of a short schedule: everything random is drawn beforehand, so a captured graph can make each batch."""

    def __init__(
        self,
        images: Batches,
        device: torch.device,
        *,
        steps: int,
        batch: int,
        augment: bool = False,
        validation_batch: int = IMAGES_AT_ONCE,
        seed: int = 0,
        half: bool = False,
    ):
        """With `half`, images are in bf16."""
        batch = min(batch, len(images))
        epochs = -(-steps * batch // len(images))
        order = np.concatenate([images.order(generator(seed, Use.ORDER, 2, epoch)) for epoch in range(epochs)])
        self.numbers = order[: steps * batch].reshape(steps, batch)
        self.order = torch.from_numpy(self.numbers).to(device)
        self.augment = images.augment if augment else Augment(shift=0, flip=False)
        draws = torch_generator(seed, Use.AUGMENT, 2)
        reach = 2 * self.augment.shift + 1
        self.shifts = torch.randint(0, reach, (steps, 2, batch), generator=draws).to(device)
        self.mirrored = (torch.rand(steps, batch, generator=draws) < 0.5).to(device)
        self.images, self.device, self.seed, self.half = images, device, seed, half
        self.validation_batch = validation_batch

    def fetch(self, step: int) -> tuple[Tensor, ...]:
        """The bytes of the step's images; nothing if all images are on the device."""
        if self.images.held:
            return ()
        pixels = self.images.fetch(self.numbers[step], self._crops(step)).to(self.device, non_blocking=True)
        if step + 1 < len(self.numbers):
            self.images.fetch_ahead(self.numbers[step + 1], self._crops(step + 1))
        return (pixels,)

    def make(self, step: Tensor, fetched: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        chosen = self.order.index_select(0, step)[0]
        if fetched:
            images, labels = self.images.normalized(fetched[0]), self.images.labels(chosen)
        else:
            images, labels = self.images.pick(chosen)
        down, right = self.shifts.index_select(0, step)[0]
        images = moved(images, self.augment, down, right, self.mirrored.index_select(0, step)[0])
        return in_fast_format(images, half=self.half), labels

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = in_parts(self.images.validation, self.images.validation_labels, self.validation_batch)
        return _formatted(parts, half=self.half)

    def _crops(self, step: int) -> NDArray[np.float32] | None:
        """The random crops that a step takes of photographs; None without augmentation."""
        return self.augment.draw_crops(self.numbers.shape[1], torch_generator(self.seed, Use.AUGMENT, 2, step + 1))


class LoaderFeed(EpochFeed):
    """Batches of loaders, one pass per epoch. The loader decides what they hold and how they are shuffled."""

    def __init__(self, train: Any, val: Any, device: torch.device, *, test: Any = None, single: bool = False):
        """With `single`, floating-point tensors become single precision."""
        self.train, self.val, self.held_out = train, val, test
        self.device, self.single = device, single
        self.steps_an_epoch = count_batches(self.train, "train")
        self.first = next(batches_of(self.train, "train"))
        if self.val is not None:
            next(batches_of(self.val, "val"))  # report an empty loader now, not after an epoch
        self.samples_an_epoch = self.steps_an_epoch * samples_in(self.first)
        self._next, self._pass = 0, iter(())  # type: tuple[int, Iterator[Batch]]

    def fetch(self, step: int) -> Batch:
        """The next batch; a training resumed in the middle of a pass skips the batches before it."""
        place = step % self.steps_an_epoch
        if place == 0 or step != self._next:
            self._pass = batches_of(self.train, "train")
            for _ in range(place):
                next(self._pass, None)
        found = next(self._pass, None)
        if found is None:  # the pass was shorter than the loader's len()
            self._pass = batches_of(self.train, "train")
            found = next(self._pass)
        self._next = step + 1
        return self._moved(found)

    def example(self) -> Batch:
        return self._moved(self.first)

    def validation(self) -> Iterator[Batch]:
        return iter(()) if self.val is None else map(self._moved, batches_of(self.val, "val"))

    def test(self) -> Iterator[Batch]:
        return iter(()) if self.held_out is None else map(self._moved, batches_of(self.held_out, "test"))

    def _moved(self, batch: Batch) -> Batch:
        inputs, targets = moved_to(batch, self.device)
        return tree_map(_in_single, (inputs, targets)) if self.single else (inputs, targets)


def in_parts(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels in parts of at most `size`, as equal as possible; none if `images` is empty."""
    if len(images):
        parts = -(-len(images) // size)
        yield from zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)


def fast_format(device: torch.device) -> torch.memory_format:
    """The memory format that is fastest for images: channels-last on a GPU."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def in_fast_format(images: Tensor, *, half: bool = False) -> Tensor:
    """Images in channels-last format on a GPU and as they are on a CPU; in bf16 with `half`."""
    images = images.to(torch.bfloat16) if half else images
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cuda" else images


def _in_single(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _formatted(batches: Iterable[tuple[Tensor, Tensor]], *, half: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    return ((in_fast_format(images, half=half), labels) for images, labels in batches)
