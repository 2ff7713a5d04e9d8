r"""Paired comparison of two models on the same texts.

    R = sum_n d_n / sum_n U_n,    d_n = log p-hat_B(x_n) - log p-hat_A(x_n)

Symbols: d_n -> ``differences[n]``, nats that A takes more than B on a text; U_n ->
``num_units[n]``, its bytes or words.
Source: the ratio estimator and its variance, Cochran (1977), chapter 6; McNemar (1947);
Student (1908); L-skewness and its error, Hosking (1990), section 3.4.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import (  # all of scipy.stats takes half a second
    bdtr,
    ndtr,
    ndtri,
    stdtr,
    stdtrit,
)
from torch import Tensor

from lm_latent_eval.estimators.degrees import CONFIDENCE, pooled_degrees, widened

FEWEST_TEXTS = 10
"""Fewer do not tell how skewed their differences are."""
CHANCE = 1.12
"""Errors of a skewness that may be chance."""
WIDENED, WIDENED_OF = 50.0, 10
"""How much further the tail's side of an interval is a further error of the skewness,
of so many texts; a hundredth of that of ten times as many."""
PSEUDO = 0.5
"""Pairs that are added to each outcome of a question, two in all."""


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two rates on the same texts, in nats a unit, and its errors."""

    value: float
    """Of A's rate and B's: negative where A takes fewer nats."""
    draws_stderr: float
    """From the draws of both models' latents, and what they may have missed; widened
    where few passes told it."""
    texts_stderr: float
    """From which texts these are; ``inf`` of a single one."""
    runs_stderr: float
    """From which runs of a model these are, where a side has several; else 0."""
    stderr: float
    """Together."""
    degrees: float
    """Degrees of freedom of ``stderr``, by Satterthwaite."""
    skewness: float
    """L-skewness of the texts' differences, in errors of a normal sample's."""
    share_won: float
    """Texts on which A takes fewer nats; half of those that are equal."""
    num_texts: int

    @property
    def interval(self) -> tuple[float, float]:
        r"""Where the difference lies at 95 %, by Student's t and the skewness.

        A long tail misleads Student's t where the few texts that are in it are not
        among those at hand. So the end towards the tail is further away, the more
        errors s the skewness has beyond what may be chance:

        .. math:: c\, \text{se}\, \bigl(1 + w_N \max(0, s - 1.12)\bigr), \qquad
            w_N = 50\, (10 / N)^2

        and c se the other one. Under normality s and t are independent, and c is such
        that the interval holds 95 %; with errors over runs, of which the skewness says
        nothing, c is Student's. Skewness matters less the more texts there are, and
        fewer than 10 tell none: then the interval is that of Student's t.
        """
        if not math.isfinite(self.stderr):
            return (-math.inf, math.inf)
        slope = 0.0
        if self.num_texts >= FEWEST_TEXTS:
            slope = WIDENED * (WIDENED_OF / self.num_texts) ** 2
        spared = 0.0 if self.runs_stderr else slope
        reach = self.stderr * _reach(self.degrees, spared)
        low, high = (
            1 + slope * max(0.0, s - CHANCE) for s in (-self.skewness, self.skewness)
        )
        return (self.value - reach * low, self.value + reach * high)

    @property
    def margin(self) -> float:
        """How far the interval is from 0; not positive where it holds 0."""
        low, high = self.interval
        return max(low, -high)

    @property
    def undecided(self) -> str | None:
        """Say why the sign of the difference is not known at 95 %; None: it is.

        The null is that the mean difference over texts (and runs) like these is 0. It
        is refused where the interval leaves 0 out and there are 10 texts: fewer say too
        little of their tail for any verdict.
        """
        if self.num_texts < FEWEST_TEXTS:
            return (
                f"{self.num_texts} texts are too few for a verdict, which takes "
                f"{FEWEST_TEXTS}"
            )
        if self.margin > 0:
            return None
        if self.skewness * self.value < 0 and abs(self.skewness) > CHANCE:
            return "a few texts differ much, and to the other side: more could decide"
        return "other texts or draws could turn it round"

    @classmethod
    def of(
        cls,
        differences: Tensor,
        num_units: Tensor,
        *,
        draws_stderr: Tensor,
        draws_degrees: float = math.inf,
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
            draws_degrees: Degrees of freedom of these errors, of all texts together.
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
        differ = max((texts, count - 1.0), (drawn, draws_degrees))
        parts = [differ, (missed, math.inf), (runs_stderr, runs_degrees)]
        return cls(
            value=float(rate),
            draws_stderr=math.hypot(widened(drawn, draws_degrees), missed),
            texts_stderr=math.sqrt(max(texts**2 - drawn**2, 0.0)),
            runs_stderr=runs_stderr,
            stderr=math.hypot(*(error for error, _ in parts)),
            degrees=pooled_degrees(parts),
            skewness=_skewness(residuals),
            share_won=float(np.mean((d < 0) + 0.5 * (d == 0))),
            num_texts=count,
        )


def _skewness(residuals: np.ndarray) -> float:
    """Return the L-skewness of what texts have over the mean, in its own errors.

    It is third over second L-moment, and hardly biased in small samples; the error is
    that of a normal sample.
    """
    n = len(residuals)
    if n < 3:
        return 0.0
    ordered, place = np.sort(residuals), np.arange(n)
    once = float(ordered @ place) / (n - 1)
    twice = float(ordered @ (place * (place - 1))) / ((n - 1) * (n - 2))
    second = 2 * once - float(ordered.sum())
    third = 6 * (twice - once) + float(ordered.sum())
    error = math.sqrt((0.1866 + 0.8 / n) / n)
    return third / second / error if second > 0 else 0.0


TAIL = 16
"""Skewnesses beyond chance that stand for all."""


@lru_cache(maxsize=1024)
def _reach(degrees: float, slope: float) -> float:
    """Return how many errors either end is away, but for what skewness adds.

    Args:
        degrees: Of freedom of the error.
        slope: How much further the end towards a tail is an error of the skewness.
    """
    most = float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
    if not slope:
        return most
    by_chance = float(ndtr(CHANCE))
    beyond = by_chance + (1 - by_chance) * (np.arange(TAIL) + 0.5) / TAIL
    further = 1 + slope * (ndtri(beyond) - CHANCE)

    def outside(reach: float) -> float:
        tail = float(stdtr(degrees, -reach * further).mean())
        return 2 * (by_chance * float(stdtr(degrees, -reach)) + (1 - by_chance) * tail)

    low, high = most / 2, most
    for _ in range(30):
        middle = (low + high) / 2
        if outside(middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


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
