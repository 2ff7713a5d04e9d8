"""The Python interface: the numbers of the scorer, in order, with clear errors."""

from __future__ import annotations

import math

import pytest

import lm_latent_eval
from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring import likelihoods
from lm_latent_eval.text.words import UNKNOWN
from tests import tiny_checkpoint

TEXTS = ["Ada saw the fox .", "the fox", "Bo"]


@pytest.fixture(scope="module")
def model(kglm_directory):
    return lm_latent_eval.load(kglm_directory, device="cpu")


@pytest.fixture(scope="module")
def truth():
    return tiny_checkpoint.Truth(tiny_checkpoint.kglm())


def exact(truth, *words):
    return truth.log_p(tiny_checkpoint.ids(*words))


def test_a_beam_that_holds_every_walk_is_exact(model, truth):
    [estimate] = model.log_likelihood(["the fox"], estimator="beam", num_samples=5000)
    expected = exact(truth, "the", "fox", "END")
    assert estimate.log_evidence == pytest.approx(expected, abs=1e-10)
    assert estimate.bound is Bound.STRICT_LOWER


def test_a_continuation_after_a_context(model, truth):
    [estimate] = model.log_likelihood(
        [" fox ."],
        contexts=["Ada saw the"],
        estimator="beam",
        num_samples=5000,
    )
    whole = exact(truth, "Ada", "saw", "the", "fox", ".")
    prefix = exact(truth, "Ada", "saw", "the")
    assert estimate.log_evidence == pytest.approx(whole - prefix, abs=1e-10)
    assert estimate.bound is Bound.NONE


def test_equal_contexts_are_read_once(model, monkeypatch):
    """Their draws are those of the first, whatever follows."""
    read, read_contexts = [], likelihoods.read_contexts

    def reading(setting, method, texts):
        read.extend(tuple(text.context) for text in texts)
        return read_contexts(setting, method, texts)

    monkeypatch.setattr(likelihoods, "read_contexts", reading)
    contexts = ["Ada saw the", "Ada", "Ada saw the", "Ada saw the"]
    texts = [" fox .", " saw", " fox", " fox ."]
    how = {"num_samples": 20, "estimator": "dpf"}
    together = model.log_likelihood(texts, contexts=contexts, **how)
    assert len(read) == len({*read}) == 2
    assert together[0] == together[3] != together[2]
    [alone] = model.log_likelihood(texts[:1], contexts=contexts[:1], **how)
    assert together[0].log_evidence == pytest.approx(alone.log_evidence, rel=1e-12)


def test_seeds_draw_anew_and_unknown_words_have_a_price(model):
    [a], [b] = (model.log_likelihood(TEXTS[:1], num_samples=20, seed=s) for s in (0, 1))
    assert a.log_weights != b.log_weights
    [closed], [penalized] = (
        model.log_likelihood(["zebra"], estimator="beam", num_samples=500, unk=unk)
        for unk in ("closed", "penalized")
    )
    difference = closed.log_evidence - penalized.log_evidence
    assert difference == pytest.approx(math.log(tiny_checkpoint.UNKNOWN_TYPES))


def test_greedy_generation_takes_the_most_probable_word(model, truth):
    [written] = model.generate(
        ["the fox"], max_tokens=1, sampling_temperature=0, num_samples=2000
    )
    words = tiny_checkpoint.ids("the", "fox")
    best = truth.most_probable(words, but=(UNKNOWN,))
    assert written.strip() == tiny_checkpoint.tokenizer().word(best)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples=0: expected a whole number"),
        ({"estimator": "bean"}, ValueError, "did you mean beam"),
        (
            {"estimator": "exact"},
            ValueError,
            "expected one of auto, mixed, dpf, is, beam",
        ),
        ({"proposal": "peaking"}, ValueError, "this checkpoint has"),
        ({"unk": "spelled"}, ValueError, "train spelling"),
        ({"contexts": ["a"]}, ValueError, "3 texts, but 1 contexts"),
    ],
)
def test_what_is_impossible_says_so(model, settings, error, message):
    with pytest.raises(error, match=message):
        model.log_likelihood(TEXTS, **settings)


def test_one_string_is_no_list_of_strings(model):
    with pytest.raises(TypeError, match="expected a list of strings"):
        model.log_likelihood("the fox")
