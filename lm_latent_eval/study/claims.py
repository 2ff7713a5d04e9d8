"""Results of a study by proposal, and the claims of Logan et al. (2020) on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.study.rows import Row, read
from lm_latent_eval.study.run import ROWS_FILE, read_settings

Curve = tuple[str, float]
"""A proposal and a temperature, whose estimates are a curve over sample sizes."""


@dataclass(frozen=True)
class StudyColumn:
    """One model with one proposal that was drawn from at every temperature."""

    settings: dict[str, Any]
    """Settings of the study's numbers."""
    rows: list[Row]
    """All of the study."""
    proposal: str

    @property
    def title(self) -> str:
        """Model and proposal."""
        return f"{self.settings['model']}, {self.proposal}"

    @property
    def num_samples(self) -> int:
        """K, all samples of a text."""
        return int(self.settings["num_samples"])

    @property
    def curves(self) -> list[Curve]:
        """Proposals and temperatures that belong into this column."""
        levels = [
            {(row["proposal"], row["temperature"]) for row in self.drawn(level=level)}
            for level in ("instance", "corpus")
        ]
        done = levels[0] & levels[1]
        tempered = [(self.proposal, t) for t in self.settings["temperatures"]]
        others = [(name, 1.0) for name in self.settings["others"]]
        return [curve for curve in tempered + others if curve in done]

    def drawn(self, **having: Any) -> list[Row]:
        """Return the rows of draws that have these values, by number of samples."""
        return self._having(estimator="is", **having)

    def curve(self, curve: Curve, level: str = "instance") -> list[Row]:
        """Return the estimates of one proposal and temperature."""
        return self.drawn(proposal=curve[0], temperature=curve[1], level=level)

    def last(self, curve: Curve, level: str = "instance") -> float:
        """Return the perplexity from all samples."""
        return float(self.curve(curve, level)[-1]["perplexity"])

    def beams(self) -> list[Row]:
        """Return the beams that follow this proposal, by width."""
        return self._having(estimator="beam", proposal=self.proposal)

    def _having(self, **having: Any) -> list[Row]:
        found = (row for row in self.rows if having.items() <= row.items())
        return sorted(found, key=lambda row: int(row["num_samples"]))


def read_columns(study: Path) -> list[StudyColumn]:
    """Read a study, a column a tempered proposal."""
    settings, rows = read_settings(study), read(study / ROWS_FILE)
    columns = [StudyColumn(settings, rows, name) for name in settings["tempered"]]
    return [column for column in columns if column.curves]


def values_of(rows: list[Row], name: str) -> Any:
    """Read numbers of rows; infinite ones are strings there, and gaps in a line."""
    values = np.array([row[name] for row in rows], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)


PEEKING, WITHOUT_PEEKING = "peeking", ("nonpeeking", "prior")
NOT_TESTED = "not tested"


def claims(columns: Sequence[StudyColumn]) -> Iterator[str]:
    """Yield a sentence or two a claim, with the numbers that decide it."""
    yield f"(a) Estimates fall monotonically with K: {_monotone(columns)}."
    yield f"(b) Instance level lies below corpus level: {_levels(columns)}."
    yield (
        "(c) Slightly raised temperatures are best: "
        f"{_each(columns, _best_temperature)}."
    )
    yield f"(d) Peeking beats not peeking: {_each(columns, _against_others)}."
    beams = _each(columns, _widest_beam)
    yield f"(e) Beams come close to importance sampling: {beams}."


def _monotone(columns: Sequence[StudyColumn]) -> str:
    """Claim (a): estimates fall with the number of samples.

    Means over replicates are no evidence: they fall by arithmetic (the log of a mean is
    at least the mean of the logs) wherever they are made of the same samples.
    """
    rises = [
        (max(steps), column, curve)
        for column, curve in _curves(columns)
        if (steps := _steps(column, curve))
    ]
    if not rises:
        return NOT_TESTED
    falls = sum(rise <= 1 for rise, _, _ in rises)
    if falls == len(rises):
        return f"all {falls} curves of the first k samples do, at every step"
    rise, column, curve = max(rises, key=lambda found: found[0])
    return (
        f"{falls} of {len(rises)} curves of the first k samples do, at every step (the "
        f"largest rise: {100 * (rise - 1):.2g} %, {column.settings['model']}, "
        f"{_name(curve)})"
    )


def _curves(columns: Sequence[StudyColumn]) -> list[tuple[StudyColumn, Curve]]:
    """Return every curve once: columns of one study share those of other proposals."""
    found = {
        (id(column.rows), curve): (column, curve)
        for column in columns
        for curve in column.curves
    }
    return list(found.values())


def _steps(column: StudyColumn, curve: Curve) -> list[float]:
    """Return the factors from one number of samples to the next."""
    values = [row["perplexity"] for row in column.curve(curve)]
    return [b / a for a, b in pairwise(values) if math.isfinite(a) and math.isfinite(b)]


def _levels(columns: Sequence[StudyColumn]) -> str:
    pairs = [
        (column.last(curve, "instance"), column.last(curve, "corpus"))
        for column, curve in _curves(columns)
        if column.num_samples > 1  # one sample has but one level
    ]
    ratios = [corpus / level for level, corpus in pairs if math.isfinite(level)]
    if not ratios:
        return NOT_TESTED
    below = sum(ratio > 1 for ratio in ratios)
    return (
        f"{below} of {len(ratios)} times; the corpus level is {min(ratios):.3g} to "
        f"{max(ratios):.3g} times the instance level"
    )


def _best_temperature(column: StudyColumn) -> str:
    tempered = [curve for curve in column.curves if curve[0] == column.proposal]
    if len(tempered) < 2:
        return NOT_TESTED
    best = min(tempered, key=column.last)
    found = f"τ = {best[1]:g} is best ({_with_spread(column, best)})"
    if best[1] == 1:
        return found
    return f"{found}, τ = 1 gives {_with_spread(column, (column.proposal, 1.0))}"


def _with_spread(column: StudyColumn, curve: Curve) -> str:
    """Return the perplexity from all samples, and the spread of replicates."""
    found = f"{column.last(curve):.5g}"
    for row in column.curve(curve):
        if row["num_samples"] == column.settings["replicate"] and "low" in row:
            found += (
                f"; from {row['num_samples']} {row['low']:.5g} to {row['high']:.5g}"
            )
    return found


def _against_others(column: StudyColumn) -> str:
    """Claim (d), of the paper's proposal that peeks, or else of the column's own."""
    others = [curve for curve in column.curves if curve[0] in WITHOUT_PEEKING]
    peeking = (PEEKING, 1.0) in column.curves
    proposal = PEEKING if peeking else column.proposal
    if proposal in WITHOUT_PEEKING or not others:
        return NOT_TESTED
    own = column.last((proposal, 1.0))
    against = ", ".join(f"{name} {column.last((name, t)):.5g}" for name, t in others)
    wins = sum(own < column.last(curve) for curve in others)
    verdict = {0: "no", len(others): "yes"}.get(wins, "in part")
    return f"{verdict} ({proposal} {own:.5g}; {against})"


def _widest_beam(column: StudyColumn) -> str:
    if not column.beams():
        return NOT_TESTED
    beam, drawn = column.beams()[-1], column.curve((column.proposal, 1.0))
    same = [row for row in drawn if row["num_samples"] == beam["num_samples"]]
    samples = (same or drawn)[-1]
    nats = (samples["log_likelihood"] - beam["log_likelihood"]) / beam["texts"]
    gain = f"loses {nats:.3g}" if nats >= 0 else f"gains {-nats:.3g}"
    return (
        f"k = {beam['num_samples']} gives {beam['perplexity']:.5g}, "
        f"{samples['num_samples']} samples {samples['perplexity']:.5g} (the beam "
        f"{gain} nats a text or sentence)"
    )


def _each(columns: Sequence[StudyColumn], say: Callable[[StudyColumn], str]) -> str:
    """Return a sentence about each column drawn from at temperature 1."""
    done = [column for column in columns if (column.proposal, 1.0) in column.curves]
    said = "; ".join(f"{column.title}: {say(column)}" for column in done)
    return said or NOT_TESTED


def _name(curve: Curve) -> str:
    return curve[0] if curve[1] == 1 else f"{curve[0]} at τ = {curve[1]:g}"
