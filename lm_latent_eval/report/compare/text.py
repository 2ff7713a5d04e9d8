"""Comparisons as the rows of a table, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import PairedDifference, wilson
from lm_latent_eval.report.compare.comparison import (
    ChoiceComparison,
    Comparison,
    Rates,
    TextComparison,
)
from lm_latent_eval.report.compare.sides import Side
from lm_latent_eval.report.compare.writing import bits, with_error
from lm_latent_eval.report.tabular import aligned, one_line


def rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return comparisons as the rows of a table, a unit each."""
    found: list[dict[str, Any]] = []
    for each in comparisons:
        a, b = (side.name for side in each.sides)
        decided = "yes" if each.decided else "no"
        for what, values in _cells(each):
            about = {"task": each.task, "difference of": f"{a} - {b}", "in": what}
            named = zip(_COLUMNS, values, strict=True)
            found.append({**about, **dict(named), "decided": decided})
    return found


_COLUMNS = ("value", "±", "over draws", "over texts", "from", "to")


def _cells(each: Comparison) -> list[tuple[str, tuple[float | None, ...]]]:
    if isinstance(each, ChoiceComparison):
        right = each.accuracy
        gain = right.accuracy[0] - right.accuracy[1]
        return [("accuracy", (gain, right.stderr, None, None, None, None))]
    return [
        (f"bits a {unit.removesuffix('s')}", tuple(map(bits, _parts(difference))))
        for unit, (_, _, difference) in each.units.items()
    ]


def _parts(found: PairedDifference) -> tuple[float, ...]:
    errors = (found.stderr, found.draws_stderr, found.texts_stderr)
    return (found.value, *errors, *found.interval)


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
    return "\n\n".join("\n".join(map(one_line, lines)) for lines in found)


BOUNDS = {
    Bound.EXACT: "exact",
    Bound.STRICT_LOWER: "at most",
    Bound.STOCHASTIC_LOWER: "at most, on average",
    Bound.ESTIMATED_LOWER: "an estimate of a bound",
    Bound.NONE: "no bound",
}
"""What a rate in bits is, where log p-hat bounds log p so."""


def described(side: Side) -> str:
    """Say what model a side is, in a line."""
    settings = side.settings[0]
    parts = [str(settings.get("model")), str(settings.get("checkpoint") or "")]
    if (estimator := settings.get("estimator")) not in (None, "exact"):
        number = settings.get("num_samples")  # none, where nothing is drawn
        parts.append(estimator if number is None else f"{estimator}, K = {number:,}")
    parts += [f"{len(side.runs)} runs"] * (len(side.runs) > 1)
    return ", ".join(filter(None, parts))


def _lines_of_texts(each: TextComparison) -> list[str]:
    a, b = (side.name for side in each.sides)
    difference = next(iter(each.units.values()))[2]
    counts = ", ".join(f"{count:,} {unit}" for unit, count in each.totals.items())
    rows = [["", *(f"bits a {unit.removesuffix('s')}" for unit in each.units), "", ""]]
    found = each.units.values()
    rates = ([_rate(a) for a, _, _ in found], [_rate(b) for _, b, _ in found])
    for side, cells in zip(each.sides, rates, strict=True):
        rows.append([side.name, *cells, BOUNDS[side.bound], described(side)])
    for name, parts in _differences(each).items():
        rows.append([name, *parts, "", ""])
    lines = [f"{each.task}: {difference.num_texts:,} texts, {counts}", *aligned(rows)]
    lines.append(
        f"  {a} takes less than {b} on {difference.share_won:.1%} of the texts."
    )
    lines += [f"  {note}" for note in each.notes]
    return [*lines, each.verdict]


def _rate(rates: Rates) -> str:
    spread = "" if rates.spread is None else f" (runs: ± {bits(rates.spread):.2g})"
    return f"{bits(rates.mean):.4f}{spread}"


def _differences(each: TextComparison) -> dict[str, list[str]]:
    """Return the rows of a table that tell the differences, a cell a unit."""
    a, b = (side.name for side in each.sides)
    found = [difference for _, _, difference in each.units.values()]
    rows = {
        f"{a} - {b}": [with_error(d.value, d.stderr, sign="+") for d in found],
        "  over draws": [f"± {bits(d.draws_stderr):.2g}" for d in found],
        "  over texts": [f"± {bits(d.texts_stderr):.2g}" for d in found],
        "  at 95 %": [
            f"{bits(d.interval[0]):+.4f} to {bits(d.interval[1]):+.4f}" for d in found
        ],
    }
    if any(d.runs_stderr for d in found):
        rows["  over runs"] = [f"± {bits(d.runs_stderr):.2g}" for d in found]
    return rows


def _share(accuracy: float, number: int) -> str:
    """Return a share of right answers with the interval that it lies in at 95 %."""
    low, high = wilson(round(accuracy * number), number)
    return f"{accuracy:.1%} ({low:.0%} to {high:.0%})"


def _lines_of_choices(each: ChoiceComparison) -> list[str]:
    found = each.accuracy
    a, b = (side.name for side in each.sides)
    rows = [
        ["", "right", "alone", "of these within Monte Carlo error", ""],
        *(
            [
                side.name,
                _share(found.accuracy[place], found.num_questions),
                f"{alone:,}",
                f"{each.uncertain[place]:,}",
                described(side),
            ]
            for place, (side, alone) in enumerate(
                zip(each.sides, (found.only_a, found.only_b), strict=True)
            )
        ),
        [
            f"{a} - {b}",
            f"{found.accuracy[0] - found.accuracy[1]:+.1%} ± {found.stderr:.1%}",
            *("", "", ""),
        ],
    ]
    head = f"{each.task}: {found.num_questions:,} questions"
    ties = [
        f"  {side.name}: of {number:,} questions rounding alone chooses the answer, "
        "which counts as right only if each one that ties is."
        for side, number in zip(each.sides, each.ties, strict=True)
        if number
    ]
    return [head, *aligned(rows), *ties, each.verdict]
