"""The Python interface: the numbers of the scorer, in order, with clear errors."""

from __future__ import annotations

import pytest

import lm_latent_eval
from lm_latent_eval.scoring import likelihoods

TEXTS = ["Ada saw the fox .", "the fox", "Bo"]


@pytest.fixture(scope="module")
def model(kglm_directory):
    return lm_latent_eval.load(kglm_directory, device="cpu")


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
        ({"texts": "the fox"}, TypeError, "expected a list of strings"),
        ({"contexts": ["a"]}, ValueError, "3 texts, but 1 contexts"),
    ],
)
def test_what_is_impossible_says_so(model, settings, error, message):
    texts = settings.pop("texts", TEXTS)
    with pytest.raises(error, match=message):
        model.log_likelihood(texts, **settings)
