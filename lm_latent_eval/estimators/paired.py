r"""Which of two models predicts the same texts better, and how surely.

    R = sum_n d_n / sum_n U_n,    d_n = log p-hat_B(x_n) - log p-hat_A(x_n)

Symbols: d_n -> ``differences[n]``, nats that A takes more than B on a text; U_n ->
``num_units[n]``, its bytes or words.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; McNemar (1947);
Student (1908).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, ndtri, stdtrit  # all of scipy.stats takes half a second
from torch import Tensor

CONFIDENCE = 0.95
FEWEST_TEXTS = 10
"""Fewer do not tell how skewed their differences are."""
PSEUDO = 0.5
"""Pairs that are added to each outcome of a question, two in all."""


def satterthwaite(stderr: float, parts: Sequence[tuple[float, float]]) -> float:
    r"""Return the degrees of freedom of an error that has several parts.

    .. math:: \nu = \frac{\text{se}^4}{\sum_i \text{se}_i^4 / \nu_i}

    Args:
        stderr: The error of all.
        parts: Errors with their degrees of freedom; those of infinitely many may be
            left out.

    Example:
        >>> round(satterthwaite(1.0, [(0.6, 9.0), (0.8, 2.0)]), 3)
        4.562

    Reference:
        Satterthwaite (1946), "An approximate distribution of estimates of variance
        components".
    """
    if not math.isfinite(stderr):
        return 0.0
    known = [(error, degrees) for error, degrees in parts if error > 0]
    shares = sum((error / stderr) ** 4 / degrees for error, degrees in known)
    return 1 / shares if shares else math.inf


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
    degrees: float
    """Degrees of freedom of ``stderr``, by Satterthwaite; 0 of a single text."""
    skewness: float
    """Of the texts' differences, in errors of a normal sample's skewness."""
    share_won: float
    """Texts on which A takes fewer nats; half of those that are equal."""
    num_texts: int

    @property
    def interval(self) -> tuple[float, float]:
        """Where the difference lies at 95 %, by Student's t."""
        if not math.isfinite(self.stderr):
            return (-math.inf, math.inf)
        reach = self.stderr * float(stdtrit(self.degrees, (1 + CONFIDENCE) / 2))
        return (self.value - reach, self.value + reach)

    @property
    def undecided(self) -> str | None:
        r"""Say why the sign of the difference is not known at 95 %; None: it is.

        The null is that the mean difference over texts (and runs) like these is 0.
        Student's t tests it where differences are about normal. A long tail misleads
        it where it points to the other side: the texts of the tail are few and may not
        be among those at hand. So a skewness to that side is taken for chance up to
        0.85 of its errors at 10 texts, 0.1 more with each further one and 1.28 at
        most, and fewer texts than 10 say too little of the tail for any verdict.
        """
        if self.num_texts < FEWEST_TEXTS:
            return (
                f"{self.num_texts} texts are too few for a verdict, which takes "
                f"{FEWEST_TEXTS}"
            )
        low, high = self.interval
        if low <= 0 <= high:
            return "other texts or draws could turn it round"
        allowed = min(0.85 + 0.1 * (self.num_texts - FEWEST_TEXTS), 1.28)
        if self.skewness * self.value < 0 and abs(self.skewness) > allowed:
            return "a few texts differ much, and to the other side: more could decide"
        return None

    @classmethod
    def of(
        cls,
        differences: Tensor,
        num_units: Tensor,
        *,
        draws_stderr: Tensor,
        too_high: float = 0.0,
        runs_stderr: float = 0.0,
        runs_degrees: float = math.inf,
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
            runs_degrees: Degrees of freedom of that error.

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
        residuals = d - rate * units
        spread = math.sqrt((residuals**2).sum()) / units.sum()
        texts = spread * math.sqrt(count / (count - 1)) if count > 1 else math.inf
        stderr = math.hypot(max(texts, drawn), missed, runs_stderr)
        parts = [(texts, count - 1.0), (runs_stderr, runs_degrees)]
        return cls(
            value=float(rate),
            draws_stderr=math.hypot(drawn, missed),
            texts_stderr=math.sqrt(max(texts**2 - drawn**2, 0.0)),
            runs_stderr=runs_stderr,
            stderr=stderr,
            degrees=satterthwaite(stderr, parts),
            skewness=_skewness(residuals),
            share_won=float(np.mean((d < 0) + 0.5 * (d == 0))),
            num_texts=count,
        )


def _skewness(residuals: np.ndarray) -> float:
    """Return the skewness of what texts have over the mean, in its own errors.

    The error is that of a normal sample of the size (Cramer, 1946).
    """
    n, second = len(residuals), float((residuals**2).mean())
    if n < 3 or second == 0:
        return 0.0
    error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    third = float((residuals**3).mean())
    return third / (math.pow(second, 1.5) * error)


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
    """Of the accuracies' difference, over questions, with two pairs of questions added
    that are split evenly, so that it is no zero where all agree (Agresti and Min,
    2005)."""
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
        split, total = only_a + only_b + 2 * PSEUDO, len(a) + 4 * PSEUDO
        variance = split - (only_a - only_b) ** 2 / total
        return cls(
            accuracy=(a.double().mean().item(), b.double().mean().item()),
            only_a=only_a,
            only_b=only_b,
            p_value=cls.split(only_a, only_b),
            stderr=math.sqrt(variance) / total,
            num_questions=len(a),
        )

    @staticmethod
    def split(only_a: int, only_b: int) -> float:
        """Return how probable a split at least as uneven is, if both were as good."""
        differ = only_a + only_b
        one_sided = float(bdtr(min(only_a, only_b), differ, 0.5)) if differ else 1.0
        return min(2 * one_sided, 1.0)


def wilson(right: int, number: int) -> tuple[float, float]:
    """Return where a share lies at 95 %, of so many right answers.

    Example:
        >>> low, high = wilson(8, 8)
        >>> round(low, 3), round(high, 3)
        (0.676, 1.0)

    Reference:
        Wilson (1927), "Probable inference, the law of succession, and statistical
        inference".
    """
    z = float(ndtri((1 + CONFIDENCE) / 2))
    share, weight = right / number, z**2 / number
    middle: float = share + weight / 2
    reach = z * math.sqrt(share * (1 - share) / number + weight / number / 4)
    return (middle - reach) / (1 + weight), (middle + reach) / (1 + weight)
