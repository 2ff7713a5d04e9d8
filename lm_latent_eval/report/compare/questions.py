"""Two models on the same questions: right answers, or any score of them.

A question counts once, by the mean of its answers, and those of a cluster count as one.
Single answers that are right or wrong are compared by McNemar's exact test, all others
by the paired difference of their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from lm_latent_eval.estimators.choices import repeat_stderr
from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.comparison import (
    CHANCE,
    Answers,
    Comparison,
    Measure,
    Verdict,
)
from lm_latent_eval.report.compare.sides import DELTA, Rates, Side, find_clusters
from lm_latent_eval.report.numbers import NoNumberError
from lm_latent_eval.report.tables import with_error

ROUNDING = 1e-9
"""Share of a score within which two are equal."""
TURNED = 0.5
"""Most that draws can move the credit of a question by, as a standard deviation."""


def compare_questions(
    task: str, a: Side, b: Side, cluster: str | None = None
) -> Comparison:
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
    rates = [Rates.of(torch.from_numpy(mean.mean(1))) for mean in means]
    runs = [rate.part for rate in rates]
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
    within = all(some["score"].between(0, 1).all() for some in answers)
    most = 1.0 if within else math.inf
    return Comparison(
        task,
        (a, b),
        {a.metric: Measure((rates[0], rates[1]), difference, (-most, most))},
        _verdict,
        is_equal=bool(np.allclose(means[0].mean(0), means[1].mean(0), rtol=ROUNDING)),
        clusters=clusters,
        notes=tuple(_notes(a, b, ties)),
        answers=Answers(
            accuracy,
            (repeats_of(answers[0]), repeats_of(answers[1])),
            (int((unsure & alone[0]).sum()), int((unsure & alone[1]).sum())),
            (int((ties[0] > 0).sum()), int((ties[1] > 0).sum())),
        ),
    ).at(DELTA)


def _notes(a: Side, b: Side, ties: Sequence[np.ndarray]) -> Iterator[str]:
    for side, tied in zip((a, b), ties, strict=True):
        if number := int((tied > 0).sum()):
            yield (
                f"{side.name}: of {number:,} questions rounding alone chooses the "
                "answer, which counts as right only if each one that ties is."
            )
        if not side.finished:
            yield f"{side.name} is not finished: only what it has is compared."


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


def _verdict(found: Comparison, level: float) -> Verdict:
    (a, b), d, of = found.sides, found.difference, found.answers
    assert of is not None
    sign = -1 if a.lower_is_better else 1
    better, worse = (a, b) if sign * d.value > 0 else (b, a)
    if found.is_equal:
        has = f"{a.name} and {b.name} have the same {found.metric}"
        return None, f"Equal: {has} on each of {d.num_texts:,} questions."
    if of.accuracy is None:
        size = with_error(abs(d.value), d.stderr)
        if found.is_share:
            size = f"{100 * abs(d.value):.1f} ± {100 * d.stderr:.1f} points"
        says = (
            f"{better.name} has {size} {'less' if sign < 0 else 'more'} {found.metric} "
            f"than {worse.name} on {d.num_texts:,} questions"
        )
        if why := d.undecided_at(1 - DELTA, "questions"):
            return None, f"Undecided: {says}; {why}."
        if d.undecided_at(1 - level):
            return None, f"Undecided: {says}; {CHANCE}."
        return better.name, f"{better.name} is better: {says}."
    right = of.accuracy
    won, lost = sorted((right.only_a, right.only_b), reverse=True)
    at_risk = of.uncertain[0] if better is a else of.uncertain[1]
    says = (
        f"{better.name} alone answers {won:,} of {d.num_texts:,} questions rightly, "
        f"{worse.name} alone {lost:,} (McNemar's p = {right.p_value:.2g})"
    )
    if right.p_value >= DELTA:
        return None, f"Undecided: {says}."
    if right.p_value >= level:
        return None, f"Undecided: {says}; {CHANCE}."
    if PairedAccuracy.split(won - at_risk, lost) >= level:
        return None, f"Undecided: {says}, {at_risk} of them within Monte Carlo error."
    return better.name, f"{better.name} answers more questions: {says}."
