"""N-grams of an input method (Chinese) and of a speech recogniser, through KenLM."""

import math

import pytest

from lm_latent_eval.harness.kenlm import KenLM
from tests.published.folders import ENGLISH, KENLM, SENTENCES, SPHINX, sphinx_arpa
from tests.tiny_checkpoint import rolling

pytest.importorskip("kenlm", reason="pip install 'lm-latent-eval[ngram]'")


@pytest.fixture(scope="module")
def model(published):
    return KenLM(pretrained=str(published(KENLM, "e4097ca9ca1082928c2e")))


def test_sums_are_those_of_the_library(model):
    """It has no sentence ends: KenLM itself would charge them as unknown words."""
    assert "</s>" not in model.model
    found = model.loglikelihood_rolling(rolling(*SENTENCES))
    for text, log_p in zip(SENTENCES, found, strict=True):
        wanted = model.model.score(text, bos=False, eos=False) * math.log(10)
        assert log_p == pytest.approx(wanted, abs=1e-4)
        assert all(word in model.model for word in text.split()), "premise"


def test_english_words_have_the_probabilities_of_their_own_package(
    published, tmp_path, caplog
):
    """pocketsphinx reads the file as it is published, KenLM what it was written as."""
    path = published(SPHINX, "db21d064228667769")
    from pocketsphinx import Config, LogMath, NGramModel

    unit = LogMath()
    its_own = NGramModel(Config(), unit, str(path))
    english = KenLM(pretrained=str(sphinx_arpa(path, tmp_path)))
    assert "has no <unk>" in caplog.text
    for text in ENGLISH:
        before = ["<s>"]
        steps = english._steps(text, ended=True)
        for word, step in zip([*text.split(), "</s>"], steps, strict=True):
            # It takes the word first, then those before it, the nearest first, and
            # answers in steps of 10^-4 nats; the ARPA file has four decimal places.
            asked = its_own.prob([word, *before[::-1][:2]])
            wanted = unit.log_to_log10(asked) * math.log(10)
            assert step.known and step.log_p == pytest.approx(wanted, abs=1e-3)
            before.append(word)
