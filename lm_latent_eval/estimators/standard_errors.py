"""Standard errors of means and ratios; Student's t for few replicates; bootstraps.

Sources: Cochran (1977), section 2.11; Welch (1947) and Satterthwaite (1946) for the
degrees of freedom of a sum; Bell and McCaffrey (2002) for sums of unequal sizes; Efron
and Tibshirani (1993), chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # all of scipy.stats takes half a second
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_count, checked_finite

CONFIDENCE = 0.95
RESAMPLES = 10_000
DRAWN_AT_ONCE = 1 << 22
"""Values that a bootstrap holds in memory; moves no number."""


def mean_stderr(values: Tensor) -> Tensor:
    r"""Return the standard error of a mean over independent replicates.

    .. math:: \mathrm{se}^2 = \frac{1}{R (R - 1)} \sum_{r=1}^{R} (y_r - \bar y)^2

    Of contrastive entropies, a replicate is the whole text distorted anew: the error
    speaks of the noise alone.

    Args:
        values: One number a replicate, shape ``(..., R)``.

    Returns:
        Their unit, shape ``(...)``, float64; ``inf`` (unknown) for one replicate.

    Raises:
        TypeError: If ``values`` is not a floating-point tensor.
        ValueError: If R is 0 or a value is not finite.

    Example:
        >>> mean_stderr(torch.tensor([1.0, 3.0]))
        tensor(1., dtype=torch.float64)
    """
    checked_finite(values, "values")
    return ratio_stderr(values, torch.ones_like(values))


def ratio_stderr(numerator: Tensor, denominator: Tensor) -> Tensor:
    r"""Return the delta-method standard error of a ratio of two sums over M pairs.

    .. math::
        R = \frac{\sum_m a_m}{\sum_m b_m}, \qquad
        \mathrm{se}^2 = \frac{1}{\bigl(\sum_m b_m\bigr)^2} \frac{M}{M-1}
        \sum_{m=1}^{M} (a_m - R b_m)^2

    Of contrastive entropies: pairs are sentences (:func:`contrastive_ratio_stderr`), or
    replicates, whose entropies at a level and at the baseline are a_m and b_m.

    Args:
        numerator: a, shape ``(..., M)``.
        denominator: b, of a shape that broadcasts.

    Returns:
        The ratio's unit, shape ``(...)``, float64; ``inf`` (unknown) for one pair.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If M is 0, the b total 0 or a number is not finite.

    Example:
        >>> ratio_stderr(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
        tensor(1., dtype=torch.float64)

    Reference:
        Cochran (1977), section 2.11, without finite-population correction.
    """
    checked_finite(numerator, "numerator")
    checked_finite(denominator, "denominator")
    if numerator.ndim == 0:
        raise ValueError("numerator must have shape (..., M); got a single number")
    a, b = torch.broadcast_tensors(in_float64(numerator), in_float64(denominator))
    num_pairs = a.shape[-1]
    total: Tensor = b.sum(-1)
    if (total == 0).any():
        raise ValueError("the denominator totals 0: no ratio")
    residual = a - (a.sum(-1) / total)[..., None] * b
    if num_pairs == 1:
        return torch.full_like(total, torch.inf)
    spread: Tensor = residual.square().sum(-1) * num_pairs / (num_pairs - 1)
    return spread.sqrt() / total.abs()


def pooled_degrees(errors: Iterable[tuple[float, float]]) -> float:
    r"""Return the degrees of freedom of the error of a sum.

    .. math:: \nu = \frac{(\sum_n d_n^2)^2}{\sum_n d_n^4 / \nu_n}

    for terms of errors d_n, each estimated with nu_n degrees of freedom.

    Args:
        errors: Of each independent term its error and what degrees that has; ``inf``
            of one that is known.

    Example:
        >>> pooled_degrees([(1.0, 7), (1.0, 7)]), pooled_degrees([(1.0, 7), (0.0, 1)])
        (14.0, 7.0)
    """
    error, degrees = np.fromiter(errors, dtype=np.dtype((np.float64, 2))).T
    known = np.isfinite(error) & (error > 0)
    if not known.any():
        return math.inf
    square = (error[known] / error[known].max()) ** 2  # no power of them underflows
    spread = float((square**2 / degrees[known]).sum())
    return float(square.sum()) ** 2 / spread if spread else math.inf


def widened(error: float, degrees: float) -> float:
    """Return an error of which 1.96 on either side hold 95 % of the time.

    Student's t says how much further the truth may be, where a standard error is itself
    estimated from few replicates.

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


NEARLY_ALL = 0.999
"""Share of the units in one text above which the others tell no error: differences of
nearly equal numbers would be next to all of it."""


def correct_for_sizes(units: NDArray[np.float64]) -> tuple[float, float]:
    r"""Return the variance correction c of N texts or clusters, and its degrees.

    Of sums over U words each whose variance is in proportion to U^2 (words of one text
    share what moves them, as texts of one cluster do), the squares of r = M d, M = I -
    U 1' / S, S = sum U, have mean tr(M'M V) and variance 2 tr((M'M V)^2), V =
    diag(U^2). Of one size they give N / (N - 1) and N - 1.
    """
    x = units / units.sum()
    if x.max() > NEARLY_ALL:
        return math.inf, 0.0
    v = x**2
    c, a, b = float(x @ x), float(v @ x), float(v @ v)
    mean = c + c**2 - 2 * a
    apart = c**4 + 2 * c * b - 4 * c**2 * a + 2 * a**2
    own = b + 2 * c * b - 4 * float(v @ (v * x))
    return c / mean, mean**2 / (apart + own)


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
