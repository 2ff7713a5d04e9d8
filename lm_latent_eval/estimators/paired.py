r"""Which of two models predicts the same texts better, and how surely.

    R = sum_n d_n / sum_n U_n,    d_n = log p-hat_B(x_n) - log p-hat_A(x_n)

Symbols: d_n -> ``differences[n]``, nats that A takes more than B on a text; U_n ->
``num_units[n]``, its bytes or words.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; McNemar (1947).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, bootstrap
from torch import Tensor

RESAMPLES = 9_999
CONFIDENCE = 0.95
DRAWN_AT_ONCE = 1 << 22
"""Resampled values held in memory; moves no number."""


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two rates on the same texts, in nats a unit, and its errors."""

    value: float
    """Of A's rate and B's: negative where A takes fewer nats."""
    draws_stderr: float
    """From the draws of both models' latents, and what they may have missed."""
    texts_stderr: float
    """From which texts these are; ``inf`` of a single one."""
    runs_stderr: float
    """From which runs of a model these are, where a side has several; else 0."""
    stderr: float
    """Together."""
    interval: tuple[float, float]
    """Of ``value`` when the texts are drawn again, at 95 %."""
    share_won: float
    """Texts on which A takes fewer nats; half of those that are equal."""
    num_texts: int

    @classmethod
    def of(
        cls,
        differences: Tensor,
        num_units: Tensor,
        *,
        draws_stderr: Tensor,
        too_high: float = 0.0,
        runs_stderr: float = 0.0,
        seed: int = 0,
    ) -> "PairedDifference":
        r"""Compare two models text by text.

        .. math::
            \text{se}^2 = \frac{N}{N-1} \frac{\sum_n (d_n - R U_n)^2}{(\sum_n U_n)^2}

        is the error over texts, in which that of the draws is: a text's difference
        varies by both. What the draws explain is taken out of it to tell them apart.
        What they missed does not vary so, and is added to either.

        Args:
            differences: Nats that A takes more than B, shape ``(N,)``.
            num_units: U, shape ``(N,)``, of positive total.
            draws_stderr: Errors of ``differences`` by the draws, shape ``(N,)``.
            too_high: Nats by which a side is likely to be too high on all texts
                together, the root sum of squares of both.
            runs_stderr: Error of the rates' difference from the runs of the sides.
            seed: Of the bootstrap.

        Raises:
            ValueError: If there is no text or no unit, or a difference is not finite.

        Example:
            >>> import torch
            >>> found = PairedDifference.of(
            ...     torch.tensor([-2.0, -1.0, 0.0, -1.0]),
            ...     torch.tensor([10, 10, 10, 10]),
            ...     draws_stderr=torch.tensor([0.3, 0.3, 0.3, 0.3]),
            ... )
            >>> found.value, found.share_won
            (-0.1, 0.875)
            >>> round(found.draws_stderr, 3), round(found.stderr, 3)
            (0.015, 0.041)
        """
        d = differences.double().numpy()
        units = num_units.double().numpy()
        errors = draws_stderr.double().numpy()
        if len(d) == 0 or units.sum() <= 0:
            raise ValueError(
                f"a comparison needs texts with units (words, bytes) in them; got "
                f"{len(d)} texts of {units.sum():g} units"
            )
        if not np.isfinite(d).all():
            raise ValueError(
                f"differences[{int(np.isfinite(d).argmin())}] is not finite"
            )
        rate = d.sum() / units.sum()
        count = len(d)
        drawn = math.sqrt((errors**2).sum()) / units.sum()
        missed = too_high / units.sum()
        spread = math.sqrt(((d - rate * units) ** 2).sum()) / units.sum()
        texts = spread * math.sqrt(count / (count - 1)) if count > 1 else math.inf
        return cls(
            value=float(rate),
            draws_stderr=math.hypot(drawn, missed),
            texts_stderr=math.sqrt(max(texts**2 - drawn**2, 0.0)),
            runs_stderr=runs_stderr,
            stderr=math.hypot(max(texts, drawn), missed, runs_stderr),
            interval=_interval(d, units, seed),
            share_won=float(np.mean((d < 0) + 0.5 * (d == 0))),
            num_texts=count,
        )


def _interval(d: np.ndarray, units: np.ndarray, seed: int) -> tuple[float, float]:
    """Bootstrap the ratio of sums over texts."""
    rate = d.sum() / units.sum()
    if len(d) == 1 or np.allclose(d, rate * units, rtol=0, atol=1e-12):
        return (float(rate), float(rate)) if len(d) > 1 else (-math.inf, math.inf)
    found = bootstrap(
        (d, units),
        lambda d, units, axis: d.sum(axis) / units.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(DRAWN_AT_ONCE // len(d), 1),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class PairedAccuracy:
    """Two models' right answers to the same questions."""

    accuracy: tuple[float, float]
    """Of A and B."""
    only_a: int
    """Questions that A alone answers rightly."""
    only_b: int
    """Questions that B alone answers rightly."""
    p_value: float
    """Of so uneven a split of those, if both were as good: McNemar's exact test."""
    stderr: float
    """Of the accuracies' difference, over questions."""
    num_questions: int

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> "PairedAccuracy":
        """Compare answers question by question.

        Args:
            a: Whether each answer of A is right, shape ``(N,)``.
            b: The same of B.

        Raises:
            ValueError: If there is no question.

        Example:
            >>> import torch
            >>> a = torch.tensor([True] * 9 + [False])
            >>> b = torch.tensor([True] * 3 + [False] * 6 + [True])
            >>> found = PairedAccuracy.of(a, b)
            >>> found.only_a, found.only_b, round(found.p_value, 3)
            (6, 1, 0.125)
        """
        if len(a) == 0:
            raise ValueError("a comparison needs at least one question; got none")
        only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
        gain = (a.double() - b.double()).numpy()
        return cls(
            accuracy=(a.double().mean().item(), b.double().mean().item()),
            only_a=only_a,
            only_b=only_b,
            p_value=cls.split(only_a, only_b),
            stderr=float(gain.std(ddof=1) / math.sqrt(len(a)))
            if len(a) > 1
            else math.inf,
            num_questions=len(a),
        )

    @staticmethod
    def split(only_a: int, only_b: int) -> float:
        """Return how probable a split at least as uneven is, if both were as good."""
        differ = only_a + only_b
        return float(binomtest(only_a, differ).pvalue) if differ else 1.0


__all__ = ["PairedAccuracy", "PairedDifference"]
