"""Random numbers of a run: each use has its own, and all follow from the seed and the number of the step.

So a run that is resumed at any step draws what it would have drawn, and no random state has to be kept.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
import torch


class Use(IntEnum):
    """What random numbers are for."""

    START = 0  # first weights
    DRAW = 1  # architectures
    ORDER = 2  # of images
    AUGMENT = 3
    SCORE = 4  # what is scored for the prediction
    LEARN = 5  # inputs and samples of a policy step
    FINAL = 6  # final choices
    DROP = 7  # paths of a network under training


def generator(seed: int, use: Use, *numbers: int) -> np.random.Generator:
    """A numpy generator for one use at one place of a run."""
    return np.random.default_rng([seed, use, *numbers])


def number(seed: int, use: Use, *numbers: int) -> int:
    """A seed for something else."""
    return int(generator(seed, use, *numbers).integers(2**31))


def from_text(what: object, seed: int) -> int:
    """A seed that follows from the text of a value, such as a candidate: it is the same whatever is drawn beside it."""
    return int.from_bytes(hashlib.sha256(f"{seed} {what}".encode()).digest()[:4], "big")


def torch_generator(seed: int, use: Use, *numbers: int) -> torch.Generator:
    """A torch generator on the CPU, so that every device sees the same numbers."""
    return torch.Generator().manual_seed(number(seed, use, *numbers))
