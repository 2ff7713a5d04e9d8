"""Comparisons as the rows of a table, and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import FEWEST_TEXTS, PairedDifference, wilson
from lm_latent_eval.report.compare.analysis import (
    More,
    Ranking,
    lines_of_gap,
    rank,
    standings,
)
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.sides import Rates, Side
from lm_latent_eval.report.tables import (
    Errors,
    aligned,
    error,
    one_line,
    shown,
    with_error,
)


def rows(
    comparisons: Sequence[Comparison], more: Sequence[More] = ()
) -> list[dict[str, Any]]:
    """Return comparisons as the rows of a table, a measure each.

    Args:
        comparisons: Of any tasks.
        more: What would decide each of them, where that was asked.
    """
    found: list[dict[str, Any]] = []
    for place, each in enumerate(comparisons):
        last: dict[str, Any] = {"decided": "yes" if each.decided else "no"}
        if more:
            enough = more[place].needed
            last[f"needed for {more[place].target}"] = enough and enough.number
        for name, measure in each.measures.items():
            d, (low, high) = measure.difference, each.interval_in(name)
            found.append(
                {
                    "task": each.task,
                    "difference of": pair_of(each),
                    "in": name,
                    "value": d.value,
                    "±": each.stderr if each.answers else d.stderr,
                    "over draws": d.draws_stderr,
                    "over texts": d.texts_stderr,
                    "from": low,
                    "to": high,
                    "p": each.p_value if each.adjusted is None else each.adjusted,
                    **last,
                }
            )
    return found


ERRORS: Errors = {
    **dict.fromkeys(("value", "from", "to"), ("±",)),
    "": ("over draws", "over texts", "p"),
}
"""Columns of errors, by the columns whose decimals they decide."""


def pair_of(each: Comparison) -> str:
    """Name the difference: that of the first side and the second's."""
    return " - ".join(side.name for side in each.sides)


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons for a terminal: of several tasks a line each.

    Names of tasks, models and estimators come from files, and command no terminal.
    """
    if len({each.task for each in comparisons}) > 1:
        blocks = [_lines_of_tasks(comparisons)]
    else:
        blocks = [_lines_of(each) for each in comparisons]
        blocks += [ranked(each) for each in rank(comparisons)]
    return "\n\n".join("\n".join(map(one_line, lines)) for lines in blocks)


# -- several tasks ---------------------------------------------------------------------


def by_task(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """Return a row a task: what each model has, and which one is better.

    Of two models the difference stands there, too; of more, letters: models that share
    one are not told apart.
    """
    tasks: dict[str, list[Comparison]] = {}
    for each in comparisons:
        tasks.setdefault(each.task, []).append(each)
    return [_row_of_task(task, pairs) for task, pairs in tasks.items()]


def _row_of_task(task: str, pairs: Sequence[Comparison]) -> dict[str, str]:
    """Return the row: first what decides."""
    first, *others = pairs
    of = {"of": f"{first.difference.num_texts:,} {first.units}, {first.metric}"}
    if not others:
        a, b = first.sides
        return {
            "task": task,
            "better": better_of(first),
            "difference": difference_of(first),
            "at 95 %": span(first),
            a.name: score(first, first.scores[0]),
            b.name: score(first, first.scores[1]),
            **of,
        }
    [*ranking] = rank(pairs)
    if not ranking:  # pairs of unfinished runs are of other texts
        return {"task": task, "best": "not ranked: runs differ in their texts", **of}
    [order] = ranking
    letters, names = order.letters, [name for name, _ in order.models]
    first_ones = [name for name in names if {*letters[name]} & {*letters[names[0]]}]
    return {
        "task": task,
        "best": ", ".join(first_ones) if len(first_ones) < len(names) else "undecided",
        **{
            name: f"{score(first, value)} {letters[name]}"
            for name, value in sorted(order.models)
        },
        **of,
    }


def better_of(each: Comparison) -> str:
    """Say in a word which side is better."""
    return each.better or ("equal" if each.is_equal else "undecided")


def standing_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the one ranking of several tasks as rows."""
    return [
        {
            "model": f"{place}. {each.model}",
            "better": each.better,
            "worse": each.worse,
            "undecided": each.undecided,
        }
        for place, each in enumerate(standings(comparisons), start=1)
    ]


RANKED = (
    "Ranked by how often a model is better than another in a task, less how often it "
    "is worse; verdicts hold task by task, each at 95 %."
)


def _lines_of_tasks(comparisons: Sequence[Comparison]) -> list[str]:
    lines = []
    for rows in (by_task(comparisons), standing_rows(comparisons)):
        names = dict.fromkeys(name for row in rows for name in row)
        cells = [[f"{row.get(name, '')}" for name in names] for row in rows]
        lines += [*aligned([[*names], *cells]), ""]
    said: dict[str, list[str]] = {}
    for each in comparisons:
        for note in each.notes:
            tasks = said.setdefault(note, [])
            tasks += [each.task] if each.task not in tasks else []
    notes = [f"  {', '.join(tasks)}: {note}" for note, tasks in said.items()]
    return [
        *lines[:-1],
        RANKED,
        *notes,
        "What each verdict rests on: --format csv, --page FILE.",
    ]


# -- one task --------------------------------------------------------------------------


BOUNDS = {
    Bound.EXACT: "exact",
    Bound.STRICT_LOWER: "at most",
    Bound.STOCHASTIC_LOWER: "at most, on average",
    Bound.ESTIMATED_LOWER: "an estimate of a bound",
    Bound.NONE: "no bound",
}
"""Bound of a rate in bits, by the bound of log p-hat."""


_OF_A_RUN = (
    *("name", "model_name", "date", "lm_eval", "transformers", "torch"),
    *("format", "run_digest", "texts", "num_texts"),
)
"""Settings that no number of a model depends on."""


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
        number = settings.get("num_samples")  # none, where nothing is drawn
        parts.append(estimator if number is None else f"{estimator}, K = {number:,}")
    parts += [f"{len(side.runs)} runs"] * (len(side.runs) > 1)
    return ", ".join(filter(None, parts))


def _lines_of(each: Comparison) -> list[str]:
    """Return what two sides have in a task, how far they are apart, and the verdict."""
    d, measures = each.difference, each.measures.values()
    about = each.metric
    if each.answers is None:
        units = [name.removeprefix("bits a ") + "s" for name in each.measures]
        about = ", ".join(f"{each.parts[unit].sum():,} {unit}" for unit in units)
    within = ""
    if each.clusters:
        within = (
            f" in {each.clusters}" if each.answers is None else f", {each.clusters}"
        )
    right = each.answers and each.answers.accuracy
    names = ["right"] if right else [*each.measures]
    rows = [["", *names, *_beside(each, None)]]
    for place, side in enumerate(each.sides):
        cells = [_rate(each, m.rates[place], m.difference) for m in measures]
        if right:
            cells = [_share(right.accuracy[place], right.num_questions)]
        rows.append([side.name, *cells, *_beside(each, place)])
    nothing = [""] * len(_beside(each, None))
    rows += [[name, *cells, *nothing] for name, cells in _differences(each)]
    lines = [f"{each.task}: {d.num_texts:,} {each.units}{within}, {about}"]
    lines += aligned(rows)
    if each.answers is None:
        a, b = (side.name for side in each.sides)
        ties = int((each.parts["bits"] == 0).sum())
        halves = f", half of {ties:,} equal ones counted" if ties else ""
        lines.append(
            f"  {a} takes less than {b} on {d.share_won:.1%} of the texts{halves}."
        )
        lines += lines_of_gap(each)
    return [*lines, *(f"  {note}" for note in each.notes), each.verdict]


def _beside(each: Comparison, place: int | None) -> list[str]:
    """Return further cells of a side, or of the head of the table."""
    of = each.answers
    if place is None:
        heads = ["alone", "of these within Monte Carlo error"]
        return [*(heads if of and of.accuracy else [""] * (of is None)), ""]
    side = each.sides[place]
    said = described(side, each.sides)
    if of is None:
        return [BOUNDS[side.bound], said]
    if of.accuracy is None:
        return [said]
    alone = (of.accuracy.only_a, of.accuracy.only_b)[place]
    return [f"{alone:,}", f"{of.uncertain[place]:,}", said]


def _rate(each: Comparison, rates: Rates, difference: PairedDifference) -> str:
    """Write the number of a side, with its spread over runs."""
    if each.answers:
        return score(each, rates.mean)
    spread = "" if rates.spread is None else f" (runs: ± {error(rates.spread)})"
    return f"{shown(rates.mean, difference.stderr)}{spread}"


def _differences(each: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a table that tell the differences, a cell a measure."""
    found = [measure.difference for measure in each.measures.values()]
    together = "" if each.adjusted is None else ", all together"
    spans = [span(each, name) for name in each.measures]
    if each.answers is None:
        yield pair_of(each), [with_error(d.value, d.stderr, "+") for d in found]
        yield "  over draws", [f"± {error(d.draws_stderr)}" for d in found]
        yield "  over texts", [f"± {error(d.texts_stderr)}" for d in found]
        yield f"  at 95 %{together}", spans
    else:
        yield pair_of(each), [difference_of(each)]
        yield f"  at 95 %{together}", spans
        if any(repeats := each.answers.repeats):
            yield "  over answers", [f"± {_size(each, math.hypot(*repeats))}"]
    if any(d.runs_stderr for d in found):
        yield "  over runs", [f"± {_size(each, d.runs_stderr)}" for d in found]


def difference_of(each: Comparison) -> str:
    """Write a difference with its error."""
    value = each.difference.value
    if not each.is_share:
        return with_error(value, each.stderr, "+")
    return f"{value:+.1%} ± {each.stderr:.1%}"


def span(each: Comparison, measure: str | None = None) -> str:
    """Write where a difference lies, in the measure that decides or another one."""
    name = each.metric if measure is None else measure
    ends = each.interval_in(name)
    if any(map(math.isinf, ends)):
        return f"none, of fewer than {FEWEST_TEXTS}"
    if each.is_share:
        return " to ".join(f"{end:+.1%}" for end in ends)
    stderr = each.measures[name].difference.stderr
    return " to ".join(shown(end, stderr, sign="+") for end in ends)


def _share(accuracy: float, number: int) -> str:
    """Return a share of right answers with the interval that it lies in at 95 %."""
    low, high = wilson(round(accuracy * number), number)
    return f"{accuracy:.1%} ({low:.0%} to {high:.0%})"


def score(each: Comparison, value: float) -> str:
    """Write a score with the decimals of the difference's error."""
    return f"{value:.1%}" if each.is_share else shown(value, each.stderr)


def _size(each: Comparison, stderr: float) -> str:
    return f"{stderr:.1%}" if each.is_share else error(stderr)


def ranked(ranking: Ranking) -> list[str]:
    """Return the lines of a ranking."""
    letters = ranking.letters
    rows = [["", ranking.metric, "not told apart"]]
    for place, (name, value) in enumerate(ranking.models, start=1):
        rows.append([f"{place}. {name}", f"{value:.4f}", letters[name]])
    return [f"{ranking.task}: ranking", *aligned(rows), ranking.verdict]
