"""What Logan et al. (2020) claim of their estimates, looked up in a study's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from lm_latent_eval.report.columns import Column, Curve

WITHOUT_PEEKING = ("nonpeeking", "prior")


def claims(columns: Sequence[Column]) -> Iterator[str]:
    """Yield a sentence or two a claim, with the numbers that decide it."""
    yield f"(a) Estimates fall monotonically with K: {_monotone(columns)}"
    yield f"(b) Instance level lies below corpus level: {_levels(columns)}"
    yield f"(c) Slightly raised temperatures are best: {_temperatures(columns)}"
    yield f"(d) Peeking beats not peeking: {_peeking(columns)}"
    yield f"(e) Beams come close to importance sampling: {_beams(columns)}"


def _monotone(columns: Sequence[Column]) -> str:
    """Look at the curve of the first k samples, and at the mean over replicates."""
    curves = [(column, curve) for column in columns for curve in column.curves]
    mean = "perplexity_of_mean_log_likelihood"
    falls = sum(_rise(column, curve, "perplexity") <= 1 for column, curve in curves)
    averages = sum(_rise(column, curve, mean) <= 1 for column, curve in curves)
    rise, column, curve = max(
        ((_rise(*both, "perplexity"), *both) for both in curves), key=lambda r: r[0]
    )
    means = f"the means over replicates fall at every step on {averages} of them"
    if rise <= 1:
        return f"all {len(curves)} curves of the first k samples do; {means}."
    return (
        f"{falls} of {len(curves)} curves of the first k samples do at every step (the "
        f"largest rise: {100 * (rise - 1):.2g} %, {column.settings['model']}, "
        f"{_name(curve)}); {means}."
    )


def _rise(column: Column, curve: Curve, what: str) -> float:
    """Return the largest factor from one number of samples to the next."""
    values = [float(row[what]) for row in column.curve(curve)]
    return max((b / a for a, b in pairwise(values) if math.isfinite(b)), default=0.0)


def _levels(columns: Sequence[Column]) -> str:
    pairs = [
        (column.last(curve, "instance"), column.last(curve, "corpus"))
        for column in columns
        for curve in column.curves
    ]
    below = sum(instance < corpus for instance, corpus in pairs)
    ratios = [corpus / instance for instance, corpus in pairs if instance < math.inf]
    return (
        f"{below} of {len(pairs)} times; the corpus level is {min(ratios):.3g} to "
        f"{max(ratios):.3g} times the instance level."
    )


def _temperatures(columns: Sequence[Column]) -> str:
    return _each(columns, _best_temperature)


def _best_temperature(column: Column) -> str:
    tempered = [curve for curve in column.curves if curve[0] == column.proposal]
    best = min(tempered, key=column.last)
    if best[1] == 1:
        return f"τ = 1 is best ({column.last(best):.5g})"
    one = column.last((column.proposal, 1.0))
    return f"τ = {best[1]:g} is best ({column.last(best):.5g}; τ = 1: {one:.5g})"


def _peeking(columns: Sequence[Column]) -> str:
    return _each(columns, _against_others)


def _against_others(column: Column) -> str:
    others = [curve for curve in column.curves if curve[0] in WITHOUT_PEEKING]
    own = column.last((column.proposal, 1.0))
    against = [f"{name} {column.last((name, t)):.5g}" for name, t in others]
    wins = all(own < column.last(curve) for curve in others)
    return f"{'yes' if wins else 'no'} ({own:.5g}; {', '.join(against) or 'no other'})"


def _beams(columns: Sequence[Column]) -> str:
    return _each([column for column in columns if column.beams()], _widest_beam)


def _widest_beam(column: Column) -> str:
    beam, drawn = column.beams()[-1], column.curve((column.proposal, 1.0))
    same = [row for row in drawn if row["num_samples"] == beam["num_samples"]]
    samples = (same or drawn)[-1]
    nats = samples["log_likelihood"] - beam["log_likelihood"]
    return (
        f"k = {beam['num_samples']} gives {beam['perplexity']:.5g}, "
        f"{samples['num_samples']} samples {samples['perplexity']:.5g}: "
        f"{_signed(nats / beam['texts'])} nats a text"
    )


def _each(columns: Sequence[Column], say: Callable[[Column], str]) -> str:
    """Say something of each column that has been drawn from at temperature 1."""
    done = (column for column in columns if (column.proposal, 1.0) in column.curves)
    return "; ".join(f"{column.title}: {say(column)}" for column in done) + "."


def _signed(nats: float) -> str:
    return f"the beam loses {nats:.3g}" if nats >= 0 else f"the beam gains {-nats:.3g}"


def _name(curve: Curve) -> str:
    return curve[0] if curve[1] == 1 else f"{curve[0]} at τ = {curve[1]:g}"
