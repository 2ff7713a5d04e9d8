"""Contrastive entropies of a few sentences, worked out by hand."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.contrastive.levels import (
    Contrast,
    bits_per_sentence,
    bits_per_word,
    ratio,
)

BIT = math.log(2)


def contrast(words, clean, distorted, baseline):
    """Log-scores in bits."""
    return Contrast(
        stderr=0.0,
        words=words,
        clean=clean * BIT,
        distorted=[score * BIT for score in distorted],
        baseline=[score * BIT for score in baseline],
    )


# Two sentences of 3 and 5 words. One copy each: 9 and 3 bits worse, at the baseline 4
# and 2.
ONE = [contrast(3, -10, [-19], [-14]), contrast(5, -20, [-23], [-22])]

# Two copies each: the first as above; the second 7 and 5 bits worse, 3 and 5.
TWO = [
    contrast(3, -10, [-19, -17], [-14, -13]),
    contrast(5, -20, [-23, -25], [-22, -25]),
]


def test_of_one_copy_errors_are_over_sentences():
    # (9 + 3) / 8 = 1.5 bits; residuals 9 - 1.5 * 3 = 4.5 and 3 - 1.5 * 5 = -4.5; their
    # squares total 40.5, times 2 / 1 is 81, and 9 / 8 words.
    found = bits_per_word(ONE)
    assert found.value == pytest.approx(12 / 8, rel=1e-12)
    assert found.stderr == pytest.approx(9 / 8, rel=1e-12)
    # 12 / 2 = 6 bits; residuals 3 and -3.
    found = bits_per_sentence(ONE)
    assert found.value == pytest.approx(6, rel=1e-12)
    assert found.stderr == pytest.approx(6 / 2, rel=1e-12)
    # 12 / 6 = 2; residuals 9 - 2 * 4 = 1 and 3 - 2 * 2 = -1; their squares total 2,
    # times 2 is 4, and 2 / 6.
    found = ratio(ONE)
    assert found.value == pytest.approx(2, rel=1e-12)
    assert found.stderr == pytest.approx(2 / 6, rel=1e-12)


def test_of_several_copies_errors_are_over_replicates():
    # Replicates have 12 / 8 and 12 / 8 bits: the mean is as before, without spread.
    found = bits_per_word(TWO)
    assert found.value == pytest.approx(12 / 8, rel=1e-12)
    assert found.stderr == pytest.approx(0, abs=1e-12)
    # At the baseline 6 / 2 and 8 / 2 bits a sentence, each 0.5 from their mean: the
    # squares total 0.5, over 2 * 1.
    at_baseline = [
        contrast(3, -10, [-14, -13], [0, 0]),
        contrast(5, -20, [-22, -25], [0, 0]),
    ]
    found = bits_per_sentence(at_baseline)
    assert found.value == pytest.approx(3.5, rel=1e-12)
    assert found.stderr == pytest.approx(0.5, rel=1e-12)
    # (12 + 12) / (6 + 8), of the means; residuals 12 - 24/14 * 6 = 12/7 and -12/7;
    # their squares total 288/49, times 2 is (24/7)^2, and 24/7 / 14.
    found = ratio(TWO)
    assert found.value == pytest.approx(24 / 14, rel=1e-12)
    assert found.stderr == pytest.approx(24 / 7 / 14, rel=1e-12)


def test_of_one_sentence_the_error_is_unknown():
    assert math.isinf(bits_per_word(ONE[:1]).stderr)
    assert bits_per_word(ONE[:1]).value == pytest.approx(3, rel=1e-12)


def test_no_ratio_where_the_model_prefers_the_baseline():
    with pytest.raises(ValueError, match="no ratio without a positive one"):
        ratio([contrast(3, -10, [-19], [-9]), ONE[1] | {"baseline": [-20 * BIT]}])
