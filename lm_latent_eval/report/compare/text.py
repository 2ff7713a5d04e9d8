"""Comparisons as the rows of a table, and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import wilson
from lm_latent_eval.report.compare.analysis import (
    Power,
    by_task,
    rank,
    standings,
)
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.tables import (
    Errors,
    aligned_rows,
    error,
    one_line,
    shown,
)

ERRORS: Errors = {
    **dict.fromkeys(("value", "from", "to"), ("±",)),
    "": (
        *("over draws", "over texts", "over questions", "over answers", "over runs"),
        "p",
    ),
}
"""Columns of errors, by the columns whose decimals they decide."""
BOUNDS = {
    Bound.EXACT: "exact",
    Bound.STRICT_LOWER: "at most",
    Bound.STOCHASTIC_LOWER: "at most, on average",
    Bound.ESTIMATED_LOWER: "an estimate of a bound",
    Bound.NONE: "no bound",
}
"""Bound of a rate in bits, by the bound of log p-hat."""
RANKED = (
    "Ranked by how often a model is better than another in a task, less how often it "
    "is worse; verdicts hold task by task, each at 95 %."
)
_OF_A_RUN = (
    *("name", "model_name", "date", "lm_eval", "transformers", "torch"),
    *("format", "run_digest", "texts", "num_texts"),
)
"""Settings that no number of a model depends on."""


def rows(
    comparisons: Sequence[Comparison], powers: Sequence[Power] = ()
) -> list[dict[str, Any]]:
    """Return comparisons as the rows of a table.

    Args:
        comparisons: Comparisons of any tasks.
        powers: Number of units that would decide each of them, if asked for.
    """
    table = []
    for n, each in enumerate(comparisons):
        d, (low, high) = each.difference, each.interval
        row: dict[str, Any] = {
            "task": each.task,
            "difference of": each.pair,
            "value": d.value,
            "±": each.stderr,
            "better": better_of(each),
            "from": low,
            "to": high,
            "in": each.metric,
            "over draws": d.draws_stderr,
            f"over {each.units}": d.texts_stderr,
        }
        if any(each.repeats):
            row["over answers"] = math.hypot(*each.repeats)
        if d.runs_stderr:
            row["over runs"] = d.runs_stderr
        if right := each.accuracy:
            row["alone right"] = f"{right.only_a:,}, {right.only_b:,}"
            unsure = ", ".join(f"{n:,}" for n in each.uncertain)
            row["within Monte Carlo error"] = unsure
        row |= {"p": each.p, each.units: d.num_texts}
        if each.in_clusters:
            row["in"] = f"{each.metric}, {each.in_clusters}"
        if powers:
            needed = powers[n].needed
            row[f"needed for {powers[n].target}"] = needed and needed.number
        table.append(row)
    return table


def rows_in_task(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the rows of comparisons in one task, which they do not name."""
    return [{k: v for k, v in row.items() if k != "task"} for row in rows(comparisons)]


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons for a terminal: of several tasks a line each.

    Names of tasks, models and estimators come from files, and command no terminal.
    """
    one_task = len(by_task(comparisons)) == 1
    lines = (_lines_of if one_task else _lines_of_tasks)(comparisons)
    return "\n".join(map(one_line, lines))


# -- several tasks ---------------------------------------------------------------------


def rows_of_tasks(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row a task: the number of each model, and which one is better.

    Two models have their difference there, too; more have letters: models that share
    one are not told apart.
    """
    return [_row_of_task(task, pairs) for task, pairs in by_task(comparisons).items()]


def _row_of_task(task: str, pairs: Sequence[Comparison]) -> dict[str, Any]:
    first, *others = pairs
    of = {"of": f"{first.difference.num_texts:,} {first.units}, {first.metric}"}
    if not others:
        [row] = rows([first])
        names = (side.name for side in first.sides)
        scores = (_score(first, value) for value in first.scores)
        told = ("task", "better", "value", "±", "from", "to")
        return {
            **{name: row[name] for name in told},
            **dict(zip(names, scores, strict=True)),
            **of,
        }
    [*ranking] = rank(pairs)
    if not ranking:  # pairs of unfinished runs are of other texts
        return {"task": task, "best": "not ranked: runs differ in their texts", **of}
    letters, (best, *_) = ranking[0].letters, ranking[0].letters.values()
    first_ones = [name for name, shared in letters.items() if {*shared} & {*best}]
    return {
        "task": task,
        "best": "undecided"
        if len(first_ones) == len(letters)
        else ", ".join(first_ones),
        **{
            name: f"{_score(first, value)} {letters[name]}"
            for name, value in sorted(ranking[0].models)
        },
        **of,
    }


def _lines_of_tasks(comparisons: Sequence[Comparison]) -> list[str]:
    notes: dict[str, dict[str, None]] = {}
    for each in comparisons:
        for note in each.notes:
            notes.setdefault(note, {})[each.task] = None
    return [
        *aligned_rows(rows_of_tasks(comparisons), ERRORS),
        "",
        *aligned_rows(standings(comparisons)),
        RANKED,
        *(f"  {', '.join(tasks)}: {note}" for note, tasks in notes.items()),
        "What each verdict rests on: --format csv, or `lm-latent-eval report`.",
    ]


# -- one task --------------------------------------------------------------------------


def described(side: Side, others: Sequence[Side]) -> str:
    """Describe a side's model in a line.

    Args:
        side: The side.
        others: Those beside it; where the same line would describe one of them, what
            all runs of the side set and one of theirs sets otherwise is in it.
    """
    line = _line(side)
    same = [run for each in others if _line(each) == line for run in each.settings]
    apart = [
        f"{name}={value}"
        for name, value in side.settings[0].items()
        if name not in _OF_A_RUN
        and not isinstance(value, Mapping | list | None)
        and all(run.get(name) == value for run in side.settings)
        and any(run.get(name) != value for run in same)
    ]
    return ", ".join([line, *apart])


def _line(side: Side) -> str:
    settings = side.settings[0]
    parts = [str(settings.get("model")), str(settings.get("checkpoint") or "")]
    if (estimator := settings.get("estimator")) not in (None, "exact"):
        num_samples = settings.get("num_samples")  # none, where nothing is drawn
        parts.append(
            estimator if num_samples is None else f"{estimator}, K = {num_samples:,}"
        )
    parts += [f"{len(side.runs)} runs"] * (len(side.runs) > 1)
    return ", ".join(filter(None, parts))


def side_rows(compared: Sequence[Comparison]) -> list[dict[str, str]]:
    """Return a row a side: its rates, how they bound the truth, and its model."""
    sides = [*{side.name: side for each in compared for side in each.sides}.values()]
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for each in compared:
        for n, side in enumerate(each.sides):
            row = {"": side.name, each.metric: _score(each, each.scores[n])}
            runs = each.rates[n]
            if len(runs) > 1:
                row[each.metric] += f" (runs: ± {error(runs.std().item())})"
            if right := each.accuracy:
                share, total = right.accuracy[n], right.num_questions
                low, high = wilson(round(share * total), total)
                row[each.metric] += f" ({low:.0%} to {high:.0%})"
            if each.is_of_texts:
                row["bound"] = BOUNDS[side.bound]
            row["model"] = described(side, sides)
            # Pairs of unfinished runs share other texts.
            rows.setdefault((side.name, each.difference.num_texts), row)
    return [*rows.values()]


def _lines_of(compared: Sequence[Comparison]) -> list[str]:
    """Return the sides of a task, how far they are apart, and the verdicts."""
    first = compared[0]
    head = f"{first.task}: {first.difference.num_texts:,} {first.units}"
    head += f" in {first.in_clusters}" if first.in_clusters else ""
    if first.is_of_texts:
        head += f", {first.num_units:,} {first.metric.removeprefix('bits a ')}s"
    lines = [
        *(head, *aligned_rows(side_rows(compared)), ""),
        *(*aligned_rows(rows_in_task(compared), ERRORS), ""),
    ]
    notes = dict.fromkeys(note for each in compared for note in each.notes)
    lines += [*(f"  {note}" for note in notes), *(each.verdict for each in compared)]
    for ranking in rank(compared):
        order = [
            {
                "": f"{n}. {name}",
                ranking.metric: f"{value:.4f}",
                "not told apart": ranking.letters[name],
            }
            for n, (name, value) in enumerate(ranking.models, start=1)
        ]
        lines += ["", f"{first.task}: ranking", *aligned_rows(order), ranking.verdict]
    return lines


def better_of(each: Comparison) -> str:
    return each.better or ("equal" if each.is_equal else "undecided")


def _score(each: Comparison, value: float) -> str:
    """Write a score with the decimals of the difference's error."""
    return f"{value:.1%}" if each.is_share else shown(value, each.difference.stderr)
