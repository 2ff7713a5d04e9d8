"""Detection of questions whose answer may change with other draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.special import stdtrit  # all of scipy.stats takes half a second

CONFIDENCE = 0.95


def is_undecided(
    options: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> bool:
    r"""Whether the best option is within Monte Carlo error of another one.

    Of the best option's replicates :math:`a_r` and another's :math:`b_r`, from the same
    draws, :math:`\bar d = \mathrm{mean}(a_r - b_r)` is told from 0 if it exceeds its
    standard error times Student's t of R - 1 degrees of freedom.

    Args:
        options: Of each option R replicates of its log-likelihood, nats, or its one
            log-likelihood where nothing was drawn.
        confidence: Of each comparison, two-sided.

    Raises:
        ValueError: If there is no option or one without replicates, or not equally many
            of each that was drawn.

    Example:
        >>> is_undecided([[-1.0, -1.1, -0.9], [-1.2, -1.3, -1.1]])  # the draws agree
        False
        >>> is_undecided([[-1.0, -1.6, -0.4], [-1.2, -0.6, -1.8]])
        True
    """
    sizes = {len(option) for option in options}
    if not sizes or 0 in sizes or len(sizes - {1}) > 1:
        raise ValueError("expected as many replicates of every option, and at least 1")
    if (number := max(sizes)) == 1:
        return False
    wide = stdtrit(number - 1, (1 + confidence) / 2)
    best, *others = sorted(options, key=fmean, reverse=True)
    for other in others:
        pairs = zip(_all(best, number), _all(other, number), strict=True)
        gaps = [a - b for a, b in pairs]
        if fmean(gaps) < wide * stdev(gaps) / math.sqrt(number):
            return True
    return False


def _all(option: Sequence[float], number: int) -> list[float]:
    return list(option) * (number if len(option) == 1 else 1)
