"""Images held on a device, normalized as a trained network expects them, with the last training images set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from natpp.data.batches import Augment, augmented
from natpp.data.images import Images
from natpp.data.sets import load_images, store_images, stored
from natpp.seeds import Use, generator, torch_generator

AT_ONCE = 4096  # images augmented together: few calls, and little memory
JUDGED = 500  # images in a batch that is only judged
CALIBRATION = 128  # images in a batch of calibration
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's

Batch = tuple[Tensor, Tensor]


def read_once(root: str | None, runs: Path) -> Images:
    """CIFAR-10 from a file in the folder of runs, which is made from `root` the first time."""
    if not stored("cifar10", runs).exists() and root is not None:
        store_images("cifar10", runs, root)
    return load_images("cifar10", runs)


class Held:
    """Training, set-aside and test images on a device."""

    def __init__(self, images: Images, device: torch.device, *, aside: int):
        """`aside`: the number of training images, the last ones, that are not trained on."""
        self.device, self.size, self.flip = device, images.train.shape[2], images.name != "digits"
        pixels, labels = torch.from_numpy(np.asarray(images.train)), torch.from_numpy(images.train_labels)
        self.pixels, self.labels = pixels[:-aside].to(device), labels[:-aside].to(device)
        self._aside = pixels[-aside:].to(device), labels[-aside:].to(device)
        self._test = torch.from_numpy(np.asarray(images.test)), torch.from_numpy(images.test_labels)
        self.mean, self.deviation = (torch.tensor(one, device=device).view(3, 1, 1) for one in (MEAN, DEVIATION))

    def normalized(self, pixels: Tensor) -> Tensor:
        """Bytes as floats, as the network was trained on."""
        return (pixels.to(self.device).float() / 255 - self.mean) / self.deviation

    def unlabelled(self, count: int, seed: int) -> list[Tensor]:
        """Training images to calibrate on, in batches."""
        chosen = generator(seed, Use.ORDER, 3).permutation(len(self.labels))[:count]
        return list(self.normalized(self.pixels[torch.from_numpy(chosen).to(self.device)]).split(CALIBRATION))

    def aside(self) -> list[Batch]:
        """The images set aside, in batches."""
        pixels, labels = self._aside
        return list(zip(self.normalized(pixels).split(JUDGED), labels.split(JUDGED), strict=True))

    def test(self) -> Iterator[Batch]:
        """The test images in batches: to be read once, after all choices."""
        for pixels, labels in zip(*(part.split(JUDGED) for part in self._test), strict=True):
            yield self.normalized(pixels), labels.to(self.device)


@dataclass(eq=False)
class Shuffled:
    """Batches of all training images, cropped and mirrored: a loader with another order in each pass."""

    images: Held
    batch: int
    seed: int
    passes: int = 0
    """passes that were begun"""

    def __len__(self) -> int:
        return len(self.images.labels) // self.batch

    def __iter__(self) -> Iterator[Batch]:
        held, self.passes = self.images, self.passes + 1
        random = torch_generator(self.seed, Use.AUGMENT, 3, self.passes)
        order = torch.randperm(len(held.labels), generator=random)[: len(self) * self.batch].to(held.device)
        how = Augment(shift=held.size // 8, flip=held.flip)
        for chosen in order.split(max(AT_ONCE // self.batch, 1) * self.batch):
            images = augmented(held.normalized(held.pixels[chosen]), how, random)
            yield from zip(images.split(self.batch), held.labels[chosen].split(self.batch), strict=True)


@torch.no_grad()
def accuracy(module: nn.Module, batches: Iterator[Batch] | list[Batch]) -> float:
    """The share of images in per cent that a module classifies correctly, in eval mode."""
    module.eval()
    right, count = 0, 0
    for images, labels in batches:
        right += int((module(images).argmax(1) == labels).sum())
        count += len(labels)
    return 100 * right / count
