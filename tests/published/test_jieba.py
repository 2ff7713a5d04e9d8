"""jieba's hidden Markov model of Chinese words, through ``examples/hmm``."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import lm_latent_eval
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.conftest import PROJECT
from tests.published.folders import SENTENCES

STATES = "BMES"
TEXTS = [*(text.replace(" ", "") for text in SENTENCES), "雨"]


@pytest.fixture(scope="module")
def jieba(published):
    """Its module with tables of log-probabilities and its Viterbi algorithm."""
    published("python/jieba")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its source has escapes that Python warns of
        from jieba import finalseg
    return finalseg


@pytest.fixture(scope="module")
def emissions(jieba):
    """Emissions as they are here: normalised, which jieba's are not."""
    rows = {}
    for state, row in jieba.emit_P.items():
        total = math.log(math.fsum(map(math.exp, row.values())))
        assert 1.1 < math.exp(total) < 1.4, "premise: the published tables total more"
        rows[state] = {character: log_p - total for character, log_p in row.items()}
    return rows


@pytest.fixture(scope="module")
def opened(jieba, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROJECT / "examples" / "hmm"))
        from latent_hmm.of_jieba import END_SHARE, write

        folder = tmp_path_factory.mktemp("jieba")
        write(folder, jieba.start_P, jieba.trans_P, jieba.emit_P)
        model = lm_latent_eval.load(folder, model="latent_hmm:HMM", device="cpu")
    return model, END_SHARE


def ends(text: str, share: float) -> float:
    """Log-probability that a text goes on after each character, and ends at last."""
    return (len(text) - 1) * math.log1p(-share) + math.log(share)


def forward(jieba, emissions, text: str) -> float:
    """Log p of the characters by the forward algorithm; words end where texts do."""
    alpha = {z: math.exp(jieba.start_P[z]) for z in STATES}
    for place, character in enumerate(text):
        if place:
            alpha = {
                z: math.fsum(
                    alpha[y] * math.exp(jieba.trans_P[y].get(z, -math.inf))
                    for y in STATES
                )
                for z in STATES
            }
        alpha = {
            z: alpha[z] * math.exp(emissions[z].get(character, -math.inf))
            for z in STATES
        }
    return math.log(alpha["E"] + alpha["S"])


def test_log_p_is_that_of_the_forward_algorithm(jieba, emissions, opened):
    model, share = opened
    texts = [" ".join(text) for text in TEXTS]
    found = model.log_likelihood(texts, estimator="is", num_samples=7)
    for text, estimate in zip(TEXTS, found, strict=True):
        exact = forward(jieba, emissions, text) + ends(text, share)
        assert estimate.log_evidence == pytest.approx(exact, abs=1e-9)
        assert estimate.effective_sample_size == pytest.approx(7), "the posterior is q"


def test_the_best_states_are_those_of_its_own_algorithm(jieba, emissions, opened):
    model, share = opened
    hmm, tokenizer = model.checkpoint.model, model.checkpoint.tokenizer
    for text in TEXTS:
        best, path = jieba.viterbi(
            text, STATES, jieba.start_P, jieba.trans_P, emissions
        )
        ids = [*tokenizer(" ".join(text)).ids, END]
        batch = TokenBatch.collate([ids], [[0.0] * len(ids)], first=START)
        states = torch.tensor([[[*map(STATES.index, path), 4]]])
        [[log_joint]] = hmm.log_joint(hmm.encode(batch), states).tolist()
        assert log_joint == pytest.approx(best + ends(text, share), abs=1e-9)
        [beam] = model.log_likelihood(
            [" ".join(text)], estimator="beam", num_samples=1000
        )
        assert log_joint <= beam.log_evidence + 1e-9
