"""Comparison of models task by task.

A side is a model, as one run or several. Verdicts and intervals of three sides and more
hold together in each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.questions import compare_questions
from lm_latent_eval.report.compare.sides import DELTA, Side
from lm_latent_eval.report.compare.texts import compare_texts
from lm_latent_eval.report.numbers import with_numbers
from lm_latent_eval.report.units import Run

Runs = Sequence[Sequence[Run]]
"""Runs of a model, each with its tasks."""
Tasks = dict[str, list[Run]]
"""Task -> the runs of a model in it."""


def compare(sides: Mapping[str, Runs], cluster: str | None = None) -> list[Comparison]:
    """Compare every two sides in every task that both have.

    Verdicts and intervals of three sides and more hold together, task by task: each is
    at 95 % over the number of pairs (Bonferroni).

    Args:
        sides: Name -> the runs of a model.
        cluster: Field that names what texts are part of, see ``find_clusters``.

    Raises:
        ValueError: If they share no task, none of them has an accuracy or texts, texts
            are not the same, or numbers are of different units.
    """
    pairs = combinations(sides.items(), 2)
    every = with_numbers(
        task for (a, b) in pairs for task in _comparisons(*a, *b, cluster)
    )
    count = Counter(each.task for each in every)
    return [
        each
        if (num_pairs := count[each.task]) == 1
        else replace(
            each.at(DELTA / num_pairs), adjusted=min(1.0, num_pairs * each.p_value)
        )
        for each in every
    ]


def _comparisons(
    name_a: str, a: Runs, name_b: str, b: Runs, cluster: str | None
) -> Iterator[Callable[[], Comparison]]:
    """Yield the comparisons of two sides in each task."""
    of_a, of_b = _tasks(a), _tasks(b)
    if len(of_a) == len(of_b) == 1:  # files of estimates name no task
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    shared = [task for task in of_a if task in of_b]
    if not shared:
        raise ValueError(
            f"{name_a} and {name_b} have no task in common: "
            f"{', '.join(of_a) or 'none'} there and {', '.join(of_b) or 'none'} here"
        )
    for task in shared:
        pair = (name_a, of_a[task]), (name_b, of_b[task])
        yield partial(_compare_task, task, *pair, cluster)


def _tasks(runs: Runs) -> Tasks:
    """Return the runs of each task that all runs of a model have."""
    first, *others = (first_of_tasks(run) for run in runs)
    shared = [task for task in first if all(task in other for other in others)]
    return {task: [each[task] for each in (first, *others)] for task in shared}


def first_of_tasks(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs of a result by task; of several metrics the first."""
    tasks: dict[str, Run] = {}
    for run in runs:
        tasks.setdefault(run.task, run)
    return tasks


def _compare_task(
    task: str, a: tuple[str, list[Run]], b: tuple[str, list[Run]], cluster: str | None
) -> Comparison:
    texts = {run.is_of_texts for run in (*a[1], *b[1])}
    if len(texts) > 1:
        raise ValueError(
            f"{task}: {a[0]} or {b[0]} has log-likelihoods of texts, the other one "
            "scores of questions: they do not compare"
        )
    compare_units = compare_texts if True in texts else compare_questions
    return compare_units(task, Side(*a), Side(*b), cluster)
