"""A comparison of two models in one task: its numbers, interval and verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import pandas as pd

from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.report.compare.sides import DELTA, Clusters, Rates, Side

Verdict = tuple[str | None, str]
"""Name of the side that is the better one, None where that is not decided; a sentence.
"""
CHANCE = "of so many comparisons one may look so by chance"
"""Why one is not decided that would be, alone."""


@dataclass(frozen=True)
class Measure:
    """Two sides in one unit, and how far they are apart."""

    rates: tuple[Rates, Rates]
    """Bits a byte or word, or mean scores."""
    difference: PairedDifference
    """Of the first side's and the second's."""
    possible: tuple[float, float]
    """Least and largest difference that there can be."""


@dataclass(frozen=True)
class Answers:
    """What answers to questions tell beside their mean scores."""

    accuracy: PairedAccuracy | None
    """Where answers are single, right or wrong, and questions independent."""
    repeats: tuple[float, float]
    """Part of each mean's error that more answers to these questions would take away;
    0 of single ones."""
    uncertain: tuple[int, int]
    """Of the questions that one side alone answers rightly, those where the draws could
    have decided otherwise."""
    ties: tuple[int, int]
    """Questions whose best options rounding alone tells apart, by each side: such an
    answer is right if every one of them is."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same texts or questions."""

    task: str
    sides: tuple[Side, Side]
    measures: dict[str, Measure]
    """By its name, "bits a byte" or a metric of questions; the first one decides."""
    decide: Callable[[Comparison, float], Verdict] = field(repr=False)
    """Rule that gives the verdict at a level."""
    is_equal: bool
    """Whether both have the same number of every unit, but for rounding."""
    clusters: Clusters | None = None
    notes: tuple[str, ...] = ()
    parts: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    """Each text's part of the difference, by ``name``: ``bits`` that the first side
    takes more than the second, ``draws_stderr``, ``bytes``, ``words``, ``tokens`` and
    the ``text`` itself where it is known; of questions nothing."""
    answers: Answers | None = None
    """None of texts."""
    better: str | None = None
    """Name of the side that is better; None: that is not decided."""
    verdict: str = ""
    adjusted: float | None = None
    """Bonferroni's p-value, of several comparisons in this task."""
    level: float = DELTA
    """Risk of a false verdict, and that the interval does not hold."""

    @property
    def decided(self) -> bool:
        """Whether one side is the better one."""
        return self.better is not None

    @property
    def metric(self) -> str:
        """Name of the measure that decides."""
        return next(iter(self.measures))

    @property
    def difference(self) -> PairedDifference:
        """Difference in the measure that decides."""
        return self.measures[self.metric].difference

    @property
    def scores(self) -> tuple[float, float]:
        """Numbers of both sides in that measure."""
        a, b = self.measures[self.metric].rates
        return a.mean, b.mean

    @property
    def _test(self) -> PairedAccuracy | PairedDifference:
        found = self.answers and self.answers.accuracy
        return found or self.difference

    @property
    def p_value(self) -> float:
        """Probability of so large a difference if both were as good."""
        return self._test.p_value

    @property
    def stderr(self) -> float:
        """Standard error of the difference."""
        return self._test.stderr

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the difference at 1 - ``level``, by the test that decides."""
        return self.interval_in(self.metric)

    def interval_in(self, measure: str) -> tuple[float, float]:
        """Return the interval in a measure: no further than is possible."""
        found = self.measures[measure]
        test = self._test if measure == self.metric else found.difference
        low, high = test.interval_at(1 - self.level)
        if math.isinf(high - low):  # too few texts for one
            return low, high
        return max(low, found.possible[0]), min(high, found.possible[1])

    @property
    def is_share(self) -> bool:
        """Whether scores lie between 0 and 1, and are shown as percentages."""
        return self.answers is not None and all(
            side.units["score"].between(0, 1).all() for side in self.sides
        )

    @property
    def units(self) -> str:
        """What is compared: "texts" or "questions"."""
        return "texts" if self.answers is None else "questions"

    def at(self, level: float) -> Self:
        """Decide at a level."""
        better, verdict = self.decide(self, level)
        return replace(self, level=level, better=better, verdict=verdict)
