"""Compiled pruning: sums keep their means, whatever is listed or merged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lm_latent_eval.inference.pruning import (
    best,
    member,
    merged,
    recombined,
    thin,
    thin_table,
    threshold,
)
from lm_latent_eval.inference.sorted_lists import (
    Intervals,
    Items,
    Places,
    listed,
    sorted_lists,
)

GRID = 2000
"""Random numbers, evenly spread, that stand for all."""
U = (np.arange(GRID) + 0.5) / GRID
LISTS = [
    [0.0, -0.4, -1.0, -3.0, -7.0, -7.1, -30.0, -math.inf],
    [1.0, 0.9, -5.0, -5.0, -6.0],
    [],
    [-2.0],
]
HISTORIES = [(0, 0.0), (1, -1.0), (0, -2.5), (2, 0.0), (3, -math.inf), (1, -40.0)]
"""Lists, and offsets in them."""


def runs_of(lists):
    first = np.cumsum([0, *map(len, lists)])
    values = [np.array(each, dtype=float) for each in lists]
    return sorted_lists(first, np.concatenate(values))


def intervals_of(histories):
    run, offset = zip(*histories, strict=True)
    ends = np.array([0, len(run)])
    return Intervals(ends, np.array(run), np.array(offset, dtype=float))


def places_of(width, fewest, share, whole=False):
    one = np.array([width]), np.array([fewest]), np.array([share])
    return Places(*one, np.array([whole]))


def all_listed(runs):
    """Every choice of a list by itself."""
    number = np.array([len(runs.value)])
    place = np.arange(number[0])
    return Items(np.append(0, number), 0 * place, place, runs.value, number)


def ranks_of(runs, intervals):
    """Every choice that is possible, and its rank."""
    found = {}
    each = zip(intervals.run, intervals.offset, strict=True)
    for i, (run, offset) in enumerate(each):
        for j, value in enumerate(runs.value[runs.first[run] : runs.first[run + 1]]):
            if offset + value > -math.inf:
                found[i, j] = offset + value
    return found


@pytest.mark.parametrize("share", [1e-12, 1e-3, 0.2])
@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_each_choice_survives_by_its_share(width, share):
    """f is one over the probability to survive; there are as many as there may be."""
    runs, intervals = runs_of(LISTS), intervals_of(HISTORIES)
    rank, places = ranks_of(runs, intervals), places_of(width, 2, share)
    items, whole = listed(runs, intervals, places, True)
    assert not whole[0]
    assert len(items.rank) < len(rank), "premise: some are not listed"
    keys = np.arange(len(items.rank), dtype=np.uint64)
    places = places._replace(whole=whole)
    weight, total, numbers = dict.fromkeys(rank, 0.0), [], set()
    for u in U:
        kept = thin(runs, intervals, items, keys, places, np.array([[u, 0, 0.5]]))
        chosen = [*zip(kept.interval, kept.place, strict=True)]
        assert len({*chosen}) == len(chosen)
        numbers.add(len(chosen))
        for what, log_f in zip(chosen, kept.log_f, strict=True):
            weight[what] += math.exp(log_f) / GRID
        ranks = [rank[what] for what in chosen]
        total.append(np.logaddexp.reduce(np.array(ranks) + kept.log_f))
    assert len(numbers) == 1
    assert 2 <= numbers.pop() <= width
    every = np.logaddexp.reduce([*rank.values()])
    assert np.array(total) == pytest.approx(every, abs=1e-9)
    least = max(rank.values()) - 5.5  # rarer ones fall between two numbers
    for what, mean in weight.items():
        if rank[what] > least:
            assert mean == pytest.approx(1.0, abs=0.15)
    # Weighed by what each is worth no error of the grid is left.
    worth = {what: math.exp(rank[what]) * mean for what, mean in weight.items()}
    exact = sum(math.exp(value) for value in rank.values())
    assert sum(worth.values()) == pytest.approx(exact)


def test_a_tiny_share_uses_all_places():
    runs, intervals = runs_of(LISTS), intervals_of(HISTORIES)
    width = 3
    places = places_of(width, 1, 1e-18)
    items, whole = listed(runs, intervals, places, True)
    assert len(items.rank) < len(ranks_of(runs, intervals)), "premise: as above"
    keys = np.arange(len(items.rank), dtype=np.uint64)
    places = places._replace(whole=whole)
    kept = thin(runs, intervals, items, keys, places, np.array([[0.5, 0, 0.5]]))
    assert len(kept.log_f) == width


def test_a_table_is_cut_as_a_list_is():
    dice = np.random.default_rng(0)
    for number in (1, 3, 10, 39):
        value = np.sort(dice.normal(0, 3, 40))[::-1]
        runs, intervals = runs_of([value]), intervals_of([(0, 0.0)])
        places = places_of(number, number, 1.0)
        items, keys = all_listed(runs), np.arange(40, dtype=np.uint64)
        for u in (0.1, 0.5, 0.9):
            numbers = np.array([[u, 0, 0.5]])
            kept = thin(runs, intervals, items, keys, places, numbers)
            column, log_f = thin_table(value[None], places, np.array([u]))
            order = np.argsort(kept.place)
            assert kept.place[order].tolist() == column[0].tolist()
            assert kept.log_f[order] == pytest.approx(log_f[0])


def test_one_of_each_key_stands_for_all():
    log_w = np.array([[0.0, -1.0, -40.0, 0.5, -np.inf, -1.5, -np.inf], [-np.inf] * 7])
    key = np.array([[7, -4, 7, 7, 7, -4, 9], [1] * 7])
    log_f = recombined(log_w, key)
    assert np.isneginf(log_f[1]).all(), "there is no choice"
    assert np.isfinite(log_f[0]).nonzero()[0].tolist() == [1, 3]
    for one, mine in ((3, key[0] == 7), (1, key[0] == -4)):
        total = np.logaddexp.reduce(log_w[0, mine])
        assert log_w[0, one] + log_f[0, one] == pytest.approx(total)


def test_keys_that_collide_are_told_apart():
    """Multiples of a large number, more than a table of slots has low bits for."""
    key = (np.arange(400)[None] // 2) << 20
    log_f = recombined(np.zeros((1, 400)), key)
    assert np.isfinite(log_f).sum() == 200
    assert log_f[0, ::2] == pytest.approx(math.log(2))


def test_one_of_each_key_is_kept_by_its_share():
    rank = np.array([0.0, -1.0, -40.0, -2.0, -np.inf, -1.5, -np.inf])
    key = np.array([7, 4, 7, 7, 7, 4, 9], dtype=np.uint64)
    log_f = np.stack([merged(rank, key, u) for u in U])
    kept = log_f > -np.inf
    for mine in (key == 7, key == 4):
        assert (kept[:, mine].sum(1) == 1).all()
        total = np.logaddexp.reduce(rank[mine])
        weighed = np.logaddexp.reduce((rank + log_f)[:, mine], axis=1)
        assert weighed == pytest.approx(total)
        share = np.exp(rank[mine] - total)
        assert kept[:, mine].mean(0) == pytest.approx(share, abs=2 / GRID)
    assert not kept[:, np.isneginf(rank)].any(), "there is no such choice"


def test_merged_choices_leave_places_to_others():
    runs, intervals = runs_of([[0.0, -0.1, -0.2, -0.3]]), intervals_of([(0, 0.0)])
    places = places_of(2, 2, 1e-6)
    items, keys = all_listed(runs), np.array([5, 5, 6, 6], dtype=np.uint64)
    weight = np.zeros(4)
    for u in U:
        kept = thin(runs, intervals, items, keys, places, np.array([[0.5, 0, u]]))
        assert len(kept.place) == 2
        np.add.at(weight, kept.place, np.exp(kept.log_f) / GRID)
    assert weight == pytest.approx(1.0, abs=2e-3)


def test_all_survive_while_they_fit():
    runs, intervals = runs_of(LISTS), intervals_of(HISTORIES)
    rank = ranks_of(runs, intervals)
    for width, fits in ((len(rank), True), (len(rank) - 1, False)):
        places = places_of(width, 1, 1e-3, whole=True)
        items, whole = listed(runs, intervals, places, True)
        assert whole[0] == fits
        if fits:
            assert {*zip(items.interval, items.place, strict=True)} == rank.keys()
            keys = np.zeros(len(rank), np.uint64)
            some = places, np.array([[0.5, 0, 0.5]])
            kept = thin(runs, intervals, items, keys, *some)
            assert len(kept.place) == len(rank), "nor are they merged"
            assert not kept.log_f.any()


@pytest.mark.parametrize("width", [1, 4, 100])
def test_a_beam_keeps_the_best(width):
    runs, intervals = runs_of(LISTS), intervals_of(HISTORIES)
    rank = ranks_of(runs, intervals)
    places = places_of(width, width, 0.0)
    items, _ = listed(runs, intervals, places, False)
    kept = best(items, places.width)
    chosen = [*zip(kept.interval, kept.place, strict=True)]
    wanted = sorted(rank.values(), reverse=True)[:width]
    assert sorted((rank[what] for what in chosen), reverse=True) == wanted


def test_nothing_survives_of_nothing():
    runs, intervals = runs_of([[-math.inf], []]), intervals_of([(0, 0.0), (1, 0.0)])
    places = places_of(3, 1, 0.1)
    items, _ = listed(runs, intervals, places, True)
    keys = np.zeros(len(items.rank), np.uint64)
    kept = thin(runs, intervals, items, keys, places, np.array([[0.5, 0, 0.5]]))
    assert kept.first.tolist() == [0, 0]


def test_the_threshold_leaves_no_more_than_there_are_places():
    """To the right of what survives for sure all are worth less than a place."""
    dice = np.random.default_rng(1)
    for _ in range(200):
        mass, rest = np.exp(dice.normal(0, 3, 12)), math.exp(dice.normal(-3, 2))
        number = int(dice.integers(1, 13))
        sure, least = threshold(mass, rest, number)
        left = mass[mass < least]
        assert len(left) == 12 - sure
        c = (left.sum() + rest) / (number - sure)
        assert (left <= c * (1 + 1e-12)).all() or sure == number - 1
        assert sure == 0 or least >= c * (1 - 1e-12)


def test_what_rounding_leaves_of_an_interval_is_its_last_member():
    value = np.array([0.0, -1.0, -800.0, -np.inf])
    tail = runs_of([value]).tail
    assert [member(tail, 0, x) for x in (0.0, 0.99, 1.1, 2.0)] == [0, 0, 1, 1]
    assert member(tail, 1, 1.0) == 1
