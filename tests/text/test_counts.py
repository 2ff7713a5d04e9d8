"""Units of texts, entropies of n-grams, and a gambler who bets on the next symbol."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text.counts import Counts, gamble, ngram_entropies, sentence_starts


@pytest.mark.parametrize("space", ["\u3000", "\xa0", "\u2028", "\x85", "\u2009"])
def test_sentences_end_beside_any_white_space(space):
    """Within white space of several bytes the library fails."""
    for text in (f"B{space}.", f"plan B{space}. a", f"It rained.{space}He said."):
        plain = text.replace(space, " ")
        assert sentence_starts(text) == sentence_starts(plain)


TEXTS = st.text("abc", min_size=4, max_size=40)


@given(TEXTS, st.integers(1, 4))
def test_entropies_by_their_definition(text, max_order):
    found = ngram_entropies(text, max_order)

    assert found[0].rate.nats == pytest.approx(math.log(len(set(text))))
    places = range(max_order - 1, len(text))
    for each in found[1:]:
        pairs = [(text[t - each.order + 1 : t], text[t]) for t in places]
        contexts = Counter(context for context, _ in pairs)
        expected = -sum(
            math.log(pairs.count(pair) / contexts[pair[0]]) for pair in pairs
        )
        assert each.rate.nats == pytest.approx(expected / len(pairs), abs=1e-12)
        once = sum(contexts[context] == 1 for context, _ in pairs)
        assert each.share_unique == pytest.approx(once / len(pairs))
    words = [{"a": "anna", "b": "bob", "c": "cyril"}[symbol] for symbol in text]
    assert ngram_entropies(words, max_order) == found


@pytest.mark.parametrize("max_order", [1, 2, 3])
def test_bets_total_one(max_order):
    """At fair odds, what all texts of five symbols win together is what was staked."""
    capitals = [
        gamble(text, "abc", max_order=max_order).log_capital
        for text in itertools.product("abc", repeat=5)
    ]
    assert sum(map(math.exp, capitals)) / 3**5 == pytest.approx(1, abs=1e-12)


def test_bets_by_hand():
    """aba: 1/2, then (0 + 1/2)/2, then (1 + 1/2)/3 at order 1."""
    first = 1 / 2 * 1 / 4 * 1 / 2
    # at order 2 nothing follows a or b twice, so its context adds nothing
    second = 1 / 2 * 1 / 4 * 1 / 2
    won = gamble("aba", "ab", max_order=2)
    assert won.log_capital == pytest.approx(math.log(2**3 * (first + second) / 2))
    assert (won.num_symbols, won.alphabet_size) == (3, 2)

    # abab: at order 2 the last b follows an a that a b followed before
    order_1 = first * (1 + 1 / 2) / 4
    # order 1 says (1 + 1/2) / 4 = 3/8; order 2: (1 + 3/8) / 2
    order_2 = second * (1 + 3 / 8) / 2
    won = gamble("abab", "ab", max_order=2)
    assert won.log_capital == pytest.approx(math.log(2**4 * (order_1 + order_2) / 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ngram_entropies("abc", 0), "max_order must be at least 1"),
        (lambda: ngram_entropies("ab", 3), "a text of 2 symbols has no 3-gram"),
        (lambda: gamble("aBc"), r"symbols\[1\] is 'B'"),
        (lambda: gamble(""), "a bet needs a symbol"),
        (lambda: gamble("a", "aa"), "repeats a symbol"),
        (lambda: gamble("a", max_order=0), "max_order must be at least 1"),
        (lambda: Counts.of("text"), "not one string"),
    ],
)
def test_what_has_no_count_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
