"""Bounds: the relation of an estimate of log p(x) to log p(x)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Bound(StrEnum):
    """In which direction an estimate of log p(x) bounds it, the strongest first.

    Example:
        >>> print(Bound.STOCHASTIC_LOWER)
        stochastic lower
    """

    EXACT = "exact"
    """The estimate is log p(x): every latent was summed over."""

    STRICT_LOWER = "strict lower"
    """log p-hat <= log p, always."""

    STOCHASTIC_LOWER = "stochastic lower"
    """E[log p-hat] <= log p, and a certificate exists: perplexity is bounded above."""

    ESTIMATED_LOWER = "estimate of a lower bound"
    """E[log p-hat] <= log p, but no certificate: the estimate of a bound, such as an
    average of log-weights, not the logarithm of an unbiased estimate."""

    NONE = "none"
    """Neither: a difference of estimates, a stopped run, a bias-corrected logarithm."""

    UNNORMALISED = "unnormalised score"
    """No log p(x) at all, but log p(x) plus a constant that nobody knows."""

    @classmethod
    def weakest(cls, bounds: Iterable[Bound]) -> Bound:
        """Return the kind of a product of factors of these kinds.

        Example:
            >>> print(Bound.weakest([Bound.EXACT, Bound.STRICT_LOWER]))
            strict lower
        """
        return max(bounds, key=list(cls).index)
