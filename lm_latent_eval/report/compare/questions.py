"""Two models on the same questions: right answers, or any score of them.

A question counts once, by the mean of its answers, and those of a cluster count as one.
Single answers that are right or wrong are compared by McNemar's exact test, all others
by the paired difference of their scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from lm_latent_eval.estimators import log_ratio_stderr
from lm_latent_eval.estimators.choices import repeat_stderr
from lm_latent_eval.estimators.paired import PairedAccuracy, PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees, widened
from lm_latent_eval.report.compare.sides import DELTA, Clusters, Rates, find_clusters
from lm_latent_eval.report.numbers import NoNumberError
from lm_latent_eval.report.scores import Run, Score, Scores
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record
from lm_latent_eval.text.files import digest

SIGMAS = 1.96
CHANCE = "of so many comparisons one may look so by chance"
"""Why one is not decided that would be, alone."""
TURNED = 0.5
"""Most that draws can move the credit of a question by, as a standard deviation."""


@dataclass(frozen=True)
class Questions:
    """A model's scores in one task, by one run or several."""

    name: str
    metric: str
    settings: Sequence[dict[str, Any]]
    runs: Sequence[Mapping[str, Sequence[Score]]]
    """Question -> its answers, in each run."""
    lower_is_better: bool = False
    finished: bool = True

    @classmethod
    def of(cls, name: str, runs: Sequence[Scores]) -> Self:
        """Join the runs of a model.

        Raises:
            ValueError: If an answer stands twice.
        """
        found: list[dict[str, list[Score]]] = []
        for run in runs:
            questions: dict[str, list[Score]] = {}
            for score in run.rows:
                same = questions.setdefault(score.question, [])
                if any(score.repeat == each.repeat for each in same):
                    raise ValueError(
                        f"{name}: question {score.question} of {run.task} stands twice"
                    )
                same.append(score)
            found.append(questions)
        first = runs[0]
        return cls(
            name,
            first.metric,
            [run.settings for run in runs],
            found,
            first.lower_is_better,
            all(run.finished for run in runs),
        )

    def means(self, questions: Sequence[str]) -> np.ndarray:
        """Return the mean score of each question, of each run, (R, N)."""
        rows = [
            [np.mean([score.value for score in run[each]]) for each in questions]
            for run in self.runs
        ]
        return np.array(rows, dtype=float)

    def answers(self, question: str) -> list[Score]:
        """Return all answers to a question, of all runs."""
        return [score for run in self.runs for score in run[question]]

    def is_sure(self, question: str) -> bool:
        """Whether other draws cannot change its score."""
        return all(score.is_sure for score in self.answers(question))


@dataclass(frozen=True)
class QuestionComparison:
    """Two models on the same questions."""

    task: str
    sides: tuple[Questions, Questions]
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
    parts: Sequence[tuple[Score, float]] = field(default=(), repr=False)
    """Each question, and what A earns more there."""
    adjusted: float | None = None
    """Holm's p-value, of several comparisons in this task."""

    @property
    def p_value(self) -> float:
        """P-value of both being equally good."""
        found = self.accuracy
        return self.difference.p_value if found is None else found.p_value

    @property
    def interval(self) -> tuple[float, float]:
        """Where the difference lies at 95 %."""
        found = self.accuracy
        return self.ends(self.difference) if found is None else found.interval

    def ends(self, found: PairedDifference) -> tuple[float, float]:
        """Return an interval, of shares no further than they can differ."""
        low, high = found.interval
        return (max(low, -1.0), min(high, 1.0)) if self.is_share else (low, high)

    @property
    def stderr(self) -> float:
        """Of the difference."""
        found = self.accuracy
        return self.difference.stderr if found is None else found.stderr

    @property
    def is_share(self) -> bool:
        """Whether scores lie between 0 and 1, and are shown as percentages."""
        return all(
            0 <= score.value <= 1
            for side in self.sides
            for run in side.runs
            for scores in run.values()
            for score in scores
        )

    def at(self, level: float) -> Self:
        """Decide at a level; 0 decides nothing."""
        decided, verdict = _verdict(self, level)
        return replace(self, decided=decided, verdict=verdict)


def is_asked(run: Run) -> bool:
    """Whether a run answers questions."""
    if isinstance(run, Scores):
        return True
    return any(answer.is_greedy is not None for answer in run.answers)


def scores_of(run: Run) -> Scores:
    """Return the questions' scores; of log-likelihoods, whether they are right."""
    if isinstance(run, Scores):
        return run
    options: dict[int, list[Answer]] = {}
    for answer in run.answers:
        options.setdefault(answer.index, []).append(answer)
    rows = [
        _score(run, index, answers)
        for index, answers in options.items()
        if answers[0].accuracy is not None
    ]
    return Scores(run.task, "accuracy", run.settings, rows, finished=run.finished)


def _score(run: Record, index: int, answers: Sequence[Answer]) -> Score:
    credit = answers[0].accuracy or 0.0
    tied = any(answer.tied for answer in answers)
    first, *others = sorted(
        answers, key=lambda answer: answer.estimate.log_evidence, reverse=True
    )
    sure = all(_is_sure(first, other) for other in others)
    known = run.documents.get(index)
    options = sorted(answers, key=lambda answer: answer.option)
    return Score(
        str(index),
        float(credit >= 1 if tied else credit > 0.5),
        text=known.text if known else "",
        fields=known.fields if known else {},
        is_sure=sure,
        is_tied=tied,
        digest=f"record {digest(' '.join(answer.text for answer in options))}",
    )


def _is_sure(one: Answer, other: Answer) -> bool:
    """Whether draws leave no doubt which of two options is the more probable one.

    Options of the same draws may err in opposite directions: their errors add up, where
    log-weights do not tell that of the difference.
    """
    first, second = one.estimate, other.estimate
    parts = [(each.draws_stderr, each.draws_degrees) for each in (first, second)]
    errors = [error for error, _ in parts]
    log_w = [torch.tensor(each.log_weights).double() for each in (first, second)]
    if one.stream != other.stream:
        error = math.hypot(*errors)
    elif len(log_w[0]) == len(log_w[1]) > 1:
        error = log_ratio_stderr(*log_w).item()
    else:
        error = sum(errors)
    gap = first.log_evidence - second.log_evidence
    return gap >= SIGMAS * widened(error, pooled_degrees(parts))


def compare_questions(
    task: str,
    a: Questions,
    b: Questions,
    cluster: str | None = None,
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
    scores = [a.answers(q) for q in questions], [b.answers(q) for q in questions]
    firsts = [score[0] for score in scores[0]]
    others = [score[0] for score in scores[1]]
    fields = [
        {**right.fields, **left.fields}
        for left, right in zip(firsts, others, strict=True)
    ]
    clusters = find_clusters(fields, cluster)
    unsure = [not (a.is_sure(q) and b.is_sure(q)) for q in questions]
    runs = [Rates.of(torch.from_numpy(mean.mean(1))).part for mean in means]
    difference = PairedDifference.of(
        d,
        torch.ones_like(d),
        draws_stderr=TURNED * torch.tensor(unsure, dtype=torch.float64),
        runs_stderr=math.hypot(*(error for error, _ in runs)),
        runs_degrees=pooled_degrees(runs),
        clusters=None if clusters is None else clusters.names,
    )
    single = len(a.runs) == len(b.runs) == 1 and clusters is None
    binary = all(len(s) == 1 and s[0].value in (0, 1) for some in scores for s in some)
    accuracy = None
    right = [torch.from_numpy(mean[0] == 1) for mean in means]
    if single and binary and not a.lower_is_better:
        accuracy = PairedAccuracy.of(*right)
    alone = [(right[0] & ~right[1]).tolist(), (~right[0] & right[1]).tolist()]
    at_risk = [sum(u and w for u, w in zip(unsure, won, strict=True)) for won in alone]
    values = [[np.array([s.value for s in each]) for each in some] for some in scores]
    ties = [sum(any(s.is_tied for s in each) for each in some) for some in scores]
    text = [
        left if left.text else replace(left, text=right.text)
        for left, right in zip(firsts, others, strict=True)
    ]
    compared = QuestionComparison(
        task,
        (a, b),
        a.metric,
        difference,
        (float(means[0].mean()), float(means[1].mean())),
        accuracy,
        (repeat_stderr(values[0]), repeat_stderr(values[1])),
        (at_risk[0], at_risk[1]),
        (ties[0], ties[1]),
        "",
        False,
        clusters,
        [*zip(text, d.tolist(), strict=True)],
    )
    return compared.at(DELTA)


def _shared(task: str, a: Questions, b: Questions) -> list[str]:
    """Return the questions that every run has, in the order of A."""
    runs = [*a.runs, *b.runs]
    if not any(runs):
        raise NoNumberError(
            f"{task}: {a.name} and {b.name} have no question in common whose answer "
            "is right or wrong, so there is no accuracy to compare"
        )
    questions = [q for q in runs[0] if all(q in run for run in runs)]
    whole = all(len(run) == len(questions) for run in runs)
    if not questions or not (whole or not (a.finished and b.finished)):
        raise ValueError(
            f"{task}: {a.name} has {len(a.runs[0]):,} questions and {b.name} "
            f"{len(b.runs[0]):,}, of which {len(questions):,} are in every run: only "
            "models that were asked the same compare (the same --limit and files)"
        )
    for question in questions:
        digests = {run[question][0].digest for run in runs}
        if len(digests - {""}) > 1 and not _of_several_kinds(digests):
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
    if found.accuracy is None:
        shown = _gap(found)
        order = "less" if sign < 0 else "more"
        says = (
            f"{better.name} has {shown} {order} {found.metric} than {worse.name} on "
            f"{number:,} questions"
        )
        if why := found.difference.undecided_at(1 - DELTA, "questions"):
            return False, f"Undecided: {says}; {why}."
        if not level or found.difference.undecided_at(1 - level):
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
    return f"{size:.4g} ± {error:.2g}"
