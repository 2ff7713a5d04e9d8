r"""Mixtures: their log-probability, its error, and shares of components.

.. math:: \log p(x) = \log \sum_c \pi_c\, p(x \mid c)

Symbols: pi_c -> ``log_weights``; p(x | c) -> ``log_p``; pi_c p(x | c) / p(x) ->
``shares``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


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
