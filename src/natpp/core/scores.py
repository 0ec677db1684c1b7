"""Scores of candidates, higher is better, as methods see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Score = Callable[[Sequence[Any]], Scores]  # a scorer of candidates, or a prediction of one


class Gain(NamedTuple):
    """A score of pairs: how much better the second of each is than the first."""

    of: Callable[[Sequence[Any], Sequence[Any]], Scores]
