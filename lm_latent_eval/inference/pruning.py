r"""Pruning in compiled loops: which choices of a step survive, and their weights.

A filter keeps W choices of a group so that sums over them stay unbiased. Choices of
equal keys, after which everything goes on alike, are merged: one is kept, drawn in
proportion to its rank, as if its rank were their total. With ranks r_i it then finds
the threshold c with

.. math:: \sum_i \min(r_i / c, 1) = W

keeps what ranks above it, and W minus their number of the others by systematic
sampling, each with probability r_i / c, and then as if its rank were c. What survives
of an interval (``sorted_lists.py``) is found by inverting its sum.

A beam keeps the W best. Source: Fearnhead and Clifford (2003), section 3.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import Floats, Integers, Keys, compiled
from lm_latent_eval.inference.sorted_lists import (
    ROUNDING,
    TINIEST,
    Intervals,
    Items,
    Places,
    Runs,
)

GRID = 2.0**-10
"""Nats: a hundred times what float32 scores of a text differ by in another batch."""
CUT_LANE, CHOICE_LANE, MERGE_LANE = 0, 1, 2
"""Random numbers of a step that thin, that draw within a class of choices, and that
draw one of merged histories."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it are spread evenly over (0, 1), modulo 1."""


class Survivors(NamedTuple):
    """Choices of a step that survive, group after group."""

    first: Integers
    """Index of each group's first survivor, and the end, (G + 1,)."""
    interval: Integers
    """(N,)."""
    place: Integers
    """In its list, (N,)."""
    log_f: Floats
    """Log factor of its weight, nats, (N,)."""


@compiled
def merged(rank: Floats, key: Keys, u: float) -> Floats:
    """Keep one choice of each key, drawn in proportion to its rank.

    Args:
        rank: Nats, (n,); ``-inf``: no choice.
        key: (n,).
        u: A number of (0, 1).

    Returns:
        Log of one over the probability that a choice is kept, (n,); ``-inf`` of those
        that are not.
    """
    log_f = np.where(rank > -np.inf, 0.0, -np.inf)
    some = np.nonzero(rank > -np.inf)[0]
    order = some[np.argsort(key[some], kind="mergesort")]
    begin, number = 0, 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and key[order[end]] == key[order[begin]]:
            end += 1
        if end > begin + 1:
            group = rank[order[begin:end]]
            peak = group.max()
            mass = np.exp(group - peak)
            # A number of each key's own.
            target = ((u + GOLDEN * number) % 1.0) * mass.sum()
            chosen, reached = -1, 0.0
            for i in range(end - begin):
                log_f[order[begin + i]] = -np.inf
                if mass[i] > 0 and (chosen < 0 or reached <= target):
                    chosen = i
                reached += mass[i]
            log_f[order[begin + chosen]] = math.log(reached) + peak - group[chosen]
        begin, number = end, number + 1
    return log_f


@compiled
def threshold(mass: Floats, rest: float, number: int) -> tuple[int, float]:
    """Return how many of the largest survive for sure, and from which on.

    Args:
        mass: Of the listed choices, (n,).
        rest: The sum of all others, each of them less than what survives for sure.
        number: How many survive, at least one.
    """
    sure, least = 0, np.inf
    while True:
        below = rest
        for each in mass:
            if each < least:
                below += each
        c, more, smallest = below / (number - sure), 0, np.inf
        for each in mass:
            if c < each < least:
                more, smallest = more + 1, min(smallest, each)
        # Rounding may find all of them above their mean.
        if more == 0 or sure + more >= number:
            return sure, least
        sure, least = sure + more, smallest


@compiled
def member(tail: Floats, begin: int, sum_before: float) -> int:
    """Return the place of an interval where its sum passes a number.

    The interval is the list from ``begin`` on. What rounding leaves is its last member.
    """
    low, high, target = begin, len(tail) - 1, tail[begin] - sum_before
    while low < high:
        middle = (low + high) // 2
        if tail[middle + 1] < target:
            high = middle
        else:
            low = middle + 1
    while low > begin and tail[low] == 0.0:
        low -= 1
    return low


@compiled
def _thin_group(
    runs: Runs,
    intervals: Intervals,
    items: Items,
    log_f: Floats,
    places: Places,
    u: float,
    g: int,
    kept: tuple[Integers, Integers, Floats],
    at: int,
) -> int:
    """Thin one group; write survivors from ``at`` on, and return where they end.

    Weights of items are multiplied by e^log_f already.
    """
    some = slice(items.first[g], items.first[g + 1])
    rank, first, of = items.rank[some], items.first[g], intervals.first[g]
    size = intervals.first[g + 1] - of
    best, begin = np.full(size, -np.inf), np.zeros(size, np.int64)
    peak = -np.inf
    for i in range(len(rank)):
        peak = max(peak, rank[i] + log_f[i])
    for i in range(size):
        run = intervals.run[of + i]
        begin[i] = runs.first[run] + items.begin[of + i]
        if begin[i] < runs.first[run + 1] and runs.tail[begin[i]] > 0:
            best[i] = intervals.offset[of + i] + runs.value[runs.first[run]]
            peak = max(peak, intervals.offset[of + i] + runs.value[begin[i]])
    if peak == -np.inf:
        return at
    mass, sums = np.exp(rank + log_f - peak), np.zeros(size)
    for i in range(size):
        if best[i] > -np.inf:
            sums[i] = runs.tail[begin[i]] * math.exp(best[i] - peak)
    rest = sums.sum()
    number = _number_kept(mass, rest, places, g)
    if np.count_nonzero(mass) <= number and rest == 0.0:
        for i in range(len(mass)):
            if mass[i] > 0:
                n = first + i
                at = _keep(kept, at, items.interval[n], items.place[n], log_f[i])
        return at

    sure, least = threshold(mass[mass > 0], rest, number)
    for i in range(len(mass)):
        if sure > 0 and mass[i] >= least:
            at = _keep(
                kept, at, items.interval[first + i], items.place[first + i], log_f[i]
            )
            mass[i], sure, number = 0.0, sure - 1, number - 1
    # Points at distances of c, as many as places are left, over all that is not sure.
    c = (mass.sum() + rest) / number
    point, reached, end = u * c, 0.0, at + number
    last = -1
    for i in range(len(mass)):
        if mass[i] == 0.0:
            continue
        reached, last = reached + mass[i], i
        while point < reached and at < end:
            weight = log_f[i] + math.log(c / mass[i])
            at = _keep(
                kept, at, items.interval[first + i], items.place[first + i], weight
            )
            point += c
    last_interval = -1
    for i in range(size):
        if sums[i] == 0.0:
            continue
        last_interval = i
        while point < reached + sums[i] and at < end:
            before = max(point - reached, 0.0) / math.exp(best[i] - peak)
            at = _keep_member(
                runs, intervals, of + i, begin[i], before, c, peak, kept, at
            )
            point += c
        reached += sums[i]
    if at < end and last_interval >= 0:  # lost by rounding
        i, every = last_interval, runs.tail[begin[last_interval]]
        at = _keep_member(runs, intervals, of + i, begin[i], every, c, peak, kept, at)
    elif at < end and last >= 0:
        weight, last = log_f[last] + math.log(c / mass[last]), first + last
        at = _keep(kept, at, items.interval[last], items.place[last], weight)
    return at


@compiled
def _number_kept(mass: Floats, rest: float, places: Places, g: int) -> int:
    """Return how many choices survive, of which ``rest`` sums those not listed."""
    least = max((mass.sum() + rest) * places.share[g], TINIEST)
    worth = rest / least
    for each in mass:
        worth += min(each / least, 1.0)
    number = max(float(places.fewest[g]), math.ceil(worth - ROUNDING))
    return int(min(float(places.width[g]), number))


@compiled
def _keep(
    kept: tuple[Integers, Integers, Floats],
    at: int,
    interval: int,
    place: int,
    log_f: float,
) -> int:
    """Write a survivor, and return the place after it."""
    kept[0][at], kept[1][at], kept[2][at] = interval, place, log_f
    return at + 1


@compiled
def _keep_member(
    runs: Runs,
    intervals: Intervals,
    interval: int,
    begin: int,
    sum_before: float,
    c: float,
    peak: float,
    kept: tuple[Integers, Integers, Floats],
    at: int,
) -> int:
    """Write one of an interval's unlisted choices, as ``_keep`` does."""
    start = runs.first[intervals.run[interval]]
    end = runs.first[intervals.run[interval] + 1]
    place = member(runs.tail[start:end], begin - start, sum_before)
    rank = intervals.offset[interval] + runs.value[start + place]
    return _keep(kept, at, interval, place, math.log(c) + peak - rank)


@compiled
def thin(
    runs: Runs,
    intervals: Intervals,
    items: Items,
    key: Keys,
    places: Places,
    uniforms: Floats,
) -> Survivors:
    """Let some choices of each group survive, with weights that keep sums unbiased.

    Args:
        runs: Lists of choices.
        intervals: What histories choose from.
        items: What is listed.
        key: Of items: equal where everything goes on alike, (n,).
        places: How many survive; of groups that are ``whole`` all do.
        uniforms: Numbers of (0, 1) of the step, (G, 3 or more).
    """
    size, groups = len(items.rank), len(places.width)
    for g in range(groups):
        size += places.width[g]
    kept = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size)
    first, at = np.zeros(groups + 1, np.int64), 0
    for g in range(groups):
        if places.whole[g]:
            for n in range(items.first[g], items.first[g + 1]):
                if items.rank[n] > -np.inf:
                    at = _keep(kept, at, items.interval[n], items.place[n], 0.0)
        else:
            some = slice(items.first[g], items.first[g + 1])
            log_f = merged(items.rank[some], key[some], uniforms[g, MERGE_LANE])
            u = uniforms[g, CUT_LANE]
            at = _thin_group(runs, intervals, items, log_f, places, u, g, kept, at)
        first[g + 1] = at
    return Survivors(first, kept[0][:at], kept[1][:at], kept[2][:at])


@compiled
def thin_table(rank: Floats, places: Places, u: Floats) -> tuple[Integers, Floats]:
    """Let some choices of each row of a table survive, as ``thin`` does.

    Args:
        rank: Of the choices of G groups, nats, (G, M); ``-inf``: there is none.
        places: How many survive; of groups that are ``whole`` all do.
        u: A number of (0, 1) each, (G,).

    Returns:
        Columns of survivors and what their weights are multiplied by, nats, (G, W')
        each, in the order of the table. Places that are left over come last, with the
        column of the first and ``-inf``.
    """
    groups = len(rank)
    place = np.empty(rank.size, np.int64)
    nats, first = np.empty(rank.size), np.zeros(groups + 1, np.int64)
    n = 0
    for g in range(groups):
        for m in range(rank.shape[1]):
            if rank[g, m] > -np.inf:
                place[n], nats[n] = m, rank[g, m]
                n += 1
        first[g + 1] = n
    nothing, none = np.zeros(0, np.int64), np.zeros(0)
    runs = Runs(np.zeros(1, np.int64), none, none, nothing)
    intervals = Intervals(np.zeros(groups + 1, np.int64), nothing, none)
    items = Items(first, place, place, nats, nothing)
    log_f = np.zeros(n)
    kept = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n)
    ends, at = np.zeros(groups + 1, np.int64), 0
    for g in range(groups):
        some = slice(first[g], first[g + 1])
        if places.whole[g]:
            for i in range(first[g], first[g + 1]):
                at = _keep(kept, at, place[i], place[i], 0.0)
        else:
            at = _thin_group(
                runs, intervals, items, log_f[some], places, u[g], g, kept, at
            )
        ends[g + 1] = at
    most = max(1, np.diff(ends).max())
    column = np.zeros((groups, most), np.int64)
    weight = np.full((groups, most), -np.inf)
    for g in range(groups):
        mine = slice(ends[g], ends[g + 1])
        order = np.argsort(kept[1][mine])
        number = len(order)
        if number:
            column[g] = kept[1][mine][order[0]]
            column[g, :number] = kept[1][mine][order]
            weight[g, :number] = kept[2][mine][order]
    return column, weight


@compiled
def recombined(log_w: Floats, key: Integers) -> Floats:
    """Let one choice of each key stand for all: its weight becomes their sum.

    After choices of equal keys everything goes on alike, so no sum over what follows
    changes.

    Args:
        log_w: Weights of the choices of G groups, nats, (G, M); ``-inf``: none.
        key: Of the same shape.

    Returns:
        Log of what weights are multiplied by, (G, M): the best one of each key has the
        sum over its own weight, and the others, ``-inf``, none.
    """
    groups, number = log_w.shape
    log_f = np.full((groups, number), -np.inf)
    size = 2
    while size < 2 * number:
        size *= 2
    slot = np.empty(size, np.int64)
    best, total = np.empty(number, np.int64), np.empty(number)
    of = np.empty(number, np.int64)
    for g in range(groups):
        slot[:], classes = -1, 0
        for i in range(number):
            of[i] = -1
            if log_w[g, i] == -np.inf:
                continue
            mine = key[g, i]
            at = (mine ^ (mine >> 17) ^ (mine >> 37)) & (size - 1)
            while slot[at] >= 0 and key[g, best[slot[at]]] != mine:
                at = (at + 1) & (size - 1)
            if slot[at] < 0:
                slot[at], best[classes], total[classes] = classes, i, 0.0
                classes += 1
            of[i] = slot[at]
            if log_w[g, i] > log_w[g, best[of[i]]]:
                best[of[i]] = i
        for i in range(number):
            if of[i] >= 0:
                total[of[i]] += math.exp(log_w[g, i] - log_w[g, best[of[i]]])
        for n in range(classes):
            log_f[g, best[n]] = math.log(total[n])
    return log_f


@compiled
def best(items: Items, width: Integers) -> Survivors:
    """Keep the W best of each group; of those that tie on the grid the first ones."""
    kept, first = np.zeros(0, np.int64), np.zeros(len(width) + 1, np.int64)
    for g in range(len(width)):
        mine = items.rank[items.first[g] : items.first[g + 1]]
        some = np.nonzero(mine > -np.inf)[0]
        order = np.argsort(-np.rint(mine[some] / GRID), kind="mergesort")
        kept = np.concatenate((kept, some[order[: width[g]]] + items.first[g]))
        first[g + 1] = len(kept)
    return Survivors(
        first, items.interval[kept], items.place[kept], np.zeros(len(kept))
    )
