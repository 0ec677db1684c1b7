"""Batches of images as tensors: split for validation, normalized and augmented on the device.

Pixels are kept on the device if they fit; otherwise those of the next step are fetched while the device computes. What
a step sees depends only on its generators.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from natpp.data.decode import TRIES
from natpp.data.images import Images
from natpp.data.pictures import Crops, Labels, Pictures, Pixels
from natpp.errors import FormatError, NatppError, SettingError

LARGEST_VALIDATION = 5000
LARGEST_COPY = 2 << 30  # bytes of training images copied into one contiguous tensor, on a CPU
SAMPLE = 2000  # images on disk that mean and standard deviation are estimated from
AT_ONCE = 256  # images processed together, to keep copies small


@dataclass(frozen=True)
class Augment:
    """How training images are augmented."""

    shift: int
    """maximum shift of an image in pixels, each way"""
    flip: bool
    """mirror images with probability 1/2"""
    cutout: int = 0
    """side of the square set to zero around a random pixel of each image (cutout); 0 turns it off"""
    crop: bool = False
    """random resized crops, of 8 to 100 % of the area and aspect ratios from 3:4 to 4:3; photographs only"""

    def draw_crops(self, count: int, generator: torch.Generator) -> Crops | None:
        """Random numbers that determine the crop of each image; None without cropping."""
        return torch.rand(count, TRIES, 4, generator=generator).numpy() if self.crop else None


def usual_augment(images: Images, *, cutout: int = 0) -> Augment:
    """Shifts by up to an eighth (photographs: random crops), and mirroring if mirrored images keep their class."""
    if isinstance(images.train, Pictures) and images.train.photographs:
        return Augment(shift=0, flip=True, cutout=cutout, crop=True)
    return Augment(shift=images.train.shape[2] // 8, flip=images.name != "digits", cutout=cutout)


class Batches:
    """The training images of a set, split into a training and a validation part. Test images are not among them."""

    def __init__(
        self,
        images: Images,
        device: torch.device | str = "cpu",
        *,
        validation: int | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        held: bool | None = None,
    ):
        """By default a quarter of the images, at most 5,000, is for validation; `held`: keep them on the device."""
        self.name, self.classes = images.name, images.classes
        self.size = images.train.shape[2]
        if (width := images.train.shape[3]) != self.size:
            raise SettingError(f"the images of {images.name} are {width} x {self.size}, expected squares")
        count = min(len(images.train) // 4, LARGEST_VALIDATION) if validation is None else validation
        if validation is None and count == 0:
            raise SettingError(f"{images.name} has {len(images.train)} training images, too few for a validation set")
        everything = np.arange(len(images.train))
        learn, choose = images.split(count, seed) if count else (everything, everything[:0])
        self.augment = augment or usual_augment(images)
        if self.augment.crop and not (isinstance(images.train, Pictures) and images.train.photographs):
            raise SettingError(f"random crops need photographs on disk, but {images.name} is not such a data set")
        self._images, self._learn, self._choose = images, learn, choose
        self.made = {"images": images, "validation": count, "seed": seed, "augment": self.augment}
        """the arguments that make the same batches on any device"""
        self._device = torch.device(device)
        self._pixels: Tensor | None = None  # those on the host or on disk
        if not isinstance(images.train, Pictures):
            share = len(learn) / max(len(images.train), 1)
            if _fits(int(images.train.nbytes * share), self._device) if held is None else held:
                self._pixels = torch.from_numpy(images.train[learn]).to(device)
        self._labels = torch.from_numpy(images.train_labels[learn]).to(device)
        mean, spread = statistics(images.train, learn)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device).view(3, 1, 1)
        self._spread = torch.tensor(np.maximum(spread, 1e-3), dtype=torch.float32, device=device).view(3, 1, 1)
        self.validation, self.validation_labels = self._set_aside()
        self._ahead: tuple[NDArray[np.int64], Crops | None, Future[Pixels]] | None = None

    def __len__(self) -> int:
        """Number of images to train on."""
        return len(self._learn)

    @property
    def held(self) -> bool:
        """Whether the training images are on the device, where any can be picked; otherwise they are fetched."""
        return self._pixels is not None

    def order(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """The training images of one epoch, in random order."""
        return generator.permutation(len(self))

    def take(
        self, indices: NDArray[np.int64], generator: torch.Generator | None = None, mine: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Training images (the part `mine` of a batch) and their labels, augmented if a generator is given."""
        chosen = torch.from_numpy(indices[mine]).to(self._device, non_blocking=True)
        crops = None if generator is None else self.augment.draw_crops(len(indices), generator)
        if self.held:
            images, labels = self.pick(chosen)
        else:
            pixels = self.fetch(indices[mine], None if crops is None else crops[mine])
            images, labels = self.normalized(pixels.to(self._device, non_blocking=True)), self.labels(chosen)
        if generator is not None:
            images = augmented(images, self.augment, generator, len(indices), mine)
        return images, labels

    def pick(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Training images kept on the device, not augmented, and their labels; never synchronizes with the host."""
        assert self._pixels is not None
        return self.normalized(self._pixels[chosen]), self.labels(chosen)

    def labels(self, chosen: Tensor) -> Tensor:
        """Labels of training images, by indices on the device."""
        return self._labels[chosen]

    def fetch(self, indices: NDArray[np.int64], crops: Crops | None = None) -> Tensor:
        """Bytes of training images (or of crops of them) on the host; for images that are not kept on the device."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], indices) and _same(ahead[1], crops):
            pixels = torch.from_numpy(ahead[2].result())
        else:
            pixels = torch.from_numpy(self._read(indices, crops))
        return pixels.pin_memory() if self._device.type == "cuda" else pixels  # copied while the device computes

    def fetch_ahead(self, indices: NDArray[np.int64], crops: Crops | None = None) -> None:
        """Start reading the images that `fetch` will return next, in a thread on the host."""
        self._ahead = indices, crops, self._thread.submit(self._read, indices, crops)

    def take_ahead(
        self, indices: NDArray[np.int64], generator: torch.Generator | None = None, mine: slice = slice(None)
    ) -> None:
        """Start reading the images that `take` will return next; does nothing if images are on the device."""
        if not self.held:
            crops = None if generator is None else self.augment.draw_crops(len(indices), generator)
            self.fetch_ahead(indices[mine], None if crops is None else crops[mine])

    def test_batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images and their labels, `count` at a time; to be read once, after all choices are made."""
        images, labels = self._images.test, self._images.test_labels
        parts = [np.arange(start, min(start + count, len(images))) for start in range(0, len(images), count)]
        following, seen = self._thread.submit(_readable, images, labels, parts[0]), 0
        for place in range(len(parts)):
            pixels, some = following.result()
            if place + 1 < len(parts):
                following = self._thread.submit(_readable, images, labels, parts[place + 1])
            seen += len(some)
            if len(some):
                found = self.normalized(torch.from_numpy(pixels).to(self._device))
                yield found, torch.from_numpy(some).to(self._device)
        if not seen:
            raise FormatError(f"none of the test images of {self._images.name} can be read")

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of these images and their split: of their bytes, or of their files if they are on disk."""
        images, found = self._images, hashlib.sha256()
        for part in (self._learn, self._choose):
            if isinstance(images.train, Pictures):
                found.update(images.train.fingerprints[part].tobytes())
            else:
                for some in _some(part):
                    found.update(images.train[some].tobytes())
            found.update(images.train_labels[part].tobytes())
        return found.hexdigest()[:16]

    def normalized(self, pixels: Tensor) -> Tensor:
        """Bytes as floats, normalized per channel to mean 0 and standard deviation 1 over the training images."""
        return (pixels.float() / 255 - self._mean) / self._spread

    @functools.cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """Reads ahead; it never touches the device, which may be capturing a graph."""
        return ThreadPoolExecutor(1, thread_name_prefix="natpp-ahead")

    def _read(self, indices: NDArray[np.int64], crops: Crops | None) -> Pixels:
        train, numbers = self._images.train, self._learn[indices]
        return train.take(numbers, crops) if isinstance(train, Pictures) else train[numbers]

    def _set_aside(self) -> tuple[Tensor, Tensor]:
        """The normalized validation images and their labels, on the device."""
        images = self._images
        shape = (len(self._choose), *images.train.shape[1:])
        try:
            found, place = torch.empty(shape, device=self._device), 0
            labels: list[Labels] = []
            for some in _some(self._choose):
                pixels, good = _readable(images.train, images.train_labels, some)
                found[place : place + len(good)] = self.normalized(torch.from_numpy(pixels).to(self._device))
                place += len(good)
                labels.append(good)
        except torch.OutOfMemoryError:
            needed = 4 * np.prod(shape) / 2**30
            raise NatppError(
                f"{shape[0]} validation images of {self.size} x {self.size} take {needed:.1f} GiB, which does not fit "
                f"into the memory of {self._device}: choose a smaller size=N"
            ) from None
        if len(self._choose) and not place:
            raise FormatError(f"none of the validation images of {images.name} can be read")
        return found[:place], torch.from_numpy(np.concatenate([*labels, np.empty(0, np.int64)])).to(self._device)


def augmented(
    images: Tensor, how: Augment, generator: torch.Generator, count: int | None = None, mine: slice = slice(None)
) -> Tensor:
    """Images (count, channels, height, width), or the part `mine` of `count`, randomly shifted and mirrored."""
    count = len(images) if count is None else count

    def drawn(numbers: Tensor) -> Tensor:
        return numbers[..., mine].to(images.device, non_blocking=True)

    shifts = torch.randint(0, 2 * how.shift + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    down, right = drawn(shifts)
    images = moved(images, how, down, right, drawn(mirrored))
    if how.cutout:
        row, column = (drawn(torch.randint(0, side, (count,), generator=generator)) for side in images.shape[2:])
        images = cut_out(images, how.cutout, row, column)
    return images


def moved(images: Tensor, how: Augment, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Images shifted over a zero border, and mirrored where `mirrored`; the last three arguments are (count,)."""
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
    """Images with a square of zeros around one pixel each, cropped at the border; `row` and `column` are (count,)."""
    height, width = (torch.arange(length, device=images.device) for length in images.shape[2:])
    down, right = height - row[:, None] + side // 2, width - column[:, None] + side // 2  # from its corner
    rows, columns = (down >= 0) & (down < side), (right >= 0) & (right < side)  # (count, height), (count, width)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def _fits(size: int, device: torch.device) -> bool:
    """Whether this many bytes of images are kept on the device: on a GPU at most half of the free memory."""
    return size <= (torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else LARGEST_COPY)


def _same(one: Crops | None, other: Crops | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def _some(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[start : start + AT_ONCE] for start in range(0, len(numbers), AT_ONCE))


def _readable(images: Pixels | Pictures, labels: Labels, numbers: NDArray[np.int64]) -> tuple[Pixels, Labels]:
    """Some images and their labels, without damaged ones."""
    if not isinstance(images, Pictures):
        return images[numbers], labels[numbers]
    pixels, fine = images.decoded(numbers)
    return pixels[fine], labels[numbers[fine]]


def statistics(
    images: Pixels | Pictures, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation per channel, of pixels from 0 to 1; estimated from a sample if images are on disk."""
    if isinstance(images, Pictures) and len(numbers) > SAMPLE:
        numbers = numbers[np.linspace(0, len(numbers) - 1, SAMPLE).round().astype(np.int64)]
    counts = np.zeros((3, 256), dtype=np.int64)
    for some in _some(numbers):
        pixels = images[some]
        counts += np.stack([np.bincount(pixels[:, channel].ravel(), minlength=256) for channel in range(3)])
    levels = np.arange(256) / 255
    mean = counts @ levels / counts.sum(axis=1)
    return mean, np.sqrt(np.maximum(counts @ levels**2 / counts.sum(axis=1) - mean**2, 0))
