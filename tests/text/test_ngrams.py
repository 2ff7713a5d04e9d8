import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text.counts import LETTERS, gamble, letters, ngram_entropies

TEXTS = st.text("abc", min_size=4, max_size=40)


# Shannon


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


@given(TEXTS, st.integers(1, 4))
def test_entropies_never_rise(text, max_order):
    rates = [each.rate.nats for each in ngram_entropies(text, max_order)]

    for shorter, longer in itertools.pairwise(rates):
        assert -1e-12 <= longer <= shorter + 1e-12


def test_words_and_characters_are_alike():
    names = {"a": "anna", "b": "bob", "c": "cyril"}
    text = "abcabbacbcacbb"
    by_character = ngram_entropies(text, 3)
    by_word = ngram_entropies([names[c] for c in text], 3)
    assert by_word == by_character


def test_a_period_is_seen_through():
    """abcabc...: three symbols, none in doubt after one."""
    zeroth, first, second = ngram_entropies("abc" * 100 + "a", 2)
    assert zeroth.rate.bits == pytest.approx(math.log2(3))
    assert first.rate.bits == pytest.approx(math.log2(3))
    assert second.rate.bits == 0


# Cover and King


@pytest.mark.parametrize("max_order", [1, 2, 3])
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_bets_total_one(max_order, strength):
    """At fair odds, what all texts of five symbols win together is what was staked."""
    capitals = [
        gamble(text, "abc", max_order=max_order, strength=strength).log_capital
        for text in itertools.product("abc", repeat=5)
    ]
    assert sum(map(math.exp, capitals)) / 3**5 == pytest.approx(1, abs=1e-12)


def test_no_gambler_beats_the_entropy():
    """Exactly, over every text of seven symbols of a lopsided source."""
    p = {"a": 0.7, "b": 0.2, "c": 0.1}
    entropy = -sum(q * math.log(q) for q in p.values())

    expected = sum(
        math.prod(p[x] for x in text) * gamble(text, "abc", max_order=2).rate.nats
        for text in itertools.product("abc", repeat=7)
    )
    assert expected > entropy
    assert expected < math.log(3) + math.log(2) / 7, "nor loses more than he shares out"


def test_bets_by_hand():
    """aba with alpha 1: 1/2, then (0 + 1/2)/2, then (1 + 1/2)/3 at order 1."""
    first = 1 / 2 * 1 / 4 * 1 / 2
    # at order 2 nothing follows a or b twice, so its context adds nothing
    second = 1 / 2 * 1 / 4 * 1 / 2

    won = gamble("aba", "ab", max_order=2)

    assert won.log_capital == pytest.approx(math.log(2**3 * (first + second) / 2))
    assert (won.num_symbols, won.alphabet_size) == (3, 2)

    # abab: at order 2 the last b follows an a that a b followed before
    order_1 = first * (1 + 1 / 2) / 4
    # order 1 says (1 + 1/2) / 4 = 3/8; order 2: (1 + 3/8) / 2
    first_b = (1 + 3 / 8) / 2
    order_2 = second * first_b
    won = gamble("abab", "ab", max_order=2)
    assert won.log_capital == pytest.approx(math.log(2**4 * (order_1 + order_2) / 2))


@given(TEXTS)
def test_shares_cost_at_most_their_number(text):
    alone = [gamble(text, "abc", max_order=1).log_capital]
    shared = gamble(text, "abc", max_order=3).log_capital
    assert shared >= max(alone) - math.log(3) - 1e-9


def test_the_gambler_learns():
    text = "to be or not to be that is the question " * 30
    early, late = gamble(text[:100]), gamble(text)
    assert late.rate.bits < early.rate.bits < math.log2(27)
    (*_, fifth) = ngram_entropies(text, 5)
    assert fifth.rate.bits < late.rate.bits


# The alphabet


@given(st.text(max_size=60))
def test_letters_are_27(text):
    written = letters(text)
    assert set(written) <= set(LETTERS)
    assert "  " not in written and written == written.strip()
    assert letters(written) == written


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="max_order must be at least 1"):
        ngram_entropies("abc", 0)
    with pytest.raises(ValueError, match="a text of 2 symbols has no 3-gram"):
        ngram_entropies("ab", 3)
    with pytest.raises(ValueError, match=r"symbols\[1\] is 'B'"):
        gamble("aBc")
    with pytest.raises(ValueError, match="a bet needs a symbol"):
        gamble("")
    with pytest.raises(ValueError, match="repeats a symbol"):
        gamble("a", "aa")
    with pytest.raises(ValueError, match="strength above 0"):
        gamble("a", strength=0)
