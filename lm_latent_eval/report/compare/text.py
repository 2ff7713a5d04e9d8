"""Comparisons as the rows of a table, and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import FEWEST_TEXTS, PairedDifference, wilson
from lm_latent_eval.report.compare.analysis import More, Ranking, lines_of_gap, rank
from lm_latent_eval.report.compare.comparison import Comparison, TextComparison
from lm_latent_eval.report.compare.questions import QuestionComparison
from lm_latent_eval.report.compare.sides import Rates, Side, bits, rate_in
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
    """Return comparisons as the rows of a table, a unit each.

    Args:
        comparisons: Of any tasks.
        more: What would decide each of them, where that was asked.
    """
    found: list[dict[str, Any]] = []
    for place, each in enumerate(comparisons):
        a, b = (side.name for side in each.sides)
        decided = "yes" if each.decided else "no"
        last: dict[str, Any] = {"decided": decided}
        if more:
            enough = more[place].needed
            last[f"needed for {more[place].target}"] = enough and enough.number
        for what, values in _cells(each):
            about = {"task": each.task, "difference of": f"{a} - {b}", "in": what}
            named = zip(_COLUMNS, values, strict=True)
            found.append({**about, **dict(named), **last})
    return found


_COLUMNS = ("value", "±", "over draws", "over texts", "from", "to", "p")
ERRORS: Errors = {
    **dict.fromkeys(("value", "from", "to"), ("±",)),
    "": ("over draws", "over texts", "p"),
}
"""Columns of errors, by the columns whose decimals they decide."""


def _cells(each: Comparison) -> list[tuple[str, tuple[float | None, ...]]]:
    p = each.p_value if each.adjusted is None else each.adjusted
    if isinstance(each, QuestionComparison):
        found = each.difference
        errors = (each.stderr, *_parts(found)[2:4])
        return [(each.metric, (found.value, *errors, *each.interval, p))]
    return [
        (rate_in(unit), (*map(bits, (*_parts(d), *each.interval_in(unit))), p))
        for unit, (_, _, d) in each.units.items()
    ]


def _parts(found: PairedDifference) -> tuple[float, ...]:
    return (found.value, found.stderr, found.draws_stderr, found.texts_stderr)


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons for a terminal.

    Names of tasks, models and estimators come from files, and command no terminal.
    """
    found = (
        _lines_of_texts(each)
        if isinstance(each, TextComparison)
        else _lines_of_choices(each)
        for each in comparisons
    )
    ranks = (ranked(each) for each in rank(comparisons))
    return "\n\n".join("\n".join(map(one_line, ls)) for ls in (*found, *ranks))


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


def _lines_of_texts(each: TextComparison) -> list[str]:
    a, b = (side.name for side in each.sides)
    difference = each.difference
    counts = ", ".join(f"{count:,} {unit}" for unit, count in each.totals.items())
    rows = [["", *map(rate_in, each.units), "", ""]]
    found = each.units.values()
    rates = ([_rate(a, d) for a, _, d in found], [_rate(b, d) for _, b, d in found])
    for side, cells in zip(each.sides, rates, strict=True):
        rows.append(
            [side.name, *cells, BOUNDS[side.bound], described(side, each.sides)]
        )
    for name, parts in _differences(each).items():
        rows.append([name, *parts, "", ""])
    about = f" in {each.clusters}" if each.clusters else ""
    head = f"{each.task}: {difference.num_texts:,} texts{about}, {counts}"
    lines = [head, *aligned(rows)]
    ties = int((each.parts["nats"] == 0).sum())
    halves = f", half of {ties:,} equal ones counted" if ties else ""
    lines.append(
        f"  {a} takes less than {b} on {difference.share_won:.1%} of the texts{halves}."
    )
    lines += lines_of_gap(each)
    lines += [f"  {note}" for note in each.notes]
    return [*lines, each.verdict]


def _rate(rates: Rates, difference: PairedDifference) -> str:
    spread = "" if rates.spread is None else f" (runs: ± {error(bits(rates.spread))})"
    return f"{shown(bits(rates.mean), bits(difference.stderr))}{spread}"


def _differences(each: TextComparison) -> dict[str, list[str]]:
    """Return the rows of a table that tell the differences, a cell a unit."""
    a, b = (side.name for side in each.sides)
    found = [difference for _, _, difference in each.units.values()]
    rows = {
        f"{a} - {b}": [with_error(bits(d.value), bits(d.stderr), "+") for d in found],
        "  over draws": [f"± {error(bits(d.draws_stderr))}" for d in found],
        "  over texts": [f"± {error(bits(d.texts_stderr))}" for d in found],
        _confidence(each): [
            _span(
                shown(bits(end), bits(difference.stderr), sign="+")
                for end in each.interval_in(unit)
            )
            for unit, (_, _, difference) in each.units.items()
        ],
    }
    if any(d.runs_stderr for d in found):
        rows["  over runs"] = [f"± {error(bits(d.runs_stderr))}" for d in found]
    return rows


def _confidence(each: Comparison) -> str:
    return "  at 95 %" if each.adjusted is None else "  at 95 %, all together"


def span(each: Comparison) -> str:
    """Write where a difference lies."""
    return _span(score(each, end, "+") for end in each.interval)


def _span(ends: Iterable[str]) -> str:
    low, high = ends
    few = f"none, of fewer than {FEWEST_TEXTS}"
    return few if "∞" in low + high else f"{low} to {high}"


def _share(accuracy: float, number: int) -> str:
    """Return a share of right answers with the interval that it lies in at 95 %."""
    low, high = wilson(round(accuracy * number), number)
    return f"{accuracy:.1%} ({low:.0%} to {high:.0%})"


def score(each: Comparison, value: float, sign: str = "") -> str:
    """Write a score, or a difference of them, with the decimals of its error.

    Those of texts are nats a unit, and written in bits.
    """
    if isinstance(each, TextComparison):
        return shown(bits(value), bits(each.difference.stderr), sign=sign)
    if each.is_share:
        return f"{value:{sign}.1%}"
    return shown(value, each.stderr, sign=sign)


def _lines_of_choices(each: QuestionComparison) -> list[str]:
    number = each.difference.num_texts
    about = f", {each.clusters}" if each.clusters else ""
    head = f"{each.task}: {number:,} questions{about}, {each.metric}"
    rows = _rows_of_right(each) if each.accuracy else _rows_of_scores(each)
    ties = [
        f"  {side.name}: of {number:,} questions rounding alone chooses the answer, "
        "which counts as right only if each one that ties is."
        for side, number in zip(each.sides, each.ties, strict=True)
        if number
    ]
    unfinished = [
        f"  {side.name} is not finished: only what it has is compared."
        for side in each.sides
        if not side.finished
    ]
    return [head, *aligned(rows), *ties, *unfinished, each.verdict]


def _rows_of_right(each: QuestionComparison) -> list[list[str]]:
    found = each.accuracy
    assert found is not None
    a, b = (side.name for side in each.sides)
    of_draws = ["alone", "of these within Monte Carlo error"]
    rows = [["", "right", *of_draws, ""]]
    alone = (found.only_a, found.only_b)
    for place, side in enumerate(each.sides):
        share = _share(found.accuracy[place], found.num_questions)
        cells = [f"{alone[place]:,}", f"{each.uncertain[place]:,}"]
        rows.append([side.name, share, *cells, described(side, each.sides)])
    gain = found.accuracy[0] - found.accuracy[1]
    rows.append([f"{a} - {b}", f"{gain:+.1%} ± {found.stderr:.1%}", "", "", ""])
    rows.append([_confidence(each), span(each), "", "", ""])
    return rows


def _rows_of_scores(each: QuestionComparison) -> list[list[str]]:
    a, b = (side.name for side in each.sides)
    d = each.difference
    rows = [["", each.metric, ""]]
    for place, side in enumerate(each.sides):
        shown = score(each, each.scores[place])
        rows.append([side.name, shown, described(side, each.sides)])
    rows.append(
        [f"{a} - {b}", f"{score(each, d.value, '+')} ± {_size(each, d.stderr)}", ""]
    )
    rows.append([_confidence(each), span(each), ""])
    if any(each.repeats):
        part = f"± {_size(each, math.hypot(*each.repeats))}"
        rows.append(["  over answers", part, ""])
    if d.runs_stderr:
        rows.append(["  over runs", f"± {_size(each, d.runs_stderr)}", ""])
    return rows


def _size(each: QuestionComparison, stderr: float) -> str:
    return f"{stderr:.1%}" if each.is_share else error(stderr)


def ranked(ranking: Ranking) -> list[str]:
    """Return the lines of a ranking."""
    letters = ranking.letters
    rows = [["", ranking.metric, "not told apart"]]
    for place, (name, value) in enumerate(ranking.models, start=1):
        rows.append([f"{place}. {name}", f"{value:.4f}", letters[name]])
    return [f"{ranking.task}: ranking", *aligned(rows), ranking.verdict]
