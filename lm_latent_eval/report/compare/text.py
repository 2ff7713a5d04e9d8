"""Comparisons as the rows of a table, and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import FEWEST_TEXTS, wilson
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
    with_error,
)

ERRORS: Errors = {
    **dict.fromkeys(("value", "from", "to"), ("±",)),
    "": ("over draws", "over texts", "p"),
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
    """Return comparisons as the rows of a table, a measure each.

    Args:
        comparisons: Comparisons of any tasks.
        powers: Number of units that would decide each of them, if asked for.
    """
    table = []
    for n, each in enumerate(comparisons):
        last: dict[str, Any] = {"decided": "yes" if each.decided else "no"}
        if powers:
            needed = powers[n].needed
            last[f"needed for {powers[n].target}"] = needed and needed.number
        for name, measure in each.measures.items():
            d, (low, high) = measure.difference, each.interval_in(name)
            table.append(
                {
                    "task": each.task,
                    "difference of": each.pair,
                    "in": name,
                    "value": d.value,
                    "±": d.stderr if each.is_of_texts else each.stderr,
                    "over draws": d.draws_stderr,
                    "over texts": d.texts_stderr,
                    "from": low,
                    "to": high,
                    "p": each.p,
                    **last,
                }
            )
    return table


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons for a terminal: of several tasks a line each.

    Names of tasks, models and estimators come from files, and command no terminal.
    """
    one_task = len(by_task(comparisons)) == 1
    lines = (_lines_of if one_task else _lines_of_tasks)(comparisons)
    return "\n".join(map(one_line, lines))


# -- several tasks ---------------------------------------------------------------------


def rows_of_tasks(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """Return a row a task: the number of each model, and which one is better.

    Two models have their difference there, too; more have letters: models that share
    one are not told apart.
    """
    return [_row_of_task(task, pairs) for task, pairs in by_task(comparisons).items()]


def _row_of_task(task: str, pairs: Sequence[Comparison]) -> dict[str, str]:
    first, *others = pairs
    of = {"of": f"{first.difference.num_texts:,} {first.units}, {first.metric}"}
    if not others:
        a, b = first.sides
        return {
            "task": task,
            "better": better_of(first),
            "difference": difference_of(first),
            "at 95 %": span(first),
            a.name: _score(first, first.scores[0]),
            b.name: _score(first, first.scores[1]),
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
        *aligned_rows(rows_of_tasks(comparisons)),
        "",
        *aligned_rows(standings(comparisons)),
        RANKED,
        *(f"  {', '.join(tasks)}: {note}" for note, tasks in notes.items()),
        "What each verdict rests on: --format csv, --page FILE.",
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
            row = {"": side.name}
            for name, measure in each.measures.items():
                row[name] = _score(each, measure.means[n], name)
                runs = measure.rates[n]
                if len(runs) > 1:
                    row[name] += f" (runs: ± {_size(each, runs.std().item())})"
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


def difference_rows(each: Comparison) -> list[dict[str, str]]:
    """Return a row a measure of a difference: first what decides."""
    together = "" if each.adjusted is None else ", all together"
    right, clusters = each.accuracy, each.in_clusters
    of_draws = [f"{n:,}" for n in each.uncertain]
    rows = []
    for name, measure in each.measures.items():
        d = measure.difference
        row = {
            "difference of": each.pair,
            "value": f"{difference_of(each, name)} {name}",
            f"at 95 %{together}": span(each, name),
            "better": better_of(each) if name == each.metric else "",
            "over draws": f"± {_size(each, d.draws_stderr)}",
            f"over {each.units}": f"± {_size(each, d.texts_stderr)}",
        }
        if any(each.repeats):
            row["over answers"] = f"± {_size(each, math.hypot(*each.repeats))}"
        if d.runs_stderr:
            row["over runs"] = f"± {_size(each, d.runs_stderr)}"
        if right:
            row["alone right"] = f"{right.only_a:,}, {right.only_b:,}"
            row["within Monte Carlo error"] = ", ".join(of_draws)
        row["p"] = error(each.p) if name == each.metric else ""
        row[each.units] = f"{d.num_texts:,}" + (f", {clusters}" if clusters else "")
        rows.append(row)
    return rows


def _lines_of(compared: Sequence[Comparison]) -> list[str]:
    """Return the sides of a task, how far they are apart, and the verdicts."""
    first = compared[0]
    head = f"{first.task}: {first.difference.num_texts:,} {first.units}"
    head += f" in {first.in_clusters}" if first.in_clusters else ""
    for unit in ("bytes", "words", "tokens") if first.is_of_texts else ():
        if f"bits a {unit.removesuffix('s')}" in first.measures:
            head += f", {first.parts[unit].sum():,} {unit}"
    differences = [row for each in compared for row in difference_rows(each)]
    lines = [
        *(head, *aligned_rows(side_rows(compared)), ""),
        *(*aligned_rows(differences), ""),
    ]
    for each in compared:
        lines += _lines_of_gap(each)
    notes = dict.fromkeys(note for each in compared for note in each.notes)
    lines += [*(f"  {note}" for note in notes), *(each.verdict for each in compared)]
    for ranking in rank(compared):
        rows = [
            {
                "": f"{n}. {name}",
                ranking.metric: f"{value:.4f}",
                "not told apart": ranking.letters[name],
            }
            for n, (name, value) in enumerate(ranking.models, start=1)
        ]
        lines += ["", f"{first.task}: ranking", *aligned_rows(rows), ranking.verdict]
    return lines


MOST = 5
"""Number of texts that are shown on either side."""


def texts_of(compared: Comparison) -> pd.DataFrame:
    """Return the texts that make up most of the difference, on either side."""
    ordered = _by_size(compared.parts)
    less = ordered["bits"] < 0
    return _by_size(pd.concat([ordered[less].head(MOST), ordered[~less].head(MOST)]))


def _by_size(parts: pd.DataFrame) -> pd.DataFrame:
    return parts.sort_values("bits", key=abs, ascending=False, kind="stable")


def _lines_of_gap(compared: Comparison) -> list[str]:
    """Say how many texts one side wins, and where the difference is."""
    if not compared.is_of_texts:
        return []
    (a, b), every = compared.sides, compared.parts["bits"]
    ties, won = int((every == 0).sum()), compared.difference.share_won
    halves = f", half of {ties:,} equal ones counted" if ties else ""
    lines = [f"  {a.name} takes less than {b.name} on {won:.1%} of the texts{halves}."]
    total = math.fsum(every)
    same = _by_size(compared.parts[every * total > 0])
    if same.empty:
        return lines
    half = int((same["bits"].cumsum().abs() < abs(total) / 2).sum()) + 1
    most = ", ".join(
        f"{part.name} ({with_error(part.bits, part.draws_stderr, '+')} bits)"
        for part in same.head(3).itertuples(index=False)
    )
    where = f"is in {half:,} of {len(every):,} texts; most in {most}"
    return [*lines, f"  Half of {compared.pair} {where}."]


def better_of(each: Comparison) -> str:
    return each.better or ("equal" if each.is_equal else "undecided")


def difference_of(each: Comparison, measure: str | None = None) -> str:
    name = measure or each.metric
    d = each.measures[name].difference
    stderr = each.stderr if name == each.metric else d.stderr
    if not each.is_share:
        return with_error(d.value, stderr, "+")
    return f"{d.value:+.1%} ± {stderr:.1%}"


def span(each: Comparison, measure: str | None = None) -> str:
    """Write the interval of a difference, in the measure that decides or another."""
    name = measure or each.metric
    ends = each.interval_in(name)
    if any(map(math.isinf, ends)):
        return f"none, of fewer than {FEWEST_TEXTS}"
    if each.is_share:
        return " to ".join(f"{end:+.1%}" for end in ends)
    stderr = each.measures[name].difference.stderr
    return " to ".join(shown(end, stderr, sign="+") for end in ends)


def _score(each: Comparison, value: float, measure: str | None = None) -> str:
    """Write a score with the decimals of the difference's error."""
    stderr = each.measures[measure or each.metric].difference.stderr
    return f"{value:.1%}" if each.is_share else shown(value, stderr)


def _size(each: Comparison, stderr: float) -> str:
    return f"{stderr:.1%}" if each.is_share else error(stderr)
