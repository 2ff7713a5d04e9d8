"""Analyses of comparisons: ranking, where a difference is, and how much decides it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import pandas as pd

from lm_latent_eval.estimators.paired import PairedDifference, groups
from lm_latent_eval.estimators.power import POWER, Needed, needed, needed_questions
from lm_latent_eval.report.compare.comparison import Comparison
from lm_latent_eval.report.compare.sides import SUBTASK
from lm_latent_eval.report.tables import with_error


@dataclass(frozen=True)
class Ranking:
    """Models in the order of their numbers in one task, the best one first."""

    task: str
    metric: str
    models: Sequence[tuple[str, float]]
    """Name and number: bits a byte, or a mean score."""
    groups: Sequence[tuple[str, ...]]
    """The largest sets of which no two were told apart."""
    pairs: Sequence[Comparison]

    @property
    def letters(self) -> dict[str, str]:
        """A letter a group: models that share one are not told apart."""
        marks = {
            ascii_lowercase[n % 26] * (n // 26 + 1): some
            for n, some in enumerate(self.groups)
        }
        return {
            name: "".join(mark for mark, some in marks.items() if name in some)
            for name, _ in self.models
        }

    @property
    def verdict(self) -> str:
        """Say in a sentence what holds."""
        decided = [_names(pair) for pair in self.pairs if pair.decided]
        best = self.models[0][0]
        behind = {n for names in decided if best in names for n in names} - {best}
        if len(behind) == len(self.models) - 1:
            first = f"{best} is better than every other model"
        elif behind:
            rest = [n for n, _ in self.models[1:] if n not in behind]
            first = f"{best} is first, and not told apart from {', '.join(rest)}"
        else:
            first = f"{best} is first, and not told apart from any other model"
        return (
            f"{first}; {len(decided)} of {len(self.pairs)} pairs are told apart, all "
            "together at 95 % (Bonferroni)."
        )


def rank(comparisons: Sequence[Comparison]) -> list[Ranking]:
    """Order the models of each task in which there are three and more.

    There is no order of all where a model has another number in one pair than in the
    next: pairs of unfinished runs share other texts, and some have other units.
    """
    tasks: dict[str, list[Comparison]] = {}
    for each in comparisons:
        tasks.setdefault(each.task, []).append(each)
    found = (_ranking(task, pairs) for task, pairs in tasks.items() if len(pairs) > 1)
    return [ranking for ranking in found if ranking is not None]


def _ranking(task: str, pairs: Sequence[Comparison]) -> Ranking | None:
    numbers: dict[str, float] = {}
    metric, upwards = "", False
    for pair in pairs:
        metric = pair.metric
        upwards = pair.answers is not None and not pair.sides[0].lower_is_better
        for name, value in zip(_names(pair), pair.scores, strict=True):
            if not math.isclose(numbers.setdefault(name, value), value, abs_tol=1e-9):
                return None
    ordered = sorted(numbers.items(), key=lambda each: each[1], reverse=upwards)
    apart = [frozenset(_names(pair)) for pair in pairs if pair.decided]
    names = [name for name, _ in ordered]
    return Ranking(task, metric, ordered, groups(names, apart), pairs)


@dataclass(frozen=True)
class Standing:
    """How a model stands beside the others over all tasks."""

    model: str
    better: int
    """Pairs of a model and a task in which it is told to be the better one."""
    worse: int
    undecided: int


def standings(comparisons: Sequence[Comparison]) -> list[Standing]:
    """Order models by their verdicts in all tasks, the best one first.

    Tasks count alike; a group of them is none of its own.
    """
    counts: dict[str, Counter[str]] = {}
    for each in comparisons:
        if each.clusters is not None and each.clusters.field == SUBTASK:
            continue
        for side in each.sides:
            how = "undecided"
            if each.decided:
                how = "better" if each.better == side.name else "worse"
            counts.setdefault(side.name, Counter())[how] += 1
    found = [
        Standing(name, how["better"], how["worse"], how["undecided"])
        for name, how in counts.items()
    ]
    return sorted(found, key=lambda each: each.worse - each.better)


def _names(pair: Comparison) -> tuple[str, str]:
    a, b = pair.sides
    return a.name, b.name


MOST = 5
"""Texts that are shown on either side."""


def texts_of(found: Comparison) -> pd.DataFrame:
    """Return the texts with most of the difference, on either side."""
    ordered = found.parts.sort_values("bits", key=abs, ascending=False, kind="stable")
    less = ordered["bits"] < 0
    some = pd.concat([ordered[less].head(MOST), ordered[~less].head(MOST)])
    return some.sort_values("bits", key=abs, ascending=False, kind="stable")


def lines_of_gap(found: Comparison) -> list[str]:
    """Say in a line where the difference is."""
    a, b = (side.name for side in found.sides)
    every = found.parts["bits"]
    total = math.fsum(every)
    same = found.parts[every * total > 0]
    if same.empty:
        return []
    same = same.sort_values("bits", key=abs, ascending=False, kind="stable")
    half = int((same["bits"].cumsum().abs() < abs(total) / 2).sum()) + 1
    most = ", ".join(
        f"{part.name} ({with_error(part.bits, part.draws_stderr, '+')} bits)"
        for part in same.head(3).itertuples(index=False)
    )
    return [
        f"  Half of {a} - {b} is in {half:,} of {len(every):,} texts; most in {most}."
    ]


BITS_A_POINT = 0.01
"""Bits a byte (or word) that count as a point."""
NEVER = 10**9


@dataclass(frozen=True)
class More:
    """Sample sizes that decide a difference of so many points four times of five."""

    task: str
    pair: str
    target: str
    what: str
    """Texts or questions."""
    seen: int
    needed: Needed | None
    """None: no number does, for what ``remedy`` says."""
    parts: dict[str, float]
    """Shares of the error's square, by what causes it."""
    remedy: str

    def __str__(self) -> str:
        """Say it in a line or two."""
        head = f"To decide {self.target} at {POWER:.0%} between {self.pair}: "
        if self.needed is None:
            return f"{head}no number of {self.what} is enough. {self.remedy}"
        n = self.needed
        many = "more than a billion" if n.number >= NEVER else f"{n.number:,}"
        says = f"{head}{many} {self.what}"
        if n.number < NEVER:
            says += f" ({n.at_least:,} to {n.at_most:,})"
        return f"{says}; there are {self.seen:,}. {self.remedy}".rstrip()


def more(found: Comparison, points: float) -> More:
    """Return how many texts or questions decide a difference of so many points.

    Args:
        found: A comparison, whose pairing tells the spread.
        points: Of accuracy; of texts hundredths of bits a byte.

    Raises:
        ValueError: If points are not positive, or a single text tells no spread.
    """
    if not 0 < points < math.inf:
        raise ValueError(f"--power {points:g}: expected a positive number of points")
    d = found.difference
    if d.num_independent < 2 or not math.isfinite(d.stderr):
        unit = found.units.removesuffix("s")
        raise ValueError(f"--power: {found.task} has one {unit}, which tells no spread")
    a, b = (side.name for side in found.sides)
    what, of = found.units, found.answers
    size = points / 100 if found.is_share else points
    if of is None:
        size = points * BITS_A_POINT
    target = _amount(found, size, "g")
    stays = d.runs_stderr**2 + d.missed_stderr**2
    drawn = max(d.stderr**2 - d.texts_stderr**2 - stays, 0.0)
    inner, cause = drawn, "draws of latents"
    if of is not None and any(of.repeats):
        inner = min(math.hypot(*of.repeats) ** 2, d.texts_stderr**2)
        cause = "repeats"
    every = d.texts_stderr**2 + drawn
    parts = {
        what: every - inner,
        cause: inner + d.missed_stderr**2,
        "runs": d.runs_stderr**2,
    }
    if of is not None and (right := of.accuracy) is not None:
        share = (right.only_a + right.only_b + 1) / (right.num_questions + 2)
        now: Needed | None = needed_questions(size, share, right.num_questions)
        ideal = now
    else:
        now = _needed(d, size, every, d.missed_stderr)
        ideal = _needed(d, size, every - inner, 0.0)
    total = sum(parts.values()) or 1.0
    shares = {name: part / total for name, part in parts.items() if part > 0}
    remedy = _remedy(found, shares, what, cause, now, ideal)
    pair = f"{a} and {b}"
    return More(found.task, pair, target, what, d.num_texts, now, shares, remedy)


def _needed(
    d: PairedDifference, size: float, variance: float, missed: float
) -> Needed | None:
    """Count texts, by clusters where they are in some."""
    number = d.num_independent
    spread = math.sqrt(max(variance, 0.0) * number)
    runs = d.runs_stderr, d.runs_degrees
    found = needed(size, spread, number, runs=runs, missed=missed)
    return found and found.times(d.num_texts / number)


def _amount(found: Comparison, size: float, digits: str) -> str:
    """Write a difference."""
    if not found.is_share:
        of = "" if found.answers is None else "of "
        return f"{size:{digits}} {of}{found.metric}"
    points = f"{100 * size:{digits}}"
    return f"{points} point{'s' * (points != '1')} of {found.metric}"


def _remedy(
    found: Comparison,
    shares: dict[str, float],
    what: str,
    cause: str,
    now: Needed | None,
    ideal: Needed | None,
) -> str:
    inner, runs = shares.get(cause, 0.0), shares.get("runs", 0.0)
    more_of = "latents a text" if cause.startswith("draws") else "answers a question"
    if now is None:
        missed, differ = found.difference.missed_stderr, found.difference.runs_stderr
        if missed > differ:
            missing = _amount(found, missed, ".2g")
            return f"Draws may have missed {missing}: more {more_of} help."
        apart = _amount(found, differ, ".2g")
        return f"Other runs would move that by {apart}: more runs help."
    sentences = []
    if inner >= 0.5:
        sentences.append(
            f"More {more_of} help most: {inner:.0%} of the variance is theirs"
        )
    elif inner >= 0.1:
        sentences.append(
            f"{inner:.0%} of the variance is that of {cause}; {what} help more"
        )
    elif inner > 0:
        sentences.append(
            f"More {what} help, not more {more_of} ({inner:.1%} of the variance)"
        )
    if inner >= 0.1 and ideal is not None and ideal.number < now.number:
        sentences.append(f"without that part {ideal.number:,} {what} would do")
    if runs >= 0.5:
        sentences.append(f"more runs help most: {runs:.0%} of the variance is theirs")
    return f"{'; '.join(sentences)}." if sentences else ""
