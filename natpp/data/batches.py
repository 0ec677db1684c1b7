"""Images as tensors on a device: split where choices are made, normalized, moved and mirrored there.

Which images a step sees, and how they are moved, follows from its generators alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from natpp.data.images import Images
from natpp.errors import SettingError

LARGEST_VALIDATION = 5000


@dataclass(frozen=True)
class Augment:
    """What is done to training images."""

    shift: int
    """pixels that an image moves at most, each way"""
    flip: bool
    """whether half of them are mirrored"""


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
        """By default a quarter of the images, at most 5,000, are set aside for choosing."""
        self.classes = images.classes
        self.size = images.train.shape[2]
        if images.train.shape[2] != images.train.shape[3]:
            raise SettingError(f"the images of {images.name} are {images.train.shape[3]} x {self.size}, not square")
        count = min(len(images.train) // 4, LARGEST_VALIDATION) if validation is None else validation
        learn, choose = images.split(count, seed)
        self.augment = augment or Augment(shift=self.size // 8, flip=images.name != "digits")
        self._pixels = torch.from_numpy(images.train[learn]).to(device)
        self._labels = torch.from_numpy(images.train_labels[learn]).to(device)
        shares = images.train[learn].reshape(len(learn), 3, -1) / np.float64(255)
        mean, spread = shares.mean(axis=(0, 2)), shares.std(axis=(0, 2))
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
        chosen = torch.from_numpy(indices).to(self._pixels.device)
        images = self.normalized(self._pixels[chosen])
        if generator is not None:
            images = augmented(images, self.augment, generator)
        return images, self._labels[chosen]

    def normalized(self, pixels: Tensor) -> Tensor:
        """Bytes as numbers with mean 0 and standard deviation 1 over the training images, channel by channel."""
        return (pixels.float() / 255 - self._mean) / self._spread


def augmented(images: Tensor, how: Augment, generator: torch.Generator) -> Tensor:
    """Images (count, channels, height, width) moved over a zero border and mirrored, each in its own way."""
    count, _, height, width = images.shape
    device = images.device
    if how.shift:
        down, right = torch.randint(0, 2 * how.shift + 1, (2, count, 1), generator=generator).to(device)
        rows = down + torch.arange(height, device=device)  # (count, height)
        columns = right + torch.arange(width, device=device)
        padded = F.pad(images, [how.shift] * 4)
        each = torch.arange(count, device=device)[:, None, None]
        images = padded[each, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    if how.flip:
        mirrored = (torch.rand(count, 1, 1, 1, generator=generator) < 0.5).to(device)
        images = torch.where(mirrored, images.flip(3), images)
    return images
