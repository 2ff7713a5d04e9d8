r"""Mixtures: their log-probability, its error, and shares of components and factors.

.. math:: \log p(x) = \log \sum_c \pi_c\, p(x \mid c)

Symbols: pi_c -> ``log_weights``; p(x | c) -> ``log_p``; pi_c p(x | c) / p(x) ->
``shares``. Where components are combinations of independent factors, the variance of a
number over them splits into what each factor alone moves and what they move together.
Source: Sobol (1993), "Sensitivity estimates for nonlinear mathematical models", for the
split, of first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def log_mixture(log_weights: Sequence[float], log_p: Sequence[float]) -> float:
    """Return log p of a mixture, nats.

    Args:
        log_weights: Log pi_c, nats.
        log_p: Log p(x | c), nats; ``-inf`` is a probability of zero.

    Example:
        >>> weights = [math.log(0.25), math.log(0.75)]
        >>> round(math.exp(log_mixture(weights, [math.log(0.8), math.log(0.4)])), 4)
        0.5
        >>> log_mixture(weights, [-math.inf, -math.inf])
        -inf
    """
    joint = [a + b for a, b in zip(log_weights, log_p, strict=True)]
    most = max(joint)
    if most == -math.inf:
        return most
    # Exactly rounded: its terms may stand in any order.
    return most + math.log(math.fsum(math.exp(each - most) for each in joint))


def shares(log_weights: Sequence[float], log_p: Sequence[float]) -> list[float]:
    """Return the share of a mixture's probability that is each component's.

    Example:
        >>> weights = [math.log(0.25), math.log(0.75)]
        >>> [round(s, 4) for s in shares(weights, [math.log(0.8), math.log(0.4)])]
        [0.4, 0.6]
    """
    total = log_mixture(log_weights, log_p)
    if total == -math.inf:
        raise ValueError("no component gives it a probability, so none has a share")
    pairs = zip(log_weights, log_p, strict=True)
    return [math.exp(a + b - total) for a, b in pairs]


def mixture_stderr(part: Sequence[float], stderrs: Sequence[float]) -> float:
    """Return the standard error of log p of a mixture of independent estimates, nats.

    By the delta method: that of each component's log p counts by its share.

    Args:
        part: Shares of the components.
        stderrs: Of log p of each, nats.

    Example:
        >>> round(mixture_stderr([0.4, 0.6], [0.3, 0.1]), 4)
        0.1342
    """
    return math.hypot(*(s * e for s, e in zip(part, stderrs, strict=True)))


def split_variance(values: Numbers, weights: Sequence[Numbers]) -> list[float]:
    r"""Split the variance of a number over the combinations of independent factors.

    .. math::
        \mathrm{Var}(v) = \sum_f \mathrm{Var}(E[v \mid f]) + \text{rest}

    Args:
        values: The number of each combination, shape ``(N_1, ..., N_F)``.
        weights: Of the variants of each factor, shape ``(N_f,)`` each; they total 1.

    Returns:
        What each factor alone moves, then what they move together: F + 1 numbers of at
        least 0, which total the variance.

    Example:
        >>> even = np.array([0.5, 0.5])
        >>> split_variance(np.array([[0.0, 1.0], [2.0, 3.0]]), [even, even])
        [1.0, 0.25, 0.0]
        >>> split_variance(np.array([[0.0, 1.0], [1.0, 0.0]]), [even, even])
        [0.0, 0.0, 0.25]
    """
    factors = len(weights)
    mean = _mean(values, weights, ())
    total = _mean((values - mean) ** 2, weights, ())
    found = []
    for factor, weight in enumerate(weights):
        alone = _mean(values, weights, (factor,))
        found.append(float((weight * (alone - mean) ** 2).sum()))
    rest = float(total) - math.fsum(found)
    return [*found, max(rest, 0.0) if factors > 1 else 0.0]


def _mean(values: Numbers, weights: Sequence[Numbers], kept: Sequence[int]) -> Numbers:
    """Average over all factors except ``kept``."""
    for factor in reversed(range(len(weights))):
        if factor not in kept:
            values = np.tensordot(values, weights[factor], axes=(factor, 0))
    return values
