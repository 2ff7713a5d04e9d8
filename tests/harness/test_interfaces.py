"""``--model latent`` takes what a directory holds, by whichever interface."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import lm_latent_eval
from lm_latent_eval import manifest
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.harness.backends import Latent, LatentKGLM, LatentLSTM
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models import checkpoint
from lm_latent_eval.scoring.interface import Answer, TextModel, TextScorer
from tests.tiny_checkpoint import conditional, generation, rolling

TEXTS = ("the fox", "Ada saw .")


@dataclass(frozen=True)
class Counts(TextModel, TextScorer):
    """A model of the scoring interface: a nat a character, and an option of its own."""

    nats: float
    loud: bool = False
    normalization = Normalization.BY_LENGTH

    @classmethod
    def open_directory(cls, directory, *, dtype, device):
        return cls(json.loads((directory / "config.json").read_text())["nats"])

    def scorer(self, options, /, *, batch_size, max_batch_size, quiet):
        return Counts(self.nats, **options)

    @property
    def fingerprint(self):
        return {"model": "counts", "checkpoint": str(self.nats), "loud": self.loud}

    @property
    def about(self):
        return {"checkpoint_digest": str(self.nats), "latent_eval": {"mine": True}}

    def score_texts(self, queries):
        for query in reversed(queries):
            log_p = -self.nats * len(query.text)
            estimate = Estimate.exact(log_p, num_tokens=len(query.text))
            yield Answer(query.index, estimate, query.name, is_greedy=self.loud)

    score_continuations = score_texts

    def generate(self, queries):
        for query, options in queries:
            yield query.index, query.context * options.max_tokens


@pytest.fixture
def counts(tmp_path):
    config = {"model_type": "counts", "nats": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    manifest.write(tmp_path)
    return {"pretrained": str(tmp_path), "model": f"{__name__}:Counts"}


def test_it_is_what_the_model_s_own_name_is(kglm_directory):
    any_one, own = (kind(pretrained=kglm_directory) for kind in (Latent, LatentKGLM))
    found, wanted = (lm.loglikelihood_rolling(rolling(*TEXTS)) for lm in (any_one, own))
    assert found == wanted
    for name in ("fingerprint", "tokenizer_name"):
        assert getattr(any_one, name) == getattr(own, name)
    assert any_one.get_model_info() == own.get_model_info()


def test_names_and_settings_that_are_wrong(
    kglm_directory, lstm_directory, counts, monkeypatch
):
    kglm = {"pretrained": kglm_directory}
    lstm = "lm_latent_eval.models.recurrent_lm:LSTMLanguageModel"
    for backend, given, message in (
        (LatentLSTM, {"pretrained": lstm_directory, "model": "kglm"}, "models alone"),
        (Latent, kglm | {"model": "lstm"}, "holds a kglm model, not a lstm"),
        (Latent, kglm | {"model": lstm}, f"'kglm' model, not of {lstm}"),
        (Latent, {}, "latent has no embedded model"),
        (Latent, {"pretrained": counts["pretrained"]}, "of type 'counts'; this packag"),
    ):
        with pytest.raises(ValueError, match=message):
            backend(**given)
    monkeypatch.setattr(
        "lm_latent_eval.models.checkpoint.load_checkpoint",
        lambda *_, **__: pytest.fail("loaded"),
    )
    with pytest.raises(ValueError, match="'samples' is not an argument of latent_kglm"):
        Latent(**kglm, samples=3)


def test_queries_go_in_and_answers_come_out(counts):
    lm = Latent(**counts, loud=True)
    assert lm.loglikelihood_rolling(rolling(*TEXTS)) == [-14.0, -18.0]
    assert lm.loglikelihood(conditional(("a", "bc"))) == [(-4.0, True)]
    assert lm.generate_until(generation("ab", until=["x"], max_gen_toks=2)) == ["abab"]
    info = lm.get_model_info()
    assert info["checkpoint_digest"] == "2.0"
    assert info["latent_eval"]["mine"] and info["latent_eval"]["requests"] == 3
    assert lm.fingerprint["model"] == "latent_counts"
    assert lm.tokenizer_name == "latent_counts-2.0"
    # Python opens it, too.
    model = lm_latent_eval.load(counts["pretrained"], model=counts["model"])
    [estimate] = model.log_likelihood(["abc"])
    assert estimate.log_evidence == -6.0
    assert model.generate(["a"], max_tokens=3) == ["aaa"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_samples'"):
        model.log_likelihood(["abc"], num_samples=7)
    with pytest.raises(ValueError, match="a Counts scores strings its own way"):
        _ = model.checkpoint
    with pytest.raises(ValueError, match=r"is for .*:Counts, which scores strings"):
        checkpoint.load_checkpoint(counts["pretrained"], expected=counts["model"])
