"""Statistics of experiments: rank correlations, paired differences, and their confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000  # bootstrap samples
FEWEST = 4  # values that a rank correlation needs
Values = Sequence[float] | NDArray[np.float64]


def spearman(one: Values, other: Values) -> float | None:
    """Rank correlation; None with too few values or when all values of one side are equal."""
    if len(one) < FEWEST or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return _correlation(_ranks(one), _ranks(other))


def partial(one: Values, other: Values, given: Values) -> float | None:
    """Partial rank correlation of two columns given a third; None where it is undefined."""
    if len(one) < FEWEST or min(np.ptp(one), np.ptp(other), np.ptp(given)) == 0:
        return None
    ranks = [_ranks(values) for values in (one, other, given)]
    both, first, second = (_correlation(ranks[i], ranks[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    rest = (1 - first**2) * (1 - second**2)
    return float((both - first * second) / np.sqrt(rest)) if rest > 1e-12 else None


def _ranks(values: Values) -> NDArray[np.float64]:
    """Ranks minus their mean; equal values share a rank."""
    ordered = np.sort(values)
    below, upto = np.searchsorted(ordered, values), np.searchsorted(ordered, values, side="right")
    return np.asarray((below + upto - len(ordered)) / 2)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Correlation of values whose mean is 0."""
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def with_interval(statistic: Callable[..., float | None], *columns: Values) -> dict[str, Any] | None:
    """A statistic and its 95 % bootstrap interval over rows, with a fixed seed; None where it is undefined."""
    arrays = [np.asarray(column, dtype=float) for column in columns]
    value = statistic(*arrays)
    if value is None:
        return None
    generator = np.random.default_rng(0)
    rows = len(arrays[0])
    drawn = (generator.integers(rows, size=rows) for _ in range(DRAWS))
    found = [one for some in drawn if (one := statistic(*(array[some] for array in arrays))) is not None]
    low, high = np.percentile(found, [2.5, 97.5]).tolist() if found else (value, value)
    return {"value": value, "low": low, "high": high, "rows": rows}


def paired(after: Values, before: Values) -> dict[str, Any]:
    """Mean paired difference with its 95 % bootstrap interval, and how many pairs win and lose."""
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    found = with_interval(lambda values: float(values.mean()), differences) or {}
    return found | {"wins": int((differences > 0).sum()), "losses": int((differences < 0).sum())}


def mean_sd(values: Values) -> dict[str, float]:
    """Mean and standard deviation, 0 for a single value."""
    found = np.asarray(values, dtype=float)
    return {"mean": float(found.mean()), "sd": float(found.std(ddof=min(len(found) - 1, 1)))}
