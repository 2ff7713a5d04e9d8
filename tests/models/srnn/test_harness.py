"""Unnormalised scores in the harness: refused as probabilities, taken as contrasts."""

from __future__ import annotations

import math

import pytest
from lm_eval.api.instance import Instance

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.backends import LatentSRNN
from lm_latent_eval.harness.tasks import request
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.srnn import SentenceRNN, SRNNConfig
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import METRICS, token_perplexity
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.text.words import START
from tests import contrastive_tasks, tiny_checkpoint
from tests.tiny_checkpoint import conditional, generation, ids, rolling
from tests.tiny_models import randomised


@pytest.fixture(scope="module")
def model():
    config = SRNNConfig(
        vocab_size=tiny_checkpoint.tokenizer().vocab_size, hidden_size=4
    )
    return randomised(SentenceRNN(config).double(), 1, 1.0).eval()


@pytest.fixture(scope="module")
def pretrained(model, tmp_path_factory):
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("srnn"), model))


@pytest.fixture
def backend(pretrained):
    return LatentSRNN(pretrained=pretrained)


def score(model, *words: str) -> float:
    batch = TokenBatch.collate([ids(*words)], first=START)
    return model.log_joint(model.encode(batch), NO_LATENT).item()


def contrasted(*texts: str) -> list[Instance]:
    """Requests as the contrastive tasks make them."""
    return [
        request("loglikelihood_rolling", r.args, {"distortion": {}}, 0, ("t", n, 1))
        for n, r in enumerate(rolling(*texts))
    ]


def test_sentences_are_scored_without_ends(backend, model):
    texts = ["the fox saw .", "the fox\n\nsaw Ada .\n", "fox"]
    found = backend.loglikelihood_rolling(contrasted(*texts))
    exact = [
        score(model, "the", "fox", "saw", "."),
        score(model, "the", "fox") + score(model, "saw", "?", "."),
        score(model, "fox"),
    ]
    assert found == pytest.approx(exact, abs=1e-10)
    assert {answer.estimate.bound for answer in found} == {Bound.UNNORMALISED}
    info = backend.get_model_info()["latent_eval"]
    assert info["mass"] == "unnormalised" and "unknown constant" in info["units"]
    assert info["bound_of_log_likelihood"] == {"unnormalised score": 3}


def test_other_tasks_are_refused_by_name(backend):
    with pytest.raises(ValueError, match=r"wiki would read.*no perplexity.*contrast"):
        backend.loglikelihood_rolling(rolling("the fox", task="wiki"))


def test_continuations_and_generation_are_refused(backend, pretrained):
    with pytest.raises(ValueError, match="a continuation after its context no prob"):
        backend.loglikelihood(conditional(("the", " fox")))
    with pytest.raises(ValueError, match="the next word no probability"):
        backend.generate_until(generation("the"))
    loaded = lm_latent_eval.load(pretrained)
    with pytest.raises(ValueError, match="a continuation"):
        loaded.log_likelihood([" fox"], contexts=["the"])
    with pytest.raises(ValueError, match="the next word"):
        loaded.generate(["the"])


def test_an_estimate_says_what_it_is_and_has_no_perplexity(pretrained, model):
    estimates = lm_latent_eval.load(pretrained).log_likelihood(["the fox", " \n"])
    found = [estimate.log_evidence for estimate in estimates]
    assert found == pytest.approx([score(model, "the", "fox"), 0.0], abs=1e-10)
    for estimate in estimates:
        assert estimate.bound is Bound.UNNORMALISED
        with pytest.raises(ValueError, match="unnormalised score has no perplexity"):
            _ = estimate.perplexity


def test_every_metric_of_ours_refuses_with_the_reason(backend):
    texts = ("the fox saw .", "saw")
    answers = backend.loglikelihood_rolling(contrasted(*texts))
    items = [scored.answer for scored in answers]
    for name, metric in METRICS.items():
        wanted = "N/A" if name.endswith("stderr") else "refused: unnormalised scores"
        assert metric(items) == wanted, name
        assert metric([items[0], Answer.exact(-3.0, "the fox")]) == wanted, name
    exact = [Answer.exact(-3.0, "the fox")]
    assert METRICS["token_perplexity"](exact) == token_perplexity(exact)


def test_the_command_line_refuses_too(pretrained, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("the fox saw .\n")
    main(["estimate", pretrained, "--data", str(tmp_path / "texts.txt")])
    shown = capsys.readouterr().out
    refused = "certified_token_perplexity refused: unnormalised scores"
    assert refused in " ".join(shown.split())
    assert shown.count("refused") == sum(not n.endswith("_stderr") for n in METRICS)


def test_contrastive_tasks_take_it(backend, model, tmp_path):
    results = contrastive_tasks.evaluate(backend, tmp_path)["results"]
    words = tiny_checkpoint.tokenizer()

    def log_score(text: list[str]) -> float:
        batch = TokenBatch.collate([words(" ".join(text)).ids], first=START)
        return model.log_joint(model.encode(batch), NO_LATENT).item()

    for level in contrastive_tasks.LEVELS:
        channel = NoiseChannel.preset(level / 100, [contrastive_tasks.SUBSTITUTE])
        differences = [
            log_score(text.split())
            - log_score(channel.distort(text.split(), seed=0, name=n))
            for n, text in enumerate(contrastive_tasks.SENTENCES)
        ]
        name = f"contrastive_entropy_per_sentence@{level}%,none"
        exact = sum(differences) / len(differences) / math.log(2)
        assert results[contrastive_tasks.TASK][name] == pytest.approx(exact, abs=1e-9)


def test_spelling_is_refused(pretrained):
    with pytest.raises(ValueError, match="unk=spelled needs"):
        LatentSRNN(pretrained=pretrained, unk="spelled")
    assert LatentSRNN(pretrained=pretrained).fingerprint["unk"] == "closed"
