"""The noise channel: exact distributions, and what its noise depends on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text.noise import NoiseChannel
from tests.means import p_value

SENTENCE = ("a", "b", "c")
VOCABULARY = ("v", "w", "a")
"""A substitute may be the word itself, or one that the sentence has elsewhere."""
SETTINGS = [(0.2, 0.3), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]
SHARES = st.floats(0, 1).flatmap(
    lambda x_s: st.tuples(st.just(x_s), st.floats(0, 1 - x_s))
)


def exact(words, x_s, x_t, vocabulary) -> dict[tuple[str, ...], float]:
    """Probability of every sentence that may leave the channel: each path in turn."""
    states = Counter({tuple(words): 1.0})
    for i in range(len(words)):
        after: Counter = Counter()
        for state, p in states.items():
            after[state] += p * (1 - x_s - x_t)
            for word in vocabulary:
                substituted = (*state[:i], word, *state[i + 1 :])
                after[substituted] += p * x_s / len(vocabulary)
            for j in range(len(words)):
                swapped = list(state)
                swapped[i], swapped[j] = state[j], state[i]
                after[tuple(swapped)] += p * x_t / len(words)
        states = after
    return {state: p for state, p in states.items() if p > 0}


def distort(words, channel, name, **more):
    return channel.distort(words, **{"seed": 5, "name": name, **more})


@pytest.mark.parametrize("x_s, x_t", SETTINGS)
def test_outcomes_have_their_exact_probabilities(x_s, x_t):
    probabilities = exact(SENTENCE, x_s, x_t, VOCABULARY)
    assert abs(sum(probabilities.values()) - 1) < 1e-12, "premise"
    channel = NoiseChannel(x_s, x_t, VOCABULARY)
    draws = 15_000
    counts = Counter(tuple(distort(SENTENCE, channel, n)) for n in range(draws))
    expected = {state: draws * p for state, p in probabilities.items()}
    assert p_value(counts, expected, cells=6) > 1e-4


@given(
    st.lists(st.integers(0, 9), max_size=12),
    SHARES,
    st.integers(0, 2**32),
    st.integers() | st.text(max_size=5),
    st.integers(0, 99),
)
def test_as_many_words_leave_as_enter(words, shares, seed, name, replicate):
    """Here token ids: those that are no words of the vocabulary were there before."""
    before, how = list(words), {"seed": seed, "replicate": replicate}
    channel = NoiseChannel(*shares, range(100, 200))
    noisy = distort(words, channel, name, **how)
    assert len(noisy) == len(words)
    assert all(isinstance(i, int) and (i in words or 100 <= i < 200) for i in noisy)
    assert words == before
    assert distort(tuple(words), channel, name, **how) == noisy
    nothing = NoiseChannel.preset(0, range(100, 200))
    assert distort(words, nothing, name, **how) == words


def test_levels_substitute_the_same_words_by_the_same():
    words, vocabulary = list(range(0, -500, -1)), list(range(1, 1001))
    little, more = (
        distort(words, NoiseChannel(x_s, 0.0, vocabulary), "text") for x_s in (0.1, 0.3)
    )
    changed = [(a, b) for a, b in zip(little, more, strict=True) if a > 0]
    assert len(changed) > 20, "premise"
    assert all(a == b for a, b in changed)


CHANNEL = NoiseChannel.preset(0.1, VOCABULARY)
IMPOSSIBLE = {
    "total more than 1": lambda: NoiseChannel(0.6, 0.5, VOCABULARY),
    "transposition=1.5": lambda: NoiseChannel(0.0, 1.5, VOCABULARY),
    "substitution=True": lambda: NoiseChannel(True, 0.0, VOCABULARY),
    "substitution=nan": lambda: NoiseChannel(float("nan"), 0.0, VOCABULARY),
    "vocabulary is empty": lambda: NoiseChannel(0.1, 0.1, []),
    "a list of words, whose order": lambda: NoiseChannel(0.1, 0.1, {"a", "b"}),
    "got a str": lambda: NoiseChannel(0.1, 0.1, "plum river"),
    "level=30.*0.3 for 30 %": lambda: NoiseChannel.preset(30, VOCABULARY),
    "got the string 'a b'": lambda: distort("a b", CHANNEL, 0),
    "replicate=-1": lambda: distort(["a"], CHANNEL, 0, replicate=-1),
}


@pytest.mark.parametrize("message", IMPOSSIBLE)
def test_impossible_settings_are_refused(message):
    with pytest.raises(ValueError, match=message):
        IMPOSSIBLE[message]()
