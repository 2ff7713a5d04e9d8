"""Two models on the same questions: right answers, or any score of them.

A question counts once, by the mean of its answers, and those of a cluster count as one.
Single answers that are right or wrong are compared by McNemar's exact test, all others
by the paired difference of their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from lm_latent_eval.estimators.choices import repeat_stderr
from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.report.compare.comparison import (
    CHANCE,
    Comparison,
    Verdict,
)
from lm_latent_eval.report.compare.sides import DELTA, Side, find_clusters, run_errors
from lm_latent_eval.report.numbers import NoNumberError
from lm_latent_eval.report.tables import with_error

ROUNDING = 1e-9
"""Relative difference up to which two scores are equal."""
TURNED = 0.5
"""Most that draws can move the credit of a question by, as a standard deviation."""


def compare_questions(
    task: str, a: Side, b: Side, cluster: str | None = None
) -> Comparison:
    """Compare two models on the questions that both have.

    Args:
        task: Name of the task.
        a: A model's scores.
        b: Another model's scores.
        cluster: Field of the clusters, see ``find_clusters``.

    Raises:
        ValueError: If they are of other questions or metrics.
    """
    sides, metric, of_b = (a, b), a.runs[0].metric, b.runs[0].metric
    if metric != of_b:
        raise ValueError(
            f"{task}: {a.name} has {metric}, {b.name} {of_b}; --metric says which"
        )
    questions = _shared(task, a, b)
    answers = [side.units[side.units["unit"].isin({*questions})] for side in sides]
    facts = [
        each.groupby("unit", sort=False)
        .agg({"fields": "first", "is_sure": "mean", "is_tied": "mean"})
        .loc[questions]
        for each in answers
    ]
    means = [
        each.pivot_table("score", "run", "unit")[questions].to_numpy()
        for each in answers
    ]
    difference = means[0].mean(0) - means[1].mean(0)
    fields = zip(*(each["fields"] for each in facts), strict=True)
    clusters = find_clusters([{**right, **left} for left, right in fields], cluster)
    unsure = np.logical_or(*(each["is_sure"].to_numpy() < 1 for each in facts))
    rates = tuple(torch.from_numpy(mean.mean(1)) for mean in means)
    runs = [run_errors(rate) for rate in rates]
    paired = PairedDifference.of(
        torch.from_numpy(difference),
        torch.ones(len(questions)),
        draws_stderr=TURNED * torch.from_numpy(unsure.astype(float)),
        runs_stderr=math.hypot(*(error for error, _ in runs)),
        runs_degrees=pooled_degrees(runs),
        clusters=None if clusters is None else clusters.tolist(),
    )
    single = all(len(each) == len(questions) for each in answers) and clusters is None
    binary = all(each["score"].isin((0, 1)).all() for each in answers)
    right = [torch.from_numpy(mean[0] == 1) for mean in means]
    alone = [(right[0] & ~right[1]).numpy(), (right[1] & ~right[0]).numpy()]
    within = all(each["score"].between(0, 1).all() for each in answers)
    most = 1.0 if within else math.inf
    ties = [int((each["is_tied"] > 0).sum()) for each in facts]
    return Comparison(
        task,
        sides,
        metric,
        (rates[0], rates[1]),
        paired,
        (-most, most),
        len(questions),
        _verdict,
        is_equal=bool(np.allclose(means[0].mean(0), means[1].mean(0), rtol=ROUNDING)),
        clusters=clusters,
        notes=tuple(_notes(sides, ties)),
        accuracy=PairedAccuracy.of(*right)
        if single and binary and not a.lower_is_better
        else None,
        repeats=(_repeats(answers[0]), _repeats(answers[1])),
        uncertain=(int((unsure & alone[0]).sum()), int((unsure & alone[1]).sum())),
    ).at(DELTA)


def _notes(sides: tuple[Side, Side], ties: list[int]) -> Iterator[str]:
    for side, tied in zip(sides, ties, strict=True):
        if tied:
            yield (
                f"{side.name}: of {tied:,} questions rounding alone chooses the "
                "answer, which counts as right only if each one that ties is."
            )
        if not side.finished:
            yield f"{side.name} is not finished: only what it has is compared."


def _repeats(answers: pd.DataFrame) -> float:
    scores = answers.groupby("unit", sort=False)["score"]
    return repeat_stderr([each.to_numpy(float) for _, each in scores])


def _shared(task: str, a: Side, b: Side) -> list[str]:
    """Return the questions that every run has, in the order of A."""
    runs = [run.units.drop_duplicates("unit") for run in (*a.runs, *b.runs)]
    if not any(map(len, runs)):
        raise NoNumberError(
            f"{task}: {a.name} and {b.name} have no question in common whose answer "
            "is right or wrong, so there is no accuracy to compare"
        )
    counts = pd.concat(runs)["unit"].value_counts()
    questions = [unit for unit in runs[0]["unit"] if counts[unit] == len(runs)]
    whole = all(len(run) == len(questions) for run in runs)
    if not questions or not (whole or not (a.finished and b.finished)):
        raise ValueError(
            f"{task}: {a.name} has {len(runs[0]):,} questions and {b.name} "
            f"{len(runs[len(a.runs)]):,}, of which {len(questions):,} are in every "
            "run: only models that were asked the same compare (the same --limit and "
            "files)"
        )
    digests = pd.concat(runs).query("digest != ''").drop_duplicates(["unit", "digest"])
    # Programs hash different things: digests of one kind alone tell questions apart.
    kinds = digests["digest"].str.extract(r"^(?:(\S*) )?")[0].fillna("")
    twice = digests["unit"][digests.assign(kind=kinds).duplicated(["unit", "kind"])]
    if other := {*twice} & {*questions}:
        question = next(each for each in questions if each in other)
        raise ValueError(
            f"{task}: question {question} is another one in {b.name} than in {a.name}"
        )
    return questions


def _verdict(compared: Comparison, level: float) -> Verdict:
    (a, b), d, right = compared.sides, compared.difference, compared.accuracy
    sign = -1 if a.lower_is_better else 1
    better, worse = (a, b) if sign * d.value > 0 else (b, a)
    if compared.is_equal:
        has = f"{a.name} and {b.name} have the same {compared.metric}"
        return None, f"Equal: {has} on each of {d.num_texts:,} questions."
    if right is None:
        size = with_error(abs(d.value), d.stderr)
        if compared.is_share:
            size = f"{100 * abs(d.value):.1f} ± {100 * d.stderr:.1f} points"
        says = (
            f"{better.name} has {size} {'less' if sign < 0 else 'more'} "
            f"{compared.metric} than {worse.name} on {d.num_texts:,} questions"
        )
        if why := d.undecided_at(1 - DELTA, "questions"):
            return None, f"Undecided: {says}; {why}."
        if d.undecided_at(1 - level):
            return None, f"Undecided: {says}; {CHANCE}."
        return better.name, f"{better.name} is better: {says}."
    won, lost = sorted((right.only_a, right.only_b), reverse=True)
    at_risk = compared.uncertain[0 if better is a else 1]
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
