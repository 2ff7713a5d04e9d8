"""Comparison of models task by task, and of the groups that tasks are in.

A side is a model, as one run or several. Verdicts and intervals of three sides and more
hold together in each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import pandas as pd

from lm_latent_eval.estimators.paired import FEWEST_TEXTS
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.questions import compare_questions
from lm_latent_eval.report.compare.sides import DELTA, SUBTASK, Side
from lm_latent_eval.report.compare.texts import compare_texts
from lm_latent_eval.report.numbers import with_numbers
from lm_latent_eval.report.units import Run


@dataclass(frozen=True)
class Asked:
    """Options of a comparison."""

    cluster: str | None = None
    """Which field says what texts are part of; ``none``: nothing; None: see
    ``find_clusters``."""
    power: float | None = None
    """Points of which a page says what decides them; None says nothing of it."""


def compare(
    sides: Mapping[str, Sequence[Sequence[Run]]], asked: Asked | None = None
) -> list[Comparison]:
    """Compare every two sides in every task that both have.

    Verdicts and intervals of three sides and more hold together, task by task: each is
    at 95 % over the number of pairs (Bonferroni).

    Args:
        sides: Name -> the runs of a model, each with its tasks.
        asked: What to compare; None is all by itself.

    Raises:
        ValueError: If they share no task, none of them has an accuracy or texts, texts
            are not the same, or numbers are of different units.
    """
    asked = asked or Asked()
    pairs = combinations(sides.items(), 2)
    return together(
        with_numbers(task for pair in pairs for task in _tasks(*pair, asked))
    )


def _tasks(
    a: tuple[str, Sequence[Sequence[Run]]],
    b: tuple[str, Sequence[Sequence[Run]]],
    asked: Asked,
) -> Iterator[Callable[[], Comparison]]:
    """Yield what compares two sides in a task, or in a group of them."""
    tasks = _shared_tasks(*a, *b)
    for task, (of_a, of_b) in tasks.items():
        yield partial(_pair, task, (a[0], of_a), (b[0], of_b), asked)
    for group, (all_a, all_b) in _groups(tasks, asked).items():
        left, right = Side.of(a[0], all_a), Side.of(b[0], all_b)
        yield partial(compare_questions, group, left, right, SUBTASK)


def together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Let verdicts and intervals of each task hold together, if there are several."""
    pairs = Counter(each.task for each in comparisons)
    return [
        each
        if (number := pairs[each.task]) == 1
        else replace(each.at(DELTA / number), adjusted=min(1.0, number * each.p_value))
        for each in comparisons
    ]


def first_of_tasks(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs of a result by task; of several metrics the first."""
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(run.task, run)
    return found


def _shared_tasks(
    name_a: str, a: Sequence[Sequence[Run]], name_b: str, b: Sequence[Sequence[Run]]
) -> dict[str, tuple[list[Run], list[Run]]]:
    def tasks(runs: Sequence[Sequence[Run]]) -> dict[str, list[Run]]:
        named = [first_of_tasks(run) for run in runs]
        shared = [task for task in named[0] if all(task in run for run in named)]
        return {task: [run[task] for run in named] for task in shared}

    of_a, of_b = tasks(a), tasks(b)
    if len(of_a) == len(of_b) == 1:  # files of estimates name no task
        [task], [runs_a], [runs_b] = of_a, of_a.values(), of_b.values()
        return {task: (runs_a, runs_b)}
    shared = {task: (of_a[task], of_b[task]) for task in of_a if task in of_b}
    if not shared:
        raise ValueError(
            f"{name_a} and {name_b} have no task in common: "
            f"{', '.join(of_a) or 'none'} there and {', '.join(of_b) or 'none'} here"
        )
    return shared


def _groups(
    tasks: Mapping[str, tuple[list[Run], list[Run]]], asked: Asked
) -> dict[str, tuple[list[Run], list[Run]]]:
    """Return the questions of groups of tasks, of which each is a cluster.

    A group needs as many tasks as a verdict takes clusters, and questions in all.
    """
    named: dict[str, list[str]] = {}
    for task, (runs, _) in tasks.items():
        for group in runs[0].settings.get("groups") or ():
            named.setdefault(group, []).append(task)
    found = {}
    for group, some in named.items():
        sides = [[tasks[task][side] for task in some] for side in (0, 1)]
        texts = any(run.is_of_texts for side in sides for runs in side for run in runs)
        if len(some) < FEWEST_TEXTS or texts or asked.cluster is not None:
            continue
        a, b = (
            [_joined(group, parts) for parts in zip(*side, strict=False)]
            for side in sides
        )
        found[group] = (a, b)
    return found


def _joined(group: str, parts: Sequence[Run]) -> Run:
    """Make one task of several, a cluster each."""
    units = [
        run.units.assign(
            unit=f"{run.task}/" + run.units["unit"],
            fields=[{**each, SUBTASK: run.task} for each in run.units["fields"]],
        )
        for run in parts
    ]
    done = all(run.finished for run in parts)
    return replace(
        parts[0], task=group, units=pd.concat(units, ignore_index=True), finished=done
    )


def _pair(
    task: str, a: tuple[str, list[Run]], b: tuple[str, list[Run]], asked: Asked
) -> Comparison:
    one, other = Side.of(*a), Side.of(*b)
    texts = [run.is_of_texts for run in (*a[1], *b[1])]
    if any(texts) and not all(texts):
        raise ValueError(
            f"{task}: {a[0]} or {b[0]} has log-likelihoods of texts, the other one "
            "scores of questions: they do not compare"
        )
    compare_units = compare_texts if any(texts) else compare_questions
    return compare_units(task, one, other, asked.cluster)
