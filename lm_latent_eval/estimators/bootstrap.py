"""Bootstrap standard errors and intervals of means."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

RESAMPLES = 10_000
CONFIDENCE = 0.95

DRAWN_AT_ONCE = 1 << 22
"""Resampled values held in memory; moves no number."""


def bootstrap_interval(
    values: Tensor,
    *,
    seed: int | Sequence[int],
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    r"""Return a percentile interval of a mean, from resampling its n values.

    Each resample draws n values with replacement. Some resamples are drawn at a time,
    so memory does not grow with their number times n.

    Args:
        values: What the mean is over, shape ``(n,)``.
        seed: Of the draws; equal seeds give equal intervals.
        resamples: How many means are drawn.
        confidence: The probability between the two percentiles.

    Returns:
        The lower and the upper end, in the values' unit; both the value itself if all
        are equal.

    Raises:
        ValueError: If n is 0, ``resamples`` no whole number above 0 or
            ``confidence`` not between 0 and 1.

    Example:
        >>> import torch
        >>> bootstrap_interval(torch.tensor([2.0, 2.0]), seed=0)
        (2.0, 2.0)

    Reference:
        Efron and Tibshirani (1993), chapter 13.
    """
    count = len(values)
    checked_count(resamples, "resamples")
    if count == 0 or not 0 < confidence < 1:
        raise ValueError(
            "a bootstrap needs values and a confidence between 0 and 1; got "
            f"{count} values and confidence {confidence}"
        )
    known = values.double().cpu().numpy()
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    rows = max(DRAWN_AT_ONCE // count, 1)
    for first in range(0, resamples, rows):
        last = min(first + rows, resamples)
        drawn = generator.integers(count, size=(last - first, count), dtype=np.int32)
        means[first:last] = known[drawn].mean(-1)
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail])
    return float(lower), float(upper)


def checked_count(value: object, name: str) -> None:
    """Raise unless this is a whole number, at least 1.

    Args:
        value: What a caller gave.
        name: What the caller calls it.

    Raises:
        ValueError: If it is anything else, 2.0 included.

    Example:
        >>> checked_count(2.0, "num_bins")
        Traceback (most recent call last):
        ...
        ValueError: num_bins must be a whole number, at least 1; got 2.0
    """
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}")
