"""The forward algorithm against every path of states."""

from __future__ import annotations

import math

import torch

from lm_latent_eval.distortion.languages.catalog import load_language
from tests.distortion.languages.tiny import WALK, hmm, records, walked


def test_probabilities_are_those_of_all_paths():
    language = hmm()
    every = [ids for ids in records(language, 5) if 0 not in ids and ids != [1]]
    expected = [
        walked(WALK, [language.words[i - 2] for i in ids if i != 1], ids[-1] == 1)
        for ids in every
    ]
    torch.testing.assert_close(
        language.log_p(every).exp(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-12,
        atol=1e-16,
    )


def test_words_that_no_state_says_and_the_begin_are_impossible():
    impossible = [[4], [2, 4, 2], [2, 4, 1], [0], [2, 0], [1]]
    assert hmm().log_p(impossible).tolist() == [-math.inf] * len(impossible)


def test_expected_length():
    language = load_language("weather")
    sample = language.sample(0, range(3000), 100_000)
    lengths = torch.tensor([len(ids) - 1.0 for ids in sample.sequences])
    error = lengths.std() / math.sqrt(len(lengths))
    assert error < 0.05 * language.expected_length, "premise"
    assert abs(lengths.mean() - language.expected_length) < 4 * error
