"""Perturbed and random sequences against their exact distributions."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from lm_latent_eval.distortion.edits import Perturbation, random_sequence
from tests.means import p_value

END = 1
ALPHABET = [2, 3, 5]
NUMBER = 5_000


# Perturbed


def one_step(words: tuple[int, ...], *, room: int, fewest: int) -> dict:
    """Return the distribution over words after one perturbation, by enumeration."""
    places = range(len(words))
    swaps = [(i, j) for i in places for j in places if words[i] != words[j]]
    partners = Counter(i for i, _ in swaps)
    others = {i: [token for token in ALPHABET if token != words[i]] for i in places}
    kinds = {"swap": [], "delete": [], "insert": [], "substitute": []}
    for i, j in swaps:
        new = list(words)
        new[i], new[j] = new[j], new[i]
        kinds["swap"].append((tuple(new), 1 / partners[i]))
    if len(words) > fewest:
        kinds["delete"] = [(words[:i] + words[i + 1 :], 1) for i in places]
    if len(words) < room:
        between = itertools.product(range(len(words) + 1), ALPHABET)
        kinds["insert"] = [((*words[:i], new, *words[i:]), 1) for i, new in between]
    for i, tokens in others.items():
        for new in tokens:
            substituted = (*words[:i], new, *words[i + 1 :])
            kinds["substitute"].append((substituted, 1 / len(tokens)))
    total, possible = defaultdict(float), [kind for kind in kinds.values() if kind]
    for kind in possible:
        weight = sum(each for _, each in kind)
        for new, each in kind:
            total[new] += each / weight / len(possible)
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
    assert words not in expected, "premise: every perturbation changes something"
    found = Counter()
    for index in range(NUMBER):
        same, new = perturbation.steps(ids, 1, seed=1, index=index)
        assert same == ids
        assert (new[-1:] == [END]) == ended
        found[tuple(new[:-1] if ended else new)] += 1
    theory = {outcome: NUMBER * p for outcome, p in expected.items()}
    assert p_value(found, theory, cells=2) > 1e-4


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
        assert 1 <= len(after) <= 8
        assert after.count(END) == ended


# Random


def draw(index, **changes):
    settings = {"max_length": 100, "seed": 0, "mean_length": 3.0} | changes
    return random_sequence(ALPHABET, END, index=index, **settings)


def test_tokens_are_uniform():
    sequences = [draw(i) for i in range(NUMBER)]
    assert all(ids[-1] == END and END not in ids[:-1] for ids in sequences)
    firsts = Counter(tuple(ids[:2]) for ids in sequences if len(ids) > 2)
    each = firsts.total() / 9
    theory = {(a, b): each for a in ALPHABET for b in ALPHABET}
    assert p_value(firsts, theory) > 1e-4


@pytest.mark.parametrize(("max_length", "most"), [(100, 8), (3, 2)])
def test_lengths_are_poisson(max_length, most):
    """A maximum leaves the rest as it was; without one, long ones are one cell here."""
    lengths = [len(draw(i, max_length=max_length)) - 1 for i in range(NUMBER)]
    found = Counter(min(length, most) for length in lengths)
    weights = [poisson.pmf(k, 3.0) for k in range(most + 1)]
    if max_length == 100:
        weights[most] = poisson.sf(most - 1, 3.0)
    else:
        assert max(lengths) == most
    theory = {k: NUMBER * weight / sum(weights) for k, weight in enumerate(weights)}
    assert p_value(found, theory, cells=most + 1) > 1e-4


# Both


def test_a_sequence_follows_from_its_number_and_the_seed():
    perturbation = Perturbation(ALPHABET, END, max_length=20)
    ids = [2, 3, 5, 2, 3, 5, END]
    for one in (
        lambda seed, index: perturbation.steps(ids, 9, seed=seed, index=index),
        lambda seed, index: draw(index, mean_length=30.0, seed=seed),
    ):
        found = {str(one(seed, index)) for seed in range(5) for index in range(5)}
        assert len(found) == 25
        assert one(3, 7) == one(3, 7)


def test_what_cannot_be_drawn():
    for alphabet in ([2], []):
        with pytest.raises(ValueError, match="a language of at least two tokens"):
            Perturbation(alphabet, END, max_length=5)
    with pytest.raises(ValueError, match=r"max_length=1: .* at least 2"):
        Perturbation(ALPHABET, END, max_length=1)
