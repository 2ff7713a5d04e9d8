"""White space between words: what it costs, and that gaps total one."""

from __future__ import annotations

import math
import sys
from itertools import product

import pytest

from lm_latent_eval.text.orthography import BEGIN, END, WHITE_SPACE, Spacing
from lm_latent_eval.text.words import WordTokenizer, split

TEXTS = ("the fox.", "the  fox .\n", "(the) 7 foxes")


@pytest.fixture(scope="module")
def words():
    return WordTokenizer.train(TEXTS)


@pytest.fixture(scope="module")
def spacing(words):
    return Spacing.train((text, words(text)) for text in TEXTS)


def test_white_space_is_what_no_word_has():
    every = (chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i <= 0xDFFF)
    assert "".join(c for c in every if not split(c)) == WHITE_SPACE


def test_gaps_are_counted_by_their_neighbours(spacing):
    assert spacing.counts[(BEGIN, "a", "")] == 2
    assert spacing.counts[("a", "a", " ")] == 1
    assert spacing.counts[("a", "a", "  ")] == 1
    assert spacing.counts[(".", END, "\n")] == 1
    assert spacing.counts[(")", "0", " ")] == 1
    assert spacing.counts.total() == 4 + 4 + 6


def test_a_gap_by_hand(spacing, words):
    text = "the fox"
    [before, between, after] = spacing(text, words(text))
    # Of 14 gaps 4 are " ", of the 6 before a letter 2, of the 2 between letters 1.
    anywhere = (4 + 0.5 * 0.5 / 25) / 15
    right = (2 + anywhere) / 7
    assert between == pytest.approx(math.log((1 + right) / 3), rel=1e-12)
    assert before < 0 and after < 0


@pytest.mark.parametrize("left", ["a", ".", BEGIN, "^"])
@pytest.mark.parametrize("right", ["a", END, "$"])
def test_gaps_total_one(spacing, left, right):
    longest = 2
    total = sum(
        math.exp(spacing._log_prob(left, right, "".join(gap)))
        for n in range(longest + 1)
        for gap in product(WHITE_SPACE, repeat=n)
    )
    # Longer gaps were never seen: what is left of p_0, with the weight it has left.
    weight = 1.0
    before = [(key[0], n) for key, n in spacing.counts.items() if key[1] == right]
    between = [n for other, n in before if other == left]
    for seen in (spacing.counts.total(), sum(n for _, n in before), sum(between)):
        weight /= seen + 1
    assert total + weight * 0.5 ** (longest + 1) == pytest.approx(1, rel=1e-12)
