"""Two models on the same questions: right answers, or any score of them.

A question counts once, by the mean of its answers, and those of a cluster count as one.
Single answers that are right or wrong are compared by McNemar's exact test, all others
by the paired difference of their scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
import torch

from lm_latent_eval.estimators.choices import repeat_stderr
from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.sides import (
    DELTA,
    Clusters,
    Rates,
    Side,
    find_clusters,
)
from lm_latent_eval.report.numbers import NoNumberError
from lm_latent_eval.report.tables import with_error

ROUNDING = 1e-9
"""Share of a score within which two are equal."""
CHANCE = "of so many comparisons one may look so by chance"
"""Why one is not decided that would be, alone."""
TURNED = 0.5
"""Most that draws can move the credit of a question by, as a standard deviation."""


@dataclass(frozen=True)
class QuestionComparison:
    """Two models on the same questions."""

    task: str
    sides: tuple[Side, Side]
    metric: str
    difference: PairedDifference
    """Of A's mean score and B's."""
    scores: tuple[float, float]
    accuracy: PairedAccuracy | None
    """Where answers are single, right or wrong, and questions independent."""
    repeats: tuple[float, float]
    """Part of each mean's error that more answers to these questions would take away;
    0 of single ones."""
    uncertain: tuple[int, int]
    """Of the questions that A alone, and B alone, answers rightly, those where the
    draws could have decided otherwise."""
    ties: tuple[int, int]
    """Questions whose best options rounding alone tells apart, by A and by B: such an
    answer is right if every one of them is."""
    verdict: str
    decided: bool
    clusters: Clusters | None = None
    adjusted: float | None = None
    """Bonferroni's p-value, of several comparisons in this task."""
    level: float = DELTA
    """Risk of a false verdict, and that the interval does not hold."""
    is_equal: bool = False
    """Whether both have the same score of every question, but for rounding."""

    @property
    def p_value(self) -> float:
        """P-value of both being equally good."""
        found = self.accuracy
        return self.difference.p_value if found is None else found.p_value

    @property
    def interval(self) -> tuple[float, float]:
        """Where the difference lies at 1 - ``level``; shares differ by 1 at most."""
        found = self.difference if self.accuracy is None else self.accuracy
        low, high = found.interval_at(1 - self.level)
        return (max(low, -1.0), min(high, 1.0)) if self.is_share else (low, high)

    @property
    def stderr(self) -> float:
        """Of the difference."""
        found = self.accuracy
        return self.difference.stderr if found is None else found.stderr

    @property
    def is_share(self) -> bool:
        """Whether scores lie between 0 and 1, and are shown as percentages."""
        return all(side.units["score"].between(0, 1).all() for side in self.sides)

    def at(self, level: float) -> Self:
        """Decide at a level."""
        decided, verdict = _verdict(self, level)
        return replace(self, level=level, decided=decided, verdict=verdict)


def compare_questions(
    task: str, a: Side, b: Side, cluster: str | None = None
) -> QuestionComparison:
    """Compare two models on the questions that both have.

    Args:
        task: Its name.
        a: A model's scores.
        b: Another's.
        cluster: As ``find_clusters`` takes it.

    Raises:
        ValueError: If they are of other questions or metrics.
    """
    if a.metric != b.metric:
        raise ValueError(
            f"{task}: {a.name} has {a.metric}, {b.name} {b.metric}; --metric says which"
        )
    questions = _shared(task, a, b)
    means = [side.means(questions) for side in (a, b)]
    d = torch.from_numpy(means[0].mean(0) - means[1].mean(0))
    fields = [side.first_of("fields", questions) for side in (a, b)]
    clusters = find_clusters(
        [{**right, **left} for left, right in zip(*fields, strict=True)], cluster
    )
    sure = [side.share_of("is_sure", questions) == 1 for side in (a, b)]
    unsure = ~(sure[0] & sure[1])
    runs = [Rates.of(torch.from_numpy(mean.mean(1))).part for mean in means]
    difference = PairedDifference.of(
        d,
        torch.ones_like(d),
        draws_stderr=TURNED * torch.from_numpy(unsure.astype(float)),
        runs_stderr=math.hypot(*(error for error, _ in runs)),
        runs_degrees=pooled_degrees(runs),
        clusters=None if clusters is None else clusters.names,
    )
    answers = [side.units[side.units["unit"].isin({*questions})] for side in (a, b)]
    single = all(len(some) == len(questions) for some in answers) and clusters is None
    binary = all(some["score"].isin((0, 1)).all() for some in answers)
    right = [torch.from_numpy(mean[0] == 1) for mean in means]
    accuracy = None
    if single and binary and not a.lower_is_better:
        accuracy = PairedAccuracy.of(*right)
    ties = [side.share_of("is_tied", questions) for side in (a, b)]
    alone = [(right[0] & ~right[1]).numpy(), (~right[0] & right[1]).numpy()]
    compared = QuestionComparison(
        task,
        (a, b),
        a.metric,
        difference,
        (float(means[0].mean()), float(means[1].mean())),
        accuracy,
        (repeats_of(answers[0]), repeats_of(answers[1])),
        (int((unsure & alone[0]).sum()), int((unsure & alone[1]).sum())),
        (int((ties[0] > 0).sum()), int((ties[1] > 0).sum())),
        "",
        False,
        clusters,
        is_equal=bool(np.allclose(means[0].mean(0), means[1].mean(0), rtol=ROUNDING)),
    )
    return compared.at(DELTA)


def repeats_of(answers: pd.DataFrame) -> float:
    """Return the part of the error of the mean that repeats cause."""
    scores = answers.groupby("unit", sort=False)["score"]
    return repeat_stderr([some.to_numpy(float) for _, some in scores])


def _shared(task: str, a: Side, b: Side) -> list[str]:
    """Return the questions that every run has, in the order of A."""
    runs = [run.units.drop_duplicates("unit") for run in (*a.runs, *b.runs)]
    if not any(map(len, runs)):
        raise NoNumberError(
            f"{task}: {a.name} and {b.name} have no question in common whose answer "
            "is right or wrong, so there is no accuracy to compare"
        )
    everywhere = set.intersection(*({*run["unit"]} for run in runs))
    questions = [unit for unit in runs[0]["unit"] if unit in everywhere]
    whole = all(len(run) == len(questions) for run in runs)
    if not questions or not (whole or not (a.finished and b.finished)):
        raise ValueError(
            f"{task}: {a.name} has {len(runs[0]):,} questions and {b.name} "
            f"{len(runs[len(a.runs)]):,}, of which {len(questions):,} are in every "
            "run: only models that were asked the same compare (the same --limit and "
            "files)"
        )
    digests = pd.concat(runs).groupby("unit", sort=False)["digest"].agg(set)
    for question in questions:
        found = digests[question] - {""}
        if len(found) > 1 and not _of_several_kinds(found):
            raise ValueError(
                f"{task}: question {question} is another one in {b.name} than in "
                f"{a.name}"
            )
    return questions


def _of_several_kinds(digests: set[str]) -> bool:
    """Whether programs that hash different things wrote them."""
    kinds = (digest.partition(" ") for digest in digests - {""})
    return len({kind if space else "" for kind, space, _ in kinds}) > 1


def _verdict(found: QuestionComparison, level: float) -> tuple[bool, str]:
    a, b = found.sides
    sign = -1 if a.lower_is_better else 1
    gain = sign * found.difference.value
    better, worse = (a, b) if gain > 0 else (b, a)
    number = found.difference.num_texts
    if found.is_equal:
        has = f"{a.name} and {b.name} have the same {found.metric}"
        return False, f"Equal: {has} on each of {number:,} questions."
    if found.accuracy is None:
        shown = _gap(found)
        order = "less" if sign < 0 else "more"
        says = (
            f"{better.name} has {shown} {order} {found.metric} than {worse.name} on "
            f"{number:,} questions"
        )
        if why := found.difference.undecided_at(1 - DELTA, "questions"):
            return False, f"Undecided: {says}; {why}."
        if found.difference.undecided_at(1 - level):
            return False, f"Undecided: {says}; {CHANCE}."
        return True, f"{better.name} is better: {says}."
    right = found.accuracy
    won, lost = sorted((right.only_a, right.only_b), reverse=True)
    at_risk = found.uncertain[0] if better is a else found.uncertain[1]
    says = (
        f"{better.name} alone answers {won:,} of {number:,} questions rightly, "
        f"{worse.name} alone {lost:,} (McNemar's p = {right.p_value:.2g})"
    )
    if right.p_value >= DELTA:
        return False, f"Undecided: {says}."
    if right.p_value >= level:
        return False, f"Undecided: {says}; {CHANCE}."
    if PairedAccuracy.split(won - at_risk, lost) >= level:
        return False, f"Undecided: {says}, {at_risk} of them within Monte Carlo error."
    return True, f"{better.name} answers more questions: {says}."


def _gap(found: QuestionComparison) -> str:
    size, error = abs(found.difference.value), found.difference.stderr
    if found.is_share:
        return f"{100 * size:.1f} ± {100 * error:.1f} points"
    return with_error(size, error)
