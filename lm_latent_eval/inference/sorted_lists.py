"""Sorted lists of choices in compiled loops, and which of these may be worth a place.

The histories of a text fall into groups that are pruned apart, such as the passes of a
discrete particle filter. Each history chooses from one sorted list or several, which
others may share, at an offset of its own. The best of a list are listed by themselves,
with a rank in nats; the others are an interval, of which only the sum is needed. What
is listed must not depend on the random numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import Booleans, Floats, Integers, compiled

MARGIN = 0.1
"""Nats below the threshold that would be found before merging, which lowers it."""
ROUNDING = 1e-9
"""Numbers of places, or logarithms, that are equal differ by less."""
TINIEST = 1e-300
SHORT = 64
"""The longest lists that are sorted by insertion."""


class Runs(NamedTuple):
    """Sorted lists of choices, one below the other."""

    first: Integers
    """Index of the first place of each list, and the end, (L + 1,)."""
    value: Floats
    """Ranks from the largest down, but for an offset, nats, (N,)."""
    tail: Floats
    """Sums of e^(value - the list's largest) from each place of a list on, (N,)."""
    choice: Integers
    """Index of the choice at each place, (N,)."""


class Intervals(NamedTuple):
    """From which lists the histories of G groups choose."""

    first: Integers
    """Index of each group's first interval, and the end, (G + 1,)."""
    run: Integers
    """The list, (I,)."""
    offset: Floats
    """Number that is added to the ranks of each interval, nats, (I,)."""


class Places(NamedTuple):
    """How many choices of each group survive."""

    width: Integers
    """W: the most, (G,)."""
    fewest: Integers
    """The fewest, once anything was cut, (G,)."""
    share: Floats
    """The share of a group's total that is worth a place, (G,)."""
    whole: Booleans
    """Whether all choices have fitted so far, (G,)."""


class Items(NamedTuple):
    """Choices that are listed by themselves, group after group."""

    first: Integers
    """Index of each group's first entry, and the end, (G + 1,)."""
    interval: Integers
    """(n,)."""
    place: Integers
    """In its list, (n,)."""
    rank: Floats
    """Nats, (n,)."""
    begin: Integers
    """Index in its list of each interval's first unlisted choice, (I,)."""


@compiled
def sorted_lists(first: Integers, value: Floats) -> Runs:
    """Sort lists of choices; of equal ranks the first one comes first.

    Args:
        first: Where each list begins, and the end, (L + 1,).
        value: Ranks, but for an offset, nats, (N,).
    """
    choice, ranked, tail = np.arange(len(value)), value.copy(), np.empty(len(value))
    for i in range(len(first) - 1):
        begin, end = first[i], first[i + 1]
        if end - begin > SHORT:
            order = np.argsort(-value[begin:end], kind="mergesort")
            choice[begin:end] = begin + order
            ranked[begin:end] = value[begin:end][order]
        else:
            for n in range(begin + 1, end):
                moved, at = ranked[n], n
                while at > begin and ranked[at - 1] < moved:
                    ranked[at], choice[at] = ranked[at - 1], choice[at - 1]
                    at -= 1
                ranked[at], choice[at] = moved, n
        total = 0.0
        for n in range(end - 1, begin - 1, -1):
            if ranked[n] > -np.inf:
                total += math.exp(ranked[n] - ranked[begin])
            tail[n] = total
    return Runs(first, ranked, tail, choice)


@compiled
def end_of(value: Floats, begin: int, end: int, least: float) -> int:
    """Return where those end of a list, from the largest down, that are no less."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if value[middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _worth(
    runs: Runs,
    intervals: Intervals,
    group: int,
    c: float,
    unbiased: bool,
    enough: float,
) -> float:
    """Return how many places choices are worth if one of rank c is worth one.

    Those of lower ranks are worth less, or nothing if ``unbiased`` is false. No more
    are counted once they are enough.
    """
    number = 0.0
    for i in range(intervals.first[group], intervals.first[group + 1]):
        if number > enough:
            break
        base = intervals.offset[i]
        begin, end = runs.first[intervals.run[i]], runs.first[intervals.run[i] + 1]
        if begin == end or base == -np.inf:
            continue
        at = begin
        if base + runs.value[begin] >= c:
            at = end_of(runs.value, begin, end, max(c - base, -1e300))
            number += at - begin
        if unbiased and at < end and runs.tail[at] > 0:
            number += runs.tail[at] * math.exp(base + runs.value[begin] - c)
    return number


@compiled
def _log_total(runs: Runs, intervals: Intervals, group: int) -> float:
    """Return the log of the sum of all ranks of a group."""
    total, peak = 0.0, -np.inf
    for again in range(2):
        for i in range(intervals.first[group], intervals.first[group + 1]):
            begin, end = runs.first[intervals.run[i]], runs.first[intervals.run[i] + 1]
            if begin < end and runs.tail[begin] > 0:
                best = intervals.offset[i] + runs.value[begin]
                if again:
                    total += runs.tail[begin] * math.exp(best - peak)
                else:
                    peak = max(peak, best)
        if peak == -np.inf:
            return peak
    return peak + math.log(total)


@compiled
def listed(
    runs: Runs,
    intervals: Intervals,
    places: Places,
    unbiased: bool,
) -> tuple[Items, Booleans]:
    """List the choices that may be worth a place by themselves.

    Args:
        runs: Lists of choices.
        intervals: What histories choose from.
        places: How many survive.
        unbiased: Whether to thin, or to keep the best.

    Returns:
        The items, and of which groups all choices fit: of these all are listed.
    """
    groups, number = len(places.width), len(intervals.run)
    whole, begin = places.whole.copy(), np.zeros(number, np.int64)
    size = 0
    for g in range(groups):
        width = float(places.width[g])
        every = _worth(runs, intervals, g, -np.inf, False, width)
        whole[g] = whole[g] and every <= width
        floor = -np.inf
        if not whole[g] and every > 0:
            floor = _floor(runs, intervals, g, places, unbiased, every) - MARGIN
        for i in range(intervals.first[g], intervals.first[g + 1]):
            start, end = runs.first[intervals.run[i]], runs.first[intervals.run[i] + 1]
            if intervals.offset[i] > -np.inf:
                least = max(floor - intervals.offset[i], -1e300)
                begin[i] = end_of(runs.value, start, end, least) - start
            size += begin[i]
    first = np.zeros(groups + 1, np.int64)
    interval, place = np.empty(size, np.int64), np.empty(size, np.int64)
    rank, n = np.empty(size), 0
    for g in range(groups):
        for i in range(intervals.first[g], intervals.first[g + 1]):
            for j in range(begin[i]):
                interval[n], place[n] = i, j
                value = runs.value[runs.first[intervals.run[i]] + j]
                rank[n] = intervals.offset[i] + value
                n += 1
        first[g + 1] = n
    return Items(first, interval, place, rank, begin), whole


@compiled
def _floor(
    runs: Runs,
    intervals: Intervals,
    g: int,
    places: Places,
    unbiased: bool,
    every: float,
) -> float:
    """Return about the rank that survives for sure, nats, of ``every`` choice."""
    c, width = _log_total(runs, intervals, g), float(places.width[g])
    enough = min(width, every)
    if unbiased:
        c += math.log(max(places.share[g], TINIEST))
        worth = _worth(runs, intervals, g, c, True, np.inf)
        fewest = max(float(places.fewest[g]), math.ceil(worth - ROUNDING))
        enough = min(fewest, enough) - ROUNDING
        above = _worth(runs, intervals, g, c + 0.7, True, width)
        while above > width:
            c, worth = c + 0.7, above
            above = _worth(runs, intervals, g, c + 0.7, True, width)
    else:
        worth = _worth(runs, intervals, g, c, False, enough)
    for _ in range(2000):
        if worth >= enough:
            break
        c -= 0.5
        worth = _worth(runs, intervals, g, c, unbiased, enough)
    return c


@compiled
def choices_at(
    runs: Runs, intervals: Intervals, interval: Integers, place: Integers
) -> Integers:
    """Return the choices of places in intervals, (n,)."""
    choice = np.empty(len(interval), np.int64)
    for n in range(len(interval)):
        choice[n] = runs.choice[runs.first[intervals.run[interval[n]]] + place[n]]
    return choice
