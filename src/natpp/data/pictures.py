"""Images that stay on disk: indexed like an array, decoded by a thread pool on use."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from natpp.data.decode import (
    UnreadableError,
    middle_of_photograph,
    middle_part,
    picture_size,
    random_part,
    read_picture,
    scaled,
)
from natpp.errors import FormatError

MOST_THREADS = 32
LOG = logging.getLogger("natpp")

Pixels = NDArray[np.uint8]  # (images, 3, height, width)
Labels = NDArray[np.int64]  # (images,)
Crops = NDArray[np.float32]  # (images, tries, 4), from 0 to 1: the input of `decode.random_part`
Say = Callable[[str], None]
Given = TypeVar("Given")
Found = TypeVar("Found")


class Pictures:
    """Image files as an array of bytes (images, 3, size, size): the central square of each, resized.

    Each damaged image is reported once. Where a fixed number is needed, another of its class replaces it, always the
    same one.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self,
        folder: str,
        names: Sequence[str],
        labels: Labels,
        size: int,
        *,
        photographs: bool = False,
        say: Say | None = None,
    ):
        """`names` are file names relative to the folder."""
        self.folder, self.names, self.labels, self.size = folder, names, labels, size
        self.photographs = photographs
        self.damaged: dict[int, str] = {}  # index of each image found damaged so far, with the reason
        self._say = say or LOG.warning

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self.size, self.size

    @property
    def nbytes(self) -> int:
        """Bytes that all images would take when decoded."""
        return len(self) * 3 * self.size**2

    def __getitem__(self, chosen: NDArray[np.int64] | slice) -> Pixels:
        return self.take(np.arange(len(self))[chosen])

    def take(self, chosen: NDArray[np.int64], crops: Crops | None = None) -> Pixels:
        """Images by index, or random parts of them; damaged ones are replaced by the next image of their class."""
        pixels, fine = self.decoded(chosen, crops)
        for place in np.flatnonzero(~fine).tolist():
            pixels[place] = self._instead(int(chosen[place]), None if crops is None else crops[place])
        return pixels

    def decoded(
        self, chosen: NDArray[np.int64] | slice, crops: Crops | None = None
    ) -> tuple[Pixels, NDArray[np.bool_]]:
        """Images by index, and which of them could be read; the others are black."""
        numbers = np.arange(len(self))[chosen].tolist()
        pixels = np.zeros((len(numbers), 3, self.size, self.size), dtype=np.uint8)

        def decode(place: int) -> str | None:
            try:
                self._decode(numbers[place], None if crops is None else crops[place], pixels[place])
            except UnreadableError as error:
                return str(error)
            return None

        wrong = in_threads(decode, range(len(numbers)))
        for number, reason in zip(numbers, wrong, strict=True):
            if reason is not None and number not in self.damaged:
                self.damaged[number] = reason
                self._say(f"cannot read the image {self._file(number)!r} ({reason}), so it is left out")
        return pixels, np.array([reason is None for reason in wrong], dtype=bool)

    @functools.cached_property
    def fingerprints(self) -> NDArray[np.uint8]:
        """A hash of 32 bytes per image, from its name, its file size and how it is cropped: (images, 32)."""

        def line(number: int) -> bytes:
            try:
                size = os.path.getsize(self._file(number))
            except OSError as error:
                raise FormatError(f"cannot read the image {self._file(number)!r}: {error.strerror}") from None
            return f"{self.names[number]} {size} {self.size} {self.photographs}".encode(errors="surrogateescape")

        digests = in_threads(lambda number: hashlib.sha256(line(number)).digest(), range(len(self)))
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)

    def _file(self, number: int) -> str:
        return os.path.join(self.folder, self.names[number])

    def _decode(self, number: int, crop: NDArray[np.float32] | None, into: Pixels) -> None:
        if number in self.damaged:
            raise UnreadableError(self.damaged[number])
        picture = read_picture(self._file(number))
        if crop is not None:
            part = random_part(*picture.size, crop.tolist())
        else:
            part = (middle_of_photograph if self.photographs else middle_part)(*picture.size)
        into[:] = scaled(picture, part, self.size)

    def _instead(self, number: int, crop: NDArray[np.float32] | None) -> Pixels:
        alike = np.flatnonzero(self.labels == self.labels[number])
        start = int(np.searchsorted(alike, number))
        for other in np.roll(alike, -start).tolist()[1:]:
            pixels, fine = self.decoded(np.array([other]), None if crop is None else crop[None])
            if fine[0]:
                found: Pixels = pixels[0]
                return found
        raise FormatError(f"none of the images in the class of {self._file(number)!r} can be read")


def picture_sizes(folder: str, names: Sequence[str]) -> list[tuple[int, int] | str]:
    """Width and height of each picture from its file header, or the reason why it cannot be read."""

    def look(name: str) -> tuple[int, int] | str:
        try:
            return picture_size(os.path.join(folder, name))
        except UnreadableError as error:
            return str(error)

    return in_threads(look, names)


def in_threads(function: Callable[[Given], Found], given: Sequence[Given]) -> list[Found]:
    """Map a function over a sequence with one thread per CPU core; Pillow releases the GIL."""
    pool, threads = _pool(os.getpid())
    at_once = min(max(1, len(given) // (4 * threads)), 256)  # one task per file would fill memory with a million files

    def some(start: int) -> list[Found]:
        return [function(one) for one in given[start : start + at_once]]

    return [found for part in pool.map(some, range(0, len(given), at_once)) for found in part]


@functools.cache
def _pool(process: int) -> tuple[ThreadPoolExecutor, int]:
    """The thread pool of a process, and its number of threads; threads do not survive a fork."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(max(1, processors // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), MOST_THREADS)
    return ThreadPoolExecutor(threads, thread_name_prefix="natpp-images"), threads
