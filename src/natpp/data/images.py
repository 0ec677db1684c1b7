"""A labelled image data set: in memory or on disk, stored as one file, with a validation split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natpp.data.pictures import Labels, Pictures, Pixels
from natpp.errors import FormatError, SettingError
from natpp.files import write_whole

NAMED = 5  # maximum number of skipped images to list
SMALL_IMAGE = 24  # side in pixels; smaller images get smaller networks and shorter schedules by default


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images with their labels, validated on construction.

    Examples:
        >>> import numpy as np
        >>> from natpp.data.images import Images
        >>> pixels, labels = np.zeros((4, 3, 8, 8), dtype=np.uint8), np.array([0, 1, 0, 1])
        >>> mine = Images("mine", 2, train=pixels, train_labels=labels, test=pixels, test_labels=labels)
        >>> [indices.tolist() for indices in mine.split(validation=1)]
        [[0, 1, 3], [2]]
    """

    name: str
    classes: int
    train: Pixels | Pictures
    train_labels: Labels
    test: Pixels | Pictures
    test_labels: Labels
    skipped: tuple[str, ...] = ()
    """files that could not be read and are left out, with the reason"""

    def __post_init__(self) -> None:
        for part, pixels, labels in (("train", self.train, self.train_labels), ("test", self.test, self.test_labels)):
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3 or not len(pixels):
                raise FormatError(
                    f"the {part} images of {self.name} must be bytes (uint8) of shape (images, 3, height, width)"
                )
            if labels.dtype != np.int64:
                raise FormatError(f"the {part} labels of {self.name} must be integers of shape (images,)")
            if labels.shape != (len(pixels),):
                raise FormatError(f"{self.name} has {len(pixels)} {part} images and {labels.size} labels")
            if labels.min() < 0 or labels.max() >= self.classes:
                raise FormatError(f"a {part} label of {self.name} is not in the range 0 to {self.classes - 1}")
        if self.train.shape[1:] != self.test.shape[1:]:
            raise FormatError(f"train and test images of {self.name} differ in size")

    def split(self, validation: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices of the training images to train on, and of those to validate on."""
        if not 0 < validation < len(self.train):
            raise SettingError(f"validation is {validation}, expected 1 to {len(self.train) - 1} images")
        order = np.random.default_rng(seed).permutation(len(self.train))
        return np.sort(order[validation:]), np.sort(order[:validation])

    @property
    def left_out(self) -> str | None:
        """A one-line message about skipped images; None if there are none."""
        if not self.skipped:
            return None
        count, more = len(self.skipped), len(self.skipped) - NAMED
        total = len(self.train) + len(self.test) + count
        named = ", ".join(self.skipped[:NAMED]) + (f", and {more} more" if more > 0 else "")
        subject = f"{count} of {total} images of {self.name} could not be read and"
        return f"{subject} {'is' if count == 1 else 'are'} left out: {named}"

    def save(self, path: str | Path) -> None:
        """Write the data set as one file."""
        from safetensors.numpy import save

        if isinstance(self.train, Pictures) or isinstance(self.test, Pictures):
            raise SettingError(f"the images of {self.name} stay on disk, so they cannot be saved as one file")
        train, test = np.ascontiguousarray(self.train), np.ascontiguousarray(self.test)
        arrays: dict[str, NDArray[Any]]
        arrays = {"train": train, "train_labels": self.train_labels, "test": test, "test_labels": self.test_labels}
        write_whole(path, save(arrays, metadata={"natpp": "images", "name": self.name, "classes": str(self.classes)}))

    @staticmethod
    def load(path: str | Path) -> Images:
        """Read a file that `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="numpy") as file:
                said = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            return Images(said["name"], int(said["classes"]), **arrays)
        except OSError as error:
            raise FormatError(f"cannot read the images {str(path)!r}: {error.strerror or error}") from None
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{str(path)!r} is not an image file written by natpp, or it is damaged: {error}"
            ) from None
