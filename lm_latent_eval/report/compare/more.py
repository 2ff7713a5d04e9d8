"""How many more texts, questions, draws or answers would decide a comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.estimators.power import POWER, Needed, needed, needed_questions
from lm_latent_eval.report.compare.comparison import Comparison, TextComparison
from lm_latent_eval.report.compare.writing import bits

BITS_A_POINT = 0.01
"""Bits a byte (or word) that count as a point."""
NEVER = 10**9


@dataclass(frozen=True)
class More:
    """What decides a difference of so many points four times of five."""

    task: str
    pair: str
    target: str
    what: str
    """Texts or questions."""
    seen: int
    needed: Needed | None
    """None: no number does, for what ``remedy`` says."""
    without_draws: Needed | None
    """The same where draws, or answers to a question, had no error."""
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
        raise ValueError(f"--power: {found.task} has one text, which tells no spread")
    a, b = (side.name for side in found.sides)
    if isinstance(found, TextComparison):
        unit = next(iter(found.units)).removesuffix("s")
        target, what = f"{points * BITS_A_POINT:g} bits a {unit}", "texts"
        size = points * BITS_A_POINT * math.log(2)
    else:
        target = f"{points:g} point{'s' * (points != 1)} of {found.metric}"
        what, size = "questions", points / 100
    drawn = max(d.stderr**2 - d.texts_stderr**2 - d.runs_stderr**2, 0.0)
    inner, cause = drawn, "draws of latents"
    if not isinstance(found, TextComparison) and any(found.repeats):
        inner, cause = (
            min(math.hypot(*found.repeats) ** 2, d.texts_stderr**2),
            "repeats",
        )
    every = d.texts_stderr**2 + drawn
    parts = {what: every - inner, cause: inner, "runs": d.runs_stderr**2}
    of = None if isinstance(found, TextComparison) else found.accuracy
    if of is not None:
        share = (of.only_a + of.only_b + 1) / (of.num_questions + 2)
        now: Needed | None = needed_questions(size, share, of.num_questions)
        ideal = now
    else:
        now, ideal = (_needed(d, size, part) for part in (every, every - inner))
    total = sum(parts.values()) or 1.0
    shares = {name: part / total for name, part in parts.items() if part > 0}
    remedy = _remedy(d, shares, what, cause, now, ideal)
    return More(
        found.task,
        f"{a} and {b}",
        target,
        what,
        d.num_texts,
        now,
        ideal,
        shares,
        remedy,
    )


def _needed(d: PairedDifference, size: float, variance: float) -> Needed | None:
    """Count texts, by clusters where they are in some."""
    number = d.num_independent
    spread = math.sqrt(max(variance, 0.0) * number)
    found = needed(size, spread, number, others=d.runs_stderr)
    return found and found.times(d.num_texts / number)


def _remedy(
    d: PairedDifference,
    shares: dict[str, float],
    what: str,
    cause: str,
    now: Needed | None,
    ideal: Needed | None,
) -> str:
    """Say what would help most."""
    inner, runs = shares.get(cause, 0.0), shares.get("runs", 0.0)
    more_of = "latents a text" if cause.startswith("draws") else "answers a question"
    if now is None:
        return (
            f"Runs of a model differ by {bits(d.runs_stderr):.2g} bits: more runs help."
        )
    said = []
    if inner >= 0.5:
        said.append(f"More {more_of} help most: {inner:.0%} of the variance is theirs")
    elif inner >= 0.1:
        said.append(f"{inner:.0%} of the variance is that of {cause}; {what} help more")
    elif inner > 0:
        said.append(
            f"More {what} help, not more {more_of} ({inner:.1%} of the variance)"
        )
    if inner >= 0.1 and ideal is not None and ideal.number < now.number:
        said.append(f"without that part {ideal.number:,} {what} would do")
    if runs >= 0.5:
        said.append(f"more runs help most: {runs:.0%} of the variance is theirs")
    return f"{'; '.join(said)}." if said else ""
