r"""Power: how many texts or questions decide a difference with a given probability.

    n = min { n : P(|T| > c_n) >= power },   T ~ t_nu(delta / se_n),
    se_n^2 = sigma^2 / n + sum_j s_j^2

Symbols: delta -> ``difference``; sigma -> ``spread``, the standard deviation of a
text's (or cluster's) part of the paired difference; s_j -> ``runs``, ``missed``, errors
that more texts leave as they are; c_n and nu are what ``paired`` decides by.
Source: Lehr (1992) for the rule of thumb; Miller (2024), section 5, for evaluations;
Connor (1987) for McNemar's test, whose power is summed here and not approximated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrik, chdtri, gammaln, xlogy

from lm_latent_eval.estimators.paired import FEWEST_TEXTS, power_of
from lm_latent_eval.estimators.standard_errors import CONFIDENCE, pooled_degrees

POWER = 0.8
MOST = 10**9
"""More texts are not counted."""


@dataclass(frozen=True)
class Needed:
    """Sample sizes that decide a difference."""

    number: int
    """At the spread that was seen."""
    at_least: int
    """Sample size at the lower end of the spread's 95 % interval."""
    at_most: int
    """Sample size at its upper end."""

    def times(self, size: float) -> Needed:
        """Convert to smaller units, such as the texts of clusters."""
        return Needed(*(math.ceil(each * size) for each in vars(self).values()))


def needed(
    difference: float,
    spread: float,
    num_seen: int,
    *,
    runs: tuple[float, float] = (0.0, math.inf),
    missed: float = 0.0,
) -> Needed | None:
    """Return how many independent texts decide a difference with probability POWER.

    Args:
        difference: The true one.
        spread: Standard deviation over texts, of their parts of it.
        num_seen: Texts that the spread was estimated from.
        runs: The error over runs of the models, and its degrees of freedom.
        missed: What draws of latents may have missed.

    Returns:
        How many; None if none do, since errors that more texts leave are too large.

    Raises:
        ValueError: If the difference is not positive, or fewer than two were seen.

    Example:
        >>> needed(0.01, 0.1, 10_000)
        Needed(number=787, at_least=766, at_most=810)
    """
    if not difference > 0 or num_seen < 2:
        raise ValueError(
            f"a power needs a positive difference and two texts; got {difference} and "
            f"{num_seen}"
        )

    def count(spread: float) -> int:
        return _smallest(lambda n: decides(n, spread), FEWEST_TEXTS)

    def decides(n: int, spread: float) -> bool:
        parts = [(spread / math.sqrt(n), n - 1.0), runs, (missed, math.inf)]
        stderr = math.hypot(*(error for error, _ in parts))
        if not stderr:
            return True
        degrees = min(pooled_degrees(parts), MOST)
        return power_of(difference / stderr, degrees, n, runs[0] > 0) >= POWER

    if not decides(MOST, 0.0):
        return None

    nu, tail = num_seen - 1, (1 - CONFIDENCE) / 2
    wide = math.sqrt(nu / float(chdtri(nu, 1 - tail)))
    narrow = math.sqrt(nu / float(chdtri(nu, tail)))
    return Needed(*(count(spread * ratio) for ratio in (1.0, narrow, wide)))


def needed_questions(difference: float, share: float, num_seen: int) -> Needed:
    """Return how many questions decide one so by McNemar's exact test.

    Args:
        difference: Of two accuracies, the true one.
        share: Of questions that one model alone answers rightly, at least the
            difference.
        num_seen: Questions that the share was estimated from.

    Raises:
        ValueError: If the difference is not between 0 and 1.
    """
    if not 0 < difference < 1:
        raise ValueError(f"a difference of accuracies is in (0, 1), not {difference}")

    def count(share: float) -> int:
        share = min(max(share, difference), 1.0)

        def decides(n: int) -> bool:
            return power_of_mcnemar(difference, share, n) >= POWER

        return _smallest(decides, 6)

    error = math.sqrt(share * (1 - share) / num_seen)
    ends = (share, share - 1.96 * error, share + 1.96 * error)
    return Needed(*map(count, ends))


def power_of_mcnemar(difference: float, share: float, number: int) -> float:
    """Return how often McNemar's exact test decides a difference of accuracies.

    Args:
        difference: The true one.
        share: Of questions that one model alone answers rightly, at least that.
        number: Of questions.
    """
    middle, reach = number * share, 8 * math.sqrt(number * share * (1 - share)) + 8
    low, high = (
        max(0, math.floor(middle - reach)),
        min(number, math.ceil(middle + reach)),
    )
    differ = np.arange(low, high + 1)
    if len(differ) > 4000:  # a grid of so many tells
        differ = np.unique(np.linspace(low, high, 4000).astype(int))
    log_p = (
        gammaln(number + 1)
        - gammaln(differ + 1)
        - gammaln(number - differ + 1)
        + xlogy(differ, share)
        + xlogy(number - differ, 1 - share)
    )
    weights = np.exp(log_p - log_p.max())
    lost = _largest_loss(differ)
    won = min((share + difference) / (2 * share), 1.0)
    decided = sum(
        np.where(lost >= 0, bdtr(np.maximum(lost, 0), differ, p), 0.0)
        for p in (1 - won, won)
    )
    return float(weights @ decided / weights.sum())


def _largest_loss(differ: np.ndarray) -> np.ndarray:
    """Return the most wins of the loser at which p < 0.05, or -1."""
    tail = (1 - CONFIDENCE) / 2
    guess = np.floor(bdtrik(tail, np.maximum(differ, 1), 0.5))
    lost: np.ndarray = np.where(np.isfinite(guess), guess, -1).astype(int) + 1
    lost = np.minimum(lost, differ)  # the guess is interpolated, so from one more
    for _ in range(3):
        p = bdtr(np.maximum(lost, 0), differ, 0.5)
        lost = np.where((lost >= 0) & (p >= tail), lost - 1, lost)
    return lost


def _smallest(decides: Callable[[int], bool], least: int) -> int:
    high = least
    while high < MOST and not decides(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return max(high, least)
