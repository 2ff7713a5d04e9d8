"""Grammars against derivations listed one by one: probabilities, draws, brackets."""

import math
from collections import Counter
from itertools import product

import pytest

from lm_latent_eval.distortion.languages.pcfg import PCFG, Phrase
from tests.distortion.languages.tiny import REGULAR, derived, pcfg, records, regular
from tests.means import p_value


@pytest.mark.parametrize("make", [pcfg, regular])
def test_probabilities_are_those_of_all_derivations(make):
    language = make()
    every = [ids for ids in records(language, 5) if not {0, 4} & {*ids} and ids != [1]]
    found = language.log_p(every).exp()
    expected = [derived(language, ids) for ids in every]
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert (found > 0).sum() > 50, "premise"


def test_sequences_too_improbable_for_a_float():
    """Of a hidden Markov model, whose states such a sequence leaves no choice of."""
    rules = REGULAR["rules"] | {"z": {"b": 1 - 1e-9, "never": 1e-9}}
    language = PCFG(REGULAR | {"rules": rules})
    beginning = [2, 3, *[4] * 60]
    by_x = 0.7 * 0.9 * 0.3 * 0.65 * 0.35
    by_y = 0.3 * 0.35 * 0.35 * (1 - 1e-9) * 0.8
    expected = math.log(by_x + by_y) + 59 * math.log(0.8) + 60 * math.log(1e-9)
    assert expected < math.log(5e-324), "premise"
    found = language.log_p([beginning, [*beginning, 1]])
    assert found.tolist() == pytest.approx([expected, expected + math.log(0.2)])


# Derivations

# Without circles of single symbols, so that a sequence has a finite number of them.
FINITE = {
    "kind": "pcfg",
    "start": "S",
    "words": ["a", "b"],
    "rules": {
        "S": {"S S": 0.15, "S A S": 0.1, "a": 0.35, "A": 0.4},
        "A": {"a": 0.5, "a S": 0.2, "b": 0.3},
    },
}


def every(language, parts, words):
    """List the derivations of words from parts: brackets and probability of each."""
    rules = language.grammar.rules
    if len(parts) == 1 and parts[0] not in rules:
        return [(f"(_ {parts[0]})", 1.0)] if list(words) == list(parts) else []
    if len(parts) == 1:
        found = []
        for right, p in rules[parts[0]].items():
            for inner, q in every(language, right, words):
                if len(right) == 1 and right[0] not in rules:
                    inner = right[0]
                found.append((f"({parts[0]} {inner})", p * q))
        return found
    return [
        (f"{one} {other}", p * q)
        for k in range(1, len(words) - len(parts) + 2)
        for (one, p), (other, q) in product(
            every(language, parts[:1], words[:k]), every(language, parts[1:], words[k:])
        )
    ]


def test_derivations_of_a_sequence_follow_their_posterior():
    language, words, number = PCFG(FINITE), ("a", "a", "a"), 30_000
    listed = dict(every(language, ("S",), words))
    total = sum(listed.values())
    assert total == pytest.approx(language.log_p([[2, 2, 2, 1]]).exp().item(), rel=1e-9)
    drawn = (language.derivation(0, index) for index in range(number))
    counts = Counter(each.brackets() for each in drawn if each.words == words)
    share = counts.total() / number
    assert abs(share - total) < 4 * math.sqrt(total * (1 - total) / number)
    expected = {name: p / total * counts.total() for name, p in listed.items()}
    assert p_value(counts, expected) > 1e-3


def test_a_deep_derivation():
    """Right recursion of thousands of symbols."""
    rules = {"S": {"a S": 0.9999, "a": 0.0001}}
    language = PCFG({"kind": "pcfg", "start": "S", "words": ["a"], "rules": rules})
    longest = max((language.derivation(0, i) for i in range(5)), key=lambda d: d.words)
    n = len(longest.words)
    assert n > 2000, "premise"
    assert longest.phrases[1] == Phrase("S", 1, n - 1)
    assert longest.brackets().endswith("(S a" + ")" * n)
