"""Grammars against derivations listed one by one."""

import math

import pytest

from lm_latent_eval.distortion.languages.pcfg import PCFG
from tests.distortion.tiny import REGULAR, derived, pcfg, records, regular


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
