"""Images of a folder without classes, as normalized batches: enough to calibrate on, or to learn from a teacher."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from natpp.data.batches import statistics
from natpp.data.folders import read_unlabelled
from natpp.data.pictures import Pictures, Say
from natpp.errors import FormatError, SettingError, did_you_mean

BATCH = 128
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation that most pretrained networks expect
NORMALIZE = ("own", "imagenet", "none")


class Unlabelled:
    """Batches (images, 3, size, size) of a folder's images, in a fixed random order; it may be passed over again."""

    def __init__(self, folder: str | Path, size: int | None = None, normalize: str = "own", *, say: Say | None = None):
        """`own`: mean 0 and deviation 1 over these images; `imagenet`: over ImageNet; `none`: pixels from 0 to 1."""
        if normalize not in NORMALIZE:
            raise SettingError(f"unknown normalize={normalize}. {did_you_mean(str(normalize), NORMALIZE)}")
        self.folder, self.size, self.normalize, self.say = folder, size, normalize, say

    @functools.cached_property
    def pictures(self) -> Pictures:
        """The images."""
        return read_unlabelled(self.folder, self.size, say=self.say)

    def __len__(self) -> int:
        return -(-len(self.pictures) // BATCH)

    def __iter__(self) -> Iterator[Tensor]:
        mean, spread = self._scale
        read = 0
        for start in range(0, len(self.pictures), BATCH):
            pixels, fine = self.pictures.decoded(slice(start, start + BATCH))
            read += int(fine.sum())
            if fine.any():
                yield (torch.from_numpy(pixels[fine]).float() / 255 - mean) / spread
        if not read:
            raise FormatError(f"none of the images in {str(self.folder)!r} can be read")

    @functools.cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation per channel, (3, 1, 1)."""
        scale = {"imagenet": IMAGENET, "none": ((0.0,) * 3, (1.0,) * 3)}.get(self.normalize)
        mean, spread = scale or statistics(self.pictures, np.arange(len(self.pictures)))
        return (
            torch.tensor(mean, dtype=torch.float32).view(3, 1, 1),
            torch.tensor(np.maximum(spread, 1e-3), dtype=torch.float32).view(3, 1, 1),
        )
