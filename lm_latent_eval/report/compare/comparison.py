"""A comparison of two models in one task: its numbers, interval and verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import pandas as pd
from torch import Tensor

from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.report.compare.sides import DELTA, Side

Verdict = tuple[str | None, str]
"""Name of the better side, None where that is undecided, and a sentence."""
CHANCE = "of so many comparisons one may look so by chance"
"""Reason why a difference that would be decided alone is not, among others."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same texts or questions."""

    task: str
    sides: tuple[Side, Side]
    metric: str
    """Measure that is compared: ``bits a byte``, or a metric of questions."""
    rates: tuple[Tensor, Tensor]
    """Bits a byte or word, or mean scores, of each run; (R,) float64."""
    difference: PairedDifference
    """Difference of the first side's rate and the second's."""
    possible: tuple[float, float]
    """Least and largest possible difference."""
    num_units: int
    """Number of bytes, words or questions of the rates."""
    decide: Callable[[Comparison, float], Verdict] = field(repr=False)
    """Rule that gives the verdict at a level."""
    is_equal: bool
    """Whether the sides have the same number of every unit, but for rounding."""
    clusters: pd.Series | None = None
    """Cluster of each unit, under the name of the field; None: units are independent.
    """
    notes: tuple[str, ...] = ()
    accuracy: PairedAccuracy | None = None
    """Paired accuracy of single answers, right or wrong, to independent questions."""
    repeats: tuple[float, float] = (0.0, 0.0)
    """Part of each mean's error that more answers to these questions would take away.
    """
    uncertain: tuple[int, int] = (0, 0)
    """Number of questions that one side alone answers rightly, and whose answers other
    draws could change."""
    better: str | None = None
    """Name of the better side; None: undecided."""
    verdict: str = ""
    adjusted: float | None = None
    """P-value after Bonferroni's correction, of several comparisons in this task."""
    level: float = DELTA
    """Risk of a false verdict, and of an interval that misses the difference."""

    @property
    def decided(self) -> bool:
        return self.better is not None

    @property
    def is_of_texts(self) -> bool:
        return self.sides[0].runs[0].is_of_texts

    @property
    def scores(self) -> tuple[float, float]:
        a, b = self.rates
        return a.mean().item(), b.mean().item()

    @property
    def p_value(self) -> float:
        """P-value of this comparison alone."""
        return (self.accuracy or self.difference).p_value

    @property
    def p(self) -> float:
        """P-value, corrected for the other comparisons in this task."""
        return self.p_value if self.adjusted is None else self.adjusted

    @property
    def stderr(self) -> float:
        return (self.accuracy or self.difference).stderr

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the difference at 1 - ``level``, cut to possible values."""
        test = self.accuracy or self.difference
        low, high = test.interval_at(1 - self.level)
        if math.isinf(high - low):  # too few texts for one
            return low, high
        return max(low, self.possible[0]), min(high, self.possible[1])

    @property
    def is_share(self) -> bool:
        """Whether scores lie between 0 and 1, and are shown as percentages."""
        return not self.is_of_texts and all(
            side.units["score"].between(0, 1).all() for side in self.sides
        )

    @property
    def units(self) -> str:
        return "texts" if self.is_of_texts else "questions"

    @property
    def in_clusters(self) -> str:
        """Number of clusters and the field that names them; empty without any."""
        if self.clusters is None:
            return ""
        return f"{self.clusters.nunique():,} clusters ({self.clusters.name})"

    @property
    def pair(self) -> str:
        return " - ".join(side.name for side in self.sides)

    def at(self, level: float) -> Self:
        better, verdict = self.decide(self, level)
        return replace(self, level=level, better=better, verdict=verdict)
