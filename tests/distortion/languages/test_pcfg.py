"""The inside and prefix algorithms against derivations listed one by one."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.distortion.catalog import load_language
from lm_latent_eval.distortion.languages.pcfg import PCFG
from tests.distortion.languages.tiny import REGULAR, derived, pcfg, records, regular


@pytest.mark.parametrize("make", [pcfg, regular])
def test_probabilities_are_those_of_all_derivations(make):
    language = make()
    every = [ids for ids in records(language, 5) if not {0, 4} & {*ids} and ids != [1]]
    found = language.log_p(every).exp()
    expected = [derived(language, ids) for ids in every]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15
    )
    assert (found > 0).sum() > 50, "premise"


def test_words_that_no_rule_has_and_the_begin_are_impossible():
    language = pcfg()
    impossible = [[4], [2, 4, 1], [0], [2, 0, 3], [1]]
    assert language.log_p(impossible).tolist() == [-math.inf] * len(impossible)


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


def test_the_example_agrees_by_hand():
    language = load_language("agreement")
    ids = {word: 2 + n for n, word in enumerate(language.grammar.words)}

    def p(text: str) -> float:
        return language.log_p([[*(ids[w] for w in text.split()), 1]]).exp().item()

    assert p("the gardener sleeps") == pytest.approx(
        0.55 * 0.72 * 0.62 * 0.5 * 0.22, rel=1e-12
    )
    assert p("the gardener sleep") == 0
    assert p("two foxes that the judge sees wait") == pytest.approx(
        0.33 * (0.08 * 0.17 * 0.28 * (0.72 * 0.62 * 0.24) * 0.7) * 0.21, rel=1e-12
    )
