"""Analyses of comparisons: rankings, and the number of units that decides one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from lm_latent_eval.estimators.paired import groups
from lm_latent_eval.estimators.power import POWER, Needed, needed, needed_questions
from lm_latent_eval.report.compare.comparison import Comparison


@dataclass(frozen=True)
class Ranking:
    """Models in the order of their numbers in one task, the best one first."""

    task: str
    metric: str
    models: Sequence[tuple[str, float]]
    """Name and number: bits a byte, or a mean score."""
    letters: dict[str, str]
    """Name -> letters; models that share one are not told apart."""
    verdict: str


def by_task(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    tasks: dict[str, list[Comparison]] = {}
    for each in comparisons:
        tasks.setdefault(each.task, []).append(each)
    return tasks


def rank(comparisons: Sequence[Comparison]) -> list[Ranking]:
    """Order the models of each task in which there are three and more.

    There is no order of all where a model has another number in one pair than in the
    next: pairs of unfinished runs share other texts, and some have other units.
    """
    tasks = by_task(comparisons).items()
    rankings = (_ranking(task, pairs) for task, pairs in tasks if len(pairs) > 1)
    return [ranking for ranking in rankings if ranking is not None]


def _ranking(task: str, pairs: Sequence[Comparison]) -> Ranking | None:
    values: dict[str, float] = {}
    for pair in pairs:
        for side, value in zip(pair.sides, pair.scores, strict=True):
            if not math.isclose(
                values.setdefault(side.name, value), value, abs_tol=1e-9
            ):
                return None
    first = pairs[0]
    upwards = not first.is_of_texts and not first.sides[0].lower_is_better
    models = sorted(values.items(), key=lambda row: row[1], reverse=upwards)
    names = [name for name, _ in models]
    apart = [
        frozenset(side.name for side in pair.sides) for pair in pairs if pair.decided
    ]
    letters = dict.fromkeys(names, "")
    for n, group in enumerate(groups(names, apart)):
        for name in group:
            letters[name] += ascii_lowercase[n % 26] * (n // 26 + 1)
    best = names[0]
    rest = [name for name in names[1:] if frozenset((best, name)) not in apart]
    says = f"{best} is first, and not told apart from "
    if not rest:
        says = f"{best} is better than every other model"
    elif len(rest) < len(names) - 1:
        says += ", ".join(rest)
    else:
        says += "any other model"
    verdict = (
        f"{says}; {len(apart)} of {len(pairs)} pairs are told apart, all together at "
        "95 % (Bonferroni)."
    )
    return Ranking(task, first.metric, models, letters, verdict)


def standings(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return how often each model is better or worse than another, best first.

    Tasks count alike.
    """
    counts: dict[str, dict[str, int]] = {}
    for each in comparisons:
        for side in each.sides:
            row = counts.setdefault(side.name, Counter(better=0, worse=0, undecided=0))
            verdict = "better" if each.better == side.name else "worse"
            row[verdict if each.decided else "undecided"] += 1
    rows = sorted(counts.items(), key=lambda row: row[1]["worse"] - row[1]["better"])
    return [{"model": f"{n}. {name}", **row} for n, (name, row) in enumerate(rows, 1)]


BITS_A_POINT = 0.01
"""Bits a byte (or word) that count as a point."""
NEVER = 10**9
"""Number of units from which on none is printed."""


@dataclass(frozen=True)
class Power:
    """Sample size that decides a difference of so many points four times of five."""

    target: str
    """The difference, in words."""
    needed: Needed | None
    """Number of texts or questions; None: no number is enough."""
    shares: dict[str, float]
    """Shares of the error's square, by what causes it."""
    sentence: str


def power(compared: Comparison, points: float) -> Power:
    """Return how many texts or questions decide a difference of so many points.

    Args:
        compared: A comparison, whose pairing tells the spread.
        points: Points of accuracy; of texts hundredths of bits a byte.

    Raises:
        ValueError: If a single text tells no spread.
    """
    d, units, right = compared.difference, compared.units, compared.accuracy
    if d.num_independent < 2 or not math.isfinite(d.stderr):
        unit = units.removesuffix("s")
        raise ValueError(
            f"--power: {compared.task} has one {unit}, which tells no spread"
        )
    size = points / 100 if compared.is_share else points
    size = points * BITS_A_POINT if compared.is_of_texts else size
    stays = d.runs_stderr**2 + d.missed_stderr**2
    inner = drawn = max(d.stderr**2 - d.texts_stderr**2 - stays, 0.0)
    if repeated := any(compared.repeats):
        inner = min(math.hypot(*compared.repeats) ** 2, d.texts_stderr**2)
    cause = "repeats" if repeated else "draws of latents"
    every = d.texts_stderr**2 + drawn
    parts = {
        units: every - inner,
        cause: inner + d.missed_stderr**2,
        "runs": d.runs_stderr**2,
    }

    def number_of(variance: float, missed: float) -> Needed | None:
        spread = math.sqrt(max(variance, 0.0) * d.num_independent)
        runs = d.runs_stderr, d.runs_degrees
        number = needed(size, spread, d.num_independent, runs=runs, missed=missed)
        return number and number.times(d.num_texts / d.num_independent)

    if right is None:
        now, ideal = number_of(every, d.missed_stderr), number_of(every - inner, 0.0)
    else:
        differ = (right.only_a + right.only_b + 1) / (right.num_questions + 2)
        now = ideal = needed_questions(size, differ, right.num_questions)
    total = sum(parts.values()) or 1.0
    shares = {name: part / total for name, part in parts.items() if part > 0}
    target, (a, b) = _amount(compared, size, "g"), (s.name for s in compared.sides)
    says = f"To decide {target} at {POWER:.0%} between {a} and {b}: "
    if now is None:
        missed = d.missed_stderr > d.runs_stderr
        apart = _amount(compared, max(d.missed_stderr, d.runs_stderr), ".2g")
        says += f"no number of {units} is enough. " + (
            f"Draws may have missed {apart}: more latents a text help."
            if missed
            else f"Other runs would move that by {apart}: more runs help."
        )
        return Power(target, now, shares, says)
    many = f"{now.number:,} {units} ({now.at_least:,} to {now.at_most:,})"
    if now.number >= NEVER:
        many = f"more than a billion {units}"
    told = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    says += f"{many}; there are {d.num_texts:,}. Shares of the variance: {told}"
    if cause in shares and ideal is not None and ideal.number < now.number:
        says += f"; without {cause} {ideal.number:,} {units} would do"
    return Power(target, now, shares, f"{says}.")


def _amount(compared: Comparison, size: float, digits: str) -> str:
    if not compared.is_share:
        of = "" if compared.is_of_texts else "of "
        return f"{size:{digits}} {of}{compared.metric}"
    points = f"{100 * size:{digits}}"
    return f"{points} point{'s' * (points != '1')} of {compared.metric}"
