r"""Student's t for standard errors estimated from few replicates.

.. math:: \nu = \frac{(\sum_n d_n^2)^2}{\sum_n d_n^4 / \nu_n}

are the degrees of freedom of a sum whose terms have errors d_n, each told by replicates
with nu_n of them.

Source: Welch (1947) and Satterthwaite (1946).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.special import ndtri, stdtrit  # all of scipy.stats takes half a second

CONFIDENCE = 0.95


def pooled_degrees(errors: Iterable[tuple[float, float]]) -> float:
    """Return the degrees of freedom of the error of a sum.

    Args:
        errors: Of each independent term its error and what degrees that has; ``inf``
            of one that is known.

    Example:
        >>> pooled_degrees([(1.0, 7), (1.0, 7)]), pooled_degrees([(1.0, 7), (0.0, 1)])
        (14.0, 7.0)
    """
    known = [(d, nu) for d, nu in errors if math.isfinite(d) and d > 0]
    most = max((d for d, _ in known), default=0.0)
    squares = [((d / most) ** 2, nu) for d, nu in known]  # no power of them underflows
    spread = math.fsum(square**2 / nu for square, nu in squares)
    total = math.fsum(square for square, _ in squares)
    return total**2 / spread if spread else math.inf


def widened(error: float, degrees: float) -> float:
    """Return an error of which 1.96 on either side hold 95 % of the time.

    Student's t says how much further the truth may be, where a standard error is itself
    told by few replicates.

    Args:
        error: A standard error.
        degrees: Its degrees of freedom; ``inf`` if it is known.

    Example:
        >>> widened(1.0, math.inf), round(widened(1.0, 7), 4), round(widened(1.0, 4), 4)
        (1.0, 1.2065, 1.4166)
    """
    if math.isinf(degrees) or not 0 < error < math.inf:
        return error
    tail = (1 + CONFIDENCE) / 2
    return error * float(stdtrit(degrees, tail) / ndtri(tail))
