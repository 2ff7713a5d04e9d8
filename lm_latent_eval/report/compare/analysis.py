"""Analyses of comparisons: ranking, where a difference is, and how much decides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import pandas as pd

from lm_latent_eval.estimators.paired import PairedDifference, groups
from lm_latent_eval.estimators.power import POWER, Needed, needed, needed_questions
from lm_latent_eval.report.compare.comparison import Comparison, TextComparison
from lm_latent_eval.report.compare.sides import bits
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
        if not isinstance(pair, TextComparison):
            upwards = not pair.sides[0].lower_is_better
        for name, value in zip(_names(pair), pair.scores, strict=True):
            if not math.isclose(numbers.setdefault(name, value), value, abs_tol=1e-9):
                return None
    ordered = sorted(numbers.items(), key=lambda each: each[1], reverse=upwards)
    apart = [frozenset(_names(pair)) for pair in pairs if pair.decided]
    names = [name for name, _ in ordered]
    return Ranking(task, metric, ordered, groups(names, apart), pairs)


def _names(pair: Comparison) -> tuple[str, str]:
    a, b = pair.sides
    return a.name, b.name


MOST = 5
"""Texts that are shown on either side."""


def texts_of(found: TextComparison) -> pd.DataFrame:
    """Return the texts with most of the difference, on either side."""
    ordered = found.parts.sort_values("nats", key=abs, ascending=False, kind="stable")
    less = ordered["nats"] < 0
    some = pd.concat([ordered[less].head(MOST), ordered[~less].head(MOST)])
    return some.sort_values("nats", key=abs, ascending=False, kind="stable")


def lines_of_gap(found: TextComparison) -> list[str]:
    """Say in a line where the difference is."""
    a, b = (side.name for side in found.sides)
    nats = found.parts["nats"]
    total = math.fsum(nats)
    same = found.parts[nats * total > 0]
    if same.empty:
        return []
    same = same.sort_values("nats", key=abs, ascending=False, kind="stable")
    half = int((same["nats"].cumsum().abs() < abs(total) / 2).sum()) + 1
    most = ", ".join(
        f"{part.name} ({with_error(bits(part.nats), bits(part.draws_stderr), '+')} "
        "bits)"
        for part in same.head(3).itertuples(index=False)
    )
    return [
        f"  Half of {a} - {b} is in {half:,} of {len(nats):,} texts; most in {most}."
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
        unit = "text" if isinstance(found, TextComparison) else "question"
        raise ValueError(f"--power: {found.task} has one {unit}, which tells no spread")
    a, b = (side.name for side in found.sides)
    if isinstance(found, TextComparison):
        what, size = "texts", points * BITS_A_POINT * math.log(2)
    else:
        what, size = "questions", points / 100 if found.is_share else points
    target = _amount(found, size, "g")
    stays = d.runs_stderr**2 + d.missed_stderr**2
    drawn = max(d.stderr**2 - d.texts_stderr**2 - stays, 0.0)
    inner, cause = drawn, "draws of latents"
    if not isinstance(found, TextComparison) and any(found.repeats):
        inner = min(math.hypot(*found.repeats) ** 2, d.texts_stderr**2)
        cause = "repeats"
    every = d.texts_stderr**2 + drawn
    parts = {
        what: every - inner,
        cause: inner + d.missed_stderr**2,
        "runs": d.runs_stderr**2,
    }
    of = None if isinstance(found, TextComparison) else found.accuracy
    if of is not None:
        share = (of.only_a + of.only_b + 1) / (of.num_questions + 2)
        now: Needed | None = needed_questions(size, share, of.num_questions)
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
    """Write a difference, of texts in nats a unit, else of scores."""
    if isinstance(found, TextComparison):
        return f"{bits(size):{digits}} {found.metric}"
    if not found.is_share:
        return f"{size:{digits}} of {found.metric}"
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
