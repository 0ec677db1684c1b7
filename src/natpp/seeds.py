"""Random numbers of a run: one stream for each use, derived from the seed and the step number.

A run resumed at any step therefore draws the same numbers, without saving any random state.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
import torch


class Use(IntEnum):
    """What random numbers are used for."""

    START = 0  # initial weights
    DRAW = 1  # architectures
    ORDER = 2  # of the images
    AUGMENT = 3
    SCORE = 4  # which architectures are scored to fit the predictor
    LEARN = 5  # inputs and samples of a policy step
    FINAL = 6  # final choices
    DROP = 7  # drop path during training


def generator(seed: int, use: Use, *numbers: int) -> np.random.Generator:
    """A numpy generator for one use at one step of a run."""
    return np.random.default_rng([seed, use, *numbers])


def number(seed: int, use: Use, *numbers: int) -> int:
    """A seed for another library's generator."""
    return int(generator(seed, use, *numbers).integers(2**31))


def from_text(what: object, seed: int) -> int:
    """A seed derived from the text of a value, such as a candidate; it does not depend on what else is drawn."""
    return int.from_bytes(hashlib.sha256(f"{seed} {what}".encode()).digest()[:4], "big")


def torch_generator(seed: int, use: Use, *numbers: int) -> torch.Generator:
    """A torch generator on the CPU, so that the numbers are the same on every device."""
    return torch.Generator().manual_seed(number(seed, use, *numbers))
