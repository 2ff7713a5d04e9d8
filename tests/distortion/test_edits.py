"""Perturbed sequences against an enumeration of what one perturbation can do."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lm_latent_eval.distortion.sources import Perturbation

END = 1
ALPHABET = [2, 3, 5]


def one_step(words: tuple[int, ...], *, room: int, fewest: int) -> dict:
    """Return the distribution over words after one perturbation, by enumeration."""
    kinds = []
    swaps = [
        (i, j)
        for i in range(len(words))
        for j in range(len(words))
        if words[i] != words[j]
    ]
    if swaps:
        swapped = defaultdict(float)
        for i, j in swaps:
            new = list(words)
            new[i], new[j] = new[j], new[i]
            partners = sum(a == i for a, _ in swaps)
            swapped[tuple(new)] += 1 / len(words) / partners
        kinds.append(swapped)
    if len(words) > fewest:
        deleted = defaultdict(float)
        for i in range(len(words)):
            deleted[words[:i] + words[i + 1 :]] += 1 / len(words)
        kinds.append(deleted)
    if len(words) < room:
        inserted = defaultdict(float)
        places = len(words) + 1
        for i in range(places):
            for token in ALPHABET:
                inserted[(*words[:i], token, *words[i:])] += 1 / places / len(ALPHABET)
        kinds.append(inserted)
    if words:
        substituted = defaultdict(float)
        for i, word in enumerate(words):
            others = [token for token in ALPHABET if token != word]
            for token in others:
                new = (*words[:i], token, *words[i + 1 :])
                substituted[new] += 1 / len(words) / len(others)
        kinds.append(substituted)
    total = defaultdict(float)
    for kind in kinds:
        for new, probability in kind.items():
            total[new] += probability / len(kinds)
    return total


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        ((2, 3, 3), True),
        ((2, 3, 3), False),
        ((3, 3), True),
        ((5,), True),
        ((5,), False),
        ((), True),
        ((7, 2), True),  # a token that is not of the alphabet
        ((2, 3, 5, 2), True),  # no room to insert
        ((2, 3, 5, 2, 3), False),
    ],
)
def test_one_perturbation(words, ended):
    ids = [*words, END] if ended else list(words)
    perturbation = Perturbation(ALPHABET, END, max_length=5)
    expected = one_step(words, room=4 if ended else 5, fewest=0 if ended else 1)
    assert sum(expected.values()) == pytest.approx(1)
    assert words not in expected, "premise: every perturbation changes something"
    number = 5_000
    found = Counter()
    for index in range(number):
        same, new = perturbation.steps(ids, 1, seed=1, index=index)
        assert same == ids
        assert (new[-1:] == [END]) == ended
        found[tuple(new[:-1] if ended else new)] += 1
    assert set(found) <= set(expected)
    outcomes = list(expected)
    if len(outcomes) > 1:
        counts = [found[outcome] for outcome in outcomes]
        theory = [number * expected[outcome] for outcome in outcomes]
        assert chisquare(counts, theory).pvalue > 1e-4


@given(
    words=st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=6),
    ended=st.booleans(),
    index=st.integers(0, 10**9),
)
def test_steps_follow_from_each_other(words, ended, index):
    ids = [*words, END] if ended else words
    perturbation = Perturbation(ALPHABET, END, max_length=8)
    steps = perturbation.steps(ids, 12, seed=0, index=index)
    assert len(steps) == 13
    assert steps[:6] == perturbation.steps(ids, 5, seed=0, index=index)
    for before, after in itertools.pairwise(steps):
        assert before != after
        assert abs(len(before) - len(after)) <= 1
        assert 1 <= len(after) <= 8
        assert after.count(END) == ended
        assert (
            len(before) != len(after)
            or 1 <= sum(a != b for a, b in zip(before, after, strict=True)) <= 2
        )


def test_seeds_and_numbers_are_independent():
    perturbation = Perturbation(ALPHABET, END, max_length=20)
    ids = [2, 3, 5, 2, 3, 5, END]
    found = {
        (seed, index): tuple(
            map(tuple, perturbation.steps(ids, 9, seed=seed, index=index))
        )
        for seed in range(5)
        for index in range(5)
    }
    assert len(set(found.values())) == 25


@pytest.mark.parametrize("alphabet", [[2], [], [2, 2], [3, 2], [1, 2, 3]])
def test_an_alphabet_that_will_not_do(alphabet):
    with pytest.raises(ValueError, match="two distinct tokens in ascending order"):
        Perturbation(alphabet, END, max_length=5)
