"""Images as tensors on a device: split where choices are made, normalized, moved and mirrored there.

Which images a step sees, and how they are moved, follows from its generators alone.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from natpp.data.images import Images, Pixels
from natpp.errors import SettingError

LARGEST_VALIDATION = 5000


@dataclass(frozen=True)
class Augment:
    """What is done to training images."""

    shift: int
    """pixels that an image moves at most, each way"""
    flip: bool
    """whether half of them are mirrored"""
    cutout: int = 0
    """side of a square that becomes zero in each, around a pixel drawn at random; 0 is none"""


def usual_augment(images: Images, *, cutout: int = 0) -> Augment:
    """Moved by an eighth of their side, and mirrored where a mirrored image is still one of its class."""
    return Augment(shift=images.train.shape[2] // 8, flip=images.name != "digits", cutout=cutout)


class Batches:
    """The training images of a set in two parts: one to learn weights from, one to choose by. Test images stay out."""

    def __init__(
        self,
        images: Images,
        device: torch.device | str = "cpu",
        *,
        validation: int | None = None,
        seed: int = 0,
        augment: Augment | None = None,
    ):
        """By default a quarter of the images, at most 5,000, are set aside for choosing; 0 sets none aside."""
        self.classes = images.classes
        self.size = images.train.shape[2]
        if images.train.shape[2] != images.train.shape[3]:
            raise SettingError(f"the images of {images.name} are {images.train.shape[3]} x {self.size}, not square")
        count = min(len(images.train) // 4, LARGEST_VALIDATION) if validation is None else validation
        if validation is None and count == 0:
            raise SettingError(f"{images.name} has {len(images.train)} training images: too few to set some aside")
        everything = np.arange(len(images.train))
        learn, choose = images.split(count, seed) if count else (everything, everything[:0])
        self.augment = augment or usual_augment(images)
        self._test = images.test, images.test_labels  # on the host, until the end
        self._parts = images, learn, choose
        pixels = torch.from_numpy(images.train[learn])
        self._pixels = pixels.to(device) if _fits(pixels, torch.device(device)) else pixels
        self._labels = torch.from_numpy(images.train_labels[learn]).to(device)
        mean, spread = _statistics(images.train[learn])
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device).view(3, 1, 1)
        self._spread = torch.tensor(np.maximum(spread, 1e-3), dtype=torch.float32, device=device).view(3, 1, 1)
        self.validation = self.normalized(torch.from_numpy(images.train[choose]).to(device))
        self.validation_labels = torch.from_numpy(images.train_labels[choose]).to(device)

    def __len__(self) -> int:
        """Images to learn weights from."""
        return len(self._pixels)

    def order(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """The training images in a new order: an epoch."""
        return generator.permutation(len(self))

    def take(self, indices: NDArray[np.int64], generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Some training images and their labels, augmented where a generator is given."""
        images, labels = self.pick(torch.from_numpy(indices).to(self._mean.device, non_blocking=True))
        if generator is not None:
            images = augmented(images, self.augment, generator)
        return images, labels

    def pick(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Training images by number, as they are, and their labels; on a device, without a look at the numbers."""
        pixels = self._pixels[chosen.to(self._pixels.device)].to(self._mean.device, non_blocking=True)
        return self.normalized(pixels), self._labels[chosen]

    def test_batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images, so many at a time, and their labels: for the one look at them, when all is chosen."""
        device = self._mean.device
        for start in range(0, len(self._test[0]), count):
            pixels, labels = (torch.from_numpy(part[start : start + count]) for part in self._test)
            yield self.normalized(pixels.to(device)), labels.to(device)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells these images, split as they are, from any others."""
        images, *parts = self._parts
        found = hashlib.sha256()
        for part in parts:
            found.update(images.train[part].tobytes() + images.train_labels[part].tobytes())
        return found.hexdigest()[:16]

    def normalized(self, pixels: Tensor) -> Tensor:
        """Bytes as numbers with mean 0 and standard deviation 1 over the training images, channel by channel."""
        return (pixels.float() / 255 - self._mean) / self._spread


def augmented(images: Tensor, how: Augment, generator: torch.Generator) -> Tensor:
    """Images (count, channels, height, width) moved over a zero border and mirrored, each in its own way."""
    count = len(images)
    shifts = torch.randint(0, 2 * how.shift + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    down, right = shifts.to(images.device, non_blocking=True)
    images = moved(images, how, down, right, mirrored.to(images.device, non_blocking=True))
    if how.cutout:
        centres = (torch.randint(0, side, (count,), generator=generator) for side in images.shape[2:])
        row, column = (centre.to(images.device, non_blocking=True) for centre in centres)
        images = cut_out(images, how.cutout, row, column)
    return images


def moved(images: Tensor, how: Augment, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Images cut out of their zero border, so far down and right, mirrored where so marked; all three are (count,)."""
    count, _, height, width = images.shape
    device = images.device
    if how.shift:
        rows = down[:, None] + torch.arange(height, device=device)  # (count, height)
        columns = right[:, None] + torch.arange(width, device=device)
        padded = F.pad(images, [how.shift] * 4)
        each = torch.arange(count, device=device)[:, None, None]
        images = padded[each, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    if how.flip:
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def cut_out(images: Tensor, side: int, row: Tensor, column: Tensor) -> Tensor:
    """Images with a square of zeros around a pixel of each (count,), cut off where it leaves the image."""
    height, width = (torch.arange(length, device=images.device) for length in images.shape[2:])
    down, right = height - row[:, None] + side // 2, width - column[:, None] + side // 2  # from the square's corner
    rows, columns = (down >= 0) & (down < side), (right >= 0) & (right < side)  # (count, height), (count, width)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def _fits(pixels: Tensor, device: torch.device) -> bool:
    """Whether images can be held on a device: on a GPU they may fill half of the memory that is free."""
    return device.type != "cuda" or pixels.nbytes <= torch.cuda.mem_get_info(device)[0] // 2


def _statistics(pixels: Pixels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every channel, as shares of 255."""
    counts = np.stack([np.bincount(pixels[:, channel].ravel(), minlength=256) for channel in range(3)])
    levels = np.arange(256) / 255
    mean = counts @ levels / counts.sum(axis=1)
    return mean, np.sqrt(np.maximum(counts @ levels**2 / counts.sum(axis=1) - mean**2, 0))
