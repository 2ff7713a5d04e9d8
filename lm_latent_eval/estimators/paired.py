r"""Paired comparison of two models on the same texts, and many comparisons at once.

    R = sum_n d_n / sum_n U_n,    d_n = log p-hat_B(x_n) - log p-hat_A(x_n)

Symbols: d_n -> ``differences[n]``, nats that A takes more than B on a text; U_n ->
``num_units[n]``, its bytes or words.
Texts of one cluster (a passage, a source) are not independent: its sums stand for
them, d_g and U_g, which gives the clustered error of Miller (2024).

Source: the ratio estimator and its variance, Cochran (1977), chapter 6; McNemar (1947);
Student (1908); L-skewness and its error, Hosking (1990), section 3.4; score intervals
of pairs, Tango (1998); groups of models that cannot be told apart, Piepho (2004).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import (  # all of scipy.stats takes half a second
    bdtr,
    nctdtr,
    ndtr,
    ndtri,
    stdtr,
    stdtrit,
)
from torch import Tensor

from lm_latent_eval.estimators.standard_errors import (
    CONFIDENCE,
    correct_for_sizes,
    pooled_degrees,
    widened,
)

FEWEST_TEXTS = 10
"""Fewer do not tell how skewed their differences are."""
CHANCE = 0.9
"""Errors of a skewness that may be chance."""
WIDENED, WIDENED_OF = 30.0, 10
"""Slope w_N by which skewness widens the tail's side of an interval, for N = 10 texts;
it falls with the square of N."""
FURTHEST = 5.0
"""Most that the tail's side is further away."""
_TWO_SIDED = float(ndtri((1 + CONFIDENCE) / 2))
PSEUDO = 0.5
"""Pairs that are added to each outcome of a question, two in all."""


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two rates on the same texts, in nats a unit, and its errors."""

    value: float
    """Difference of A's rate and B's: negative where A takes fewer nats."""
    draws_stderr: float
    """From the draws of both models' latents, and what they may have missed; widened
    where few passes estimated it."""
    texts_stderr: float
    """From which texts these are; ``inf`` of a single one."""
    runs_stderr: float
    """From which runs of a model these are, where a side has several; else 0."""
    runs_degrees: float
    """Degrees of freedom of ``runs_stderr``."""
    missed_stderr: float
    """Error from mass that draws may have missed; more texts leave it as it is."""
    stderr: float
    """Together."""
    degrees: float
    """Degrees of freedom of ``stderr``, by Satterthwaite."""
    skewness: float
    """L-skewness of the texts' differences, in errors of a normal sample's."""
    num_texts: int
    num_clusters: int | None = None
    """Clusters of dependent texts; None: texts are independent."""

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the difference at 95 %: ``interval_at(0.95)``."""
        return self.interval_at(CONFIDENCE)

    @property
    def num_independent(self) -> int:
        """Clusters, or texts where each stands for itself."""
        return self.num_texts if self.num_clusters is None else self.num_clusters

    def interval_at(self, confidence: float) -> tuple[float, float]:
        r"""Where the difference lies, by Student's t and the skewness.

        A long tail misleads Student's t where the few texts that are in it are not
        among those at hand. So the end towards the tail is further away, the more
        errors s the skewness has beyond what may be chance:

        .. math:: c\, \text{se}\, \min\bigl(5,\, 1 + w_N \max(0, s - 0.9)\bigr), \qquad
            w_N = 30\, (10 / N)^2

        and c se the other one; N counts clusters where there are some. Under normality
        s and t are independent, and c is such that the interval holds as often as is
        asked; with errors over runs, of which the skewness says nothing, c is
        Student's. Skewness matters less the more texts there are, and fewer than 10
        tell none: of so few there is no interval, and no p-value below 1.

        Args:
            confidence: How often it holds, as 0.95.
        """
        if not math.isfinite(self.stderr) or self.num_independent < FEWEST_TEXTS:
            return (-math.inf, math.inf)
        reach = self.stderr * _reach(self.degrees, self._spared, confidence)
        low, high = self._further
        return (self.value - reach * low, self.value + reach * high)

    @property
    def p_value(self) -> float:
        """P-value: the probability of so large a difference if the true one is 0.

        It is 1 less the confidence of the interval that ends there.
        """
        too_few = self.num_independent < FEWEST_TEXTS
        if too_few or not math.isfinite(self.stderr) or self.value == 0:
            return 1.0
        if self.stderr == 0:
            return 0.0
        further = self._further[0 if self.value > 0 else 1]
        reach = abs(self.value) / (self.stderr * further)
        return _outside(reach, self.degrees, self._spared)

    @property
    def _slope(self) -> float:
        return WIDENED * (WIDENED_OF / self.num_independent) ** 2

    @property
    def _spared(self) -> float:
        return 0.0 if self.runs_stderr else self._slope

    @property
    def _further(self) -> tuple[float, float]:
        """Factors by which the ends are further away than without skewness."""
        low, high = (_factor(s, self._slope) for s in (-self.skewness, self.skewness))
        return float(low), float(high)

    def margin_at(self, confidence: float) -> float:
        """How far an interval is from 0; not positive where it holds 0."""
        low, high = self.interval_at(confidence)
        return max(low, -high)

    @property
    def undecided(self) -> str | None:
        """Say why the sign of the difference is not known at 95 %; None: it is.

        The null is that the mean difference over texts (and runs) like these is 0. It
        is refused where the interval leaves 0 out and there are 10 texts: fewer say too
        little of their tail for any verdict.
        """
        return self.undecided_at(CONFIDENCE)

    def undecided_at(self, confidence: float, units: str = "texts") -> str | None:
        """Say the same of another confidence, or of units of another name."""
        if self.num_independent < FEWEST_TEXTS:
            what = units if self.num_clusters is None else "clusters"
            return (
                f"{self.num_independent} {what} are too few for a verdict, which takes "
                f"{FEWEST_TEXTS}"
            )
        if self.margin_at(confidence) > 0:
            return None
        reach = self.stderr * _reach(self.degrees, self._spared, confidence)
        if reach < abs(self.value):  # the tail alone takes the interval past 0
            tail = "differ much, and to the other side: more could decide"
            return f"a few {units} {tail}"
        return f"other {units} or draws could turn it round"

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
        clusters: Sequence[Hashable] | None = None,
    ) -> PairedDifference:
        r"""Compare two models text by text.

        .. math::
            \text{se}^2 = c\,\frac{\sum_n (d_n - R U_n)^2}{(\sum_n U_n)^2}

        is the error over texts, c being N / (N - 1) where they are of one length, and
        more where a few hold most of the words. That of the draws is in it: a text's
        difference varies by both. What the draws explain is taken out of it to tell
        them apart. What they missed does not vary so, and is added to either.

        Args:
            differences: Nats that A takes more than B, shape ``(N,)``.
            num_units: U, shape ``(N,)``, of positive total.
            draws_stderr: Errors of ``differences`` by the draws, shape ``(N,)``.
            draws_degrees: Degrees of freedom of these errors, of all texts together.
            too_high: Nats by which a side is likely to be too high on all texts
                together, the root sum of squares of both.
            runs_stderr: Error of the rates' difference from the runs of the sides.
            runs_degrees: Degrees of freedom of that error.
            clusters: What each text is part of; texts of one are not independent.

        Raises:
            ValueError: If there is no text or no unit, or a difference is not finite.

        Example:
            >>> import torch
            >>> found = PairedDifference.of(
            ...     torch.tensor([-2.0, -1.0, 0.0, -1.0]),
            ...     torch.tensor([10, 10, 10, 10]),
            ...     draws_stderr=torch.tensor([0.3, 0.3, 0.3, 0.3]),
            ... )
            >>> found.value
            -0.1
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
        num_texts, rate, num_clusters = len(d), d.sum() / units.sum(), None
        if clusters is not None:
            number: dict[Hashable, int] = {}
            place = [number.setdefault(name, len(number)) for name in clusters]
            d, units = (np.bincount(place, each) for each in (d, units))
            num_clusters = len(d)
        correction, degrees = correct_for_sizes(units)
        drawn = math.sqrt((errors**2).sum()) / units.sum()
        missed = too_high / units.sum()
        residuals = d - rate * units
        spread = math.sqrt((residuals**2).sum()) / units.sum()
        several = math.isfinite(correction)
        texts = spread * math.sqrt(correction) if several else math.inf
        differ = max((texts, degrees), (drawn, draws_degrees))
        parts = [differ, (missed, math.inf), (runs_stderr, runs_degrees)]
        return cls(
            value=float(rate),
            draws_stderr=math.hypot(widened(drawn, draws_degrees), missed),
            texts_stderr=math.sqrt(max(texts**2 - drawn**2, 0.0)),
            runs_stderr=runs_stderr,
            runs_degrees=runs_degrees,
            missed_stderr=missed,
            stderr=math.hypot(*(error for error, _ in parts)),
            degrees=pooled_degrees(parts),
            skewness=_skewness(residuals),
            num_texts=num_texts,
            num_clusters=num_clusters,
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


def _factor(skewness: Any, slope: float) -> Any:
    """Return how much further away the end towards a tail is, 1 to ``FURTHEST``."""
    return 1 + np.clip(slope * (skewness - CHANCE), 0.0, FURTHEST - 1)


def _outside(reach: float, degrees: float, slope: float) -> float:
    """Return the two-sided tail probability of an interval of so many errors.

    The end towards a tail is further by ``slope`` an error of the skewness.
    """
    if not slope:
        return 2 * float(stdtr(degrees, -reach))
    by_chance = float(ndtr(CHANCE))
    beyond = by_chance + (1 - by_chance) * (np.arange(TAIL) + 0.5) / TAIL
    further = _factor(ndtri(beyond), slope)
    tail = float(stdtr(degrees, -reach * further).mean())
    return 2 * (by_chance * float(stdtr(degrees, -reach)) + (1 - by_chance) * tail)


def power_of(shift: float, degrees: float, number: int, runs: bool = False) -> float:
    """Return how often a true difference is decided, of normal texts or clusters.

    It is that of the interval at 95 %, with what the chance of skewness adds to it.

    Args:
        shift: The difference, in its own errors.
        degrees: Of freedom of the error.
        number: Independent texts, at least 10.
        runs: Whether an error over runs is in it, see ``interval_at``.

    Example:
        >>> round(power_of(2.8, 999, 1000), 2)
        0.8
    """
    slope = WIDENED * (WIDENED_OF / number) ** 2
    reach = _reach(degrees, 0.0 if runs else slope)
    by_chance = float(ndtr(CHANCE))
    beyond = by_chance + (1 - by_chance) * (np.arange(TAIL) + 0.5) / TAIL
    further = reach * _factor(ndtri(beyond), slope)
    reaches = np.array([reach, *further])
    chances = np.array([by_chance, *np.full(TAIL, (1 - by_chance) / TAIL)])
    outside = _noncentral(degrees, shift, -reaches) + _noncentral(
        degrees, -shift, -reaches
    )
    return float(chances @ outside)


def _noncentral(degrees: float, shift: float, reaches: np.ndarray) -> np.ndarray:
    """Return how often Student's t about ``shift`` is below each of some values.

    SciPy has no number far out in its tails, where the normal approximation of
    Abramowitz and Stegun (26.7.10) is good for several digits.
    """
    found = nctdtr(degrees, shift, reaches)
    middle = reaches * (1 - 1 / (4 * degrees)) - shift
    rough = ndtr(middle / np.sqrt(1 + reaches**2 / (2 * degrees)))
    chosen: np.ndarray = np.where(np.isnan(found), rough, found)
    return chosen


@lru_cache(maxsize=1024)
def _reach(degrees: float, slope: float, confidence: float = CONFIDENCE) -> float:
    """Return the half-width of an interval in standard errors, without skewness."""
    most = float(stdtrit(degrees, (1 + confidence) / 2))
    if not slope:
        return most
    low, high = most / 4, most
    for _ in range(30):
        middle = (low + high) / 2
        if _outside(middle, degrees, slope) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class PairedAccuracy:
    """Two models' right answers to the same questions."""

    accuracy: tuple[float, float]
    """Accuracies of A and B."""
    only_a: int
    """Questions that A alone answers rightly."""
    only_b: int
    """Questions that B alone answers rightly."""
    stderr: float
    """Standard error of the accuracies' difference over questions. Two pairs that are
    split evenly are added, so that it is above zero where all agree (Agresti and Min,
    2005)."""
    num_questions: int

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> PairedAccuracy:
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
            stderr=math.sqrt(variance) / total,
            num_questions=len(a),
        )

    @property
    def p_value(self) -> float:
        """P-value: how probable so uneven a split is, if both were as good.

        That of McNemar's exact test, or of the score test where it is larger.
        """
        differ = self.only_a + self.only_b
        score = abs(self.only_a - self.only_b) / math.sqrt(max(differ, 1))
        return max(self.split(self.only_a, self.only_b), 2 * float(ndtr(-score)))

    def interval_at(self, confidence: float) -> tuple[float, float]:
        """Where A's accuracy less B's lies: the differences that no test refuses.

        The test is the score test of Tango (1998), and for a difference of 0 McNemar's
        exact test, too: so 0 is outside where ``p_value`` is below 1 - confidence.

        Args:
            confidence: How often it holds, as 0.95.
        """
        most = float(ndtri((1 + confidence) / 2))
        low, high = (self._score_end(most), self._score_end(-most))
        if self.p_value >= 1 - confidence:
            low, high = min(low, 0.0), max(high, 0.0)
        return low, high

    def _score_end(self, wanted: float) -> float:
        """Return the difference whose score statistic is ``wanted``; it falls."""
        low, high = -1.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            if self._score(middle) > wanted:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def _score(self, difference: float) -> float:
        """Return how many errors the gain is from a true difference."""
        n, b, c = self.num_questions, self.only_a, self.only_b
        # q maximizes the likelihood of the questions that B alone answers.
        linear = (2 * n - b + c) * difference - b - c
        constant = -c * difference * (1 - difference)
        q = (math.sqrt(max(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
        variance = n * (2 * q + difference * (1 - difference))
        gain = b - c - n * difference
        if variance <= 0:
            return math.copysign(math.inf, gain) if gain else 0.0
        return gain / math.sqrt(variance)

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
    share, weight = right / number, _TWO_SIDED**2 / number
    middle: float = share + weight / 2
    reach = _TWO_SIDED * math.sqrt(share * (1 - share) / number + weight / number / 4)
    return (middle - reach) / (1 + weight), (middle + reach) / (1 + weight)


def groups(
    names: Sequence[str], apart: Collection[frozenset[str]]
) -> list[tuple[str, ...]]:
    """Return the maximal sets of names no two of which were told apart, in their order.

    Args:
        names: All of them, at most 26.
        apart: Pairs that were told apart.

    Example:
        >>> groups("ABC", [frozenset("AC")])
        [('A', 'B'), ('B', 'C')]
    """
    near = {
        one: {each for each in names if each != one and {one, each} not in apart}
        for one in names
    }
    found: list[set[str]] = []

    def grow(chosen: set[str], open_: set[str], closed: set[str]) -> None:
        if not open_ and not closed:
            found.append(chosen)
            return
        pivot = max(open_ | closed, key=lambda each: len(near[each] & open_))
        for each in sorted(open_ - near[pivot]):
            grow(chosen | {each}, open_ & near[each], closed & near[each])
            open_ = open_ - {each}
            closed = closed | {each}

    grow(set(), {*names}, set())
    ordered = (tuple(name for name in names if name in some) for some in found)
    return sorted(ordered, key=lambda some: [names.index(name) for name in some])
