"""Random sequences: lengths, tokens, and what they depend on."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy.stats import chisquare, poisson

from lm_latent_eval.distortion.sources import random_sequence

ALPHABET = [3, 4, 7]
NUMBER = 5_000


def draw(index, **changes):
    settings = {"max_length": 100, "seed": 0, "mean_length": 3.0} | changes
    return random_sequence(ALPHABET, 1, index=index, **settings)


def test_lengths_are_poisson():
    lengths = Counter(len(draw(i)) - 1 for i in range(NUMBER))
    most = 8  # the rest together
    found = [lengths[k] for k in range(most)]
    theory = [NUMBER * poisson.pmf(k, 3.0) for k in range(most)]
    found.append(NUMBER - sum(found))
    theory.append(NUMBER * poisson.sf(most - 1, 3.0))
    assert min(theory) > 5, "premise"
    assert chisquare(found, theory).pvalue > 1e-4


def test_tokens_are_uniform():
    sequences = [draw(i) for i in range(NUMBER)]
    assert all(ids[-1] == 1 and 1 not in ids[:-1] for ids in sequences)
    firsts = Counter(tuple(ids[:2]) for ids in sequences if len(ids) > 2)
    assert set(firsts) == {(a, b) for a in ALPHABET for b in ALPHABET}
    assert chisquare(list(firsts.values())).pvalue > 1e-4


def test_a_maximum_leaves_the_rest_as_it_was():
    lengths = Counter(len(draw(i, max_length=3)) - 1 for i in range(NUMBER))
    assert set(lengths) == {0, 1, 2}
    weights = [poisson.pmf(k, 3.0) for k in range(3)]
    theory = [NUMBER * w / sum(weights) for w in weights]
    assert chisquare([lengths[k] for k in range(3)], theory).pvalue > 1e-4


def test_a_sequence_follows_from_its_number():
    assert draw(7) == draw(7)
    assert len({tuple(draw(i, mean_length=30.0)) for i in range(50)}) == 50
    assert draw(7, mean_length=30.0) != draw(7, mean_length=30.0, seed=1)


@pytest.mark.parametrize(
    "changes",
    [{"mean_length": 0.0}, {"mean_length": float("inf")}, {"max_length": 0}],
)
def test_what_cannot_be(changes):
    with pytest.raises(ValueError, match="need an alphabet, a mean length above 0"):
        draw(0, **changes)
    with pytest.raises(ValueError, match="got 0 tokens"):
        random_sequence([], 1, max_length=5, seed=0, index=0)
