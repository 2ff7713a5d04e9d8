"""The sentence-level RNN: its score by hand, its training, who takes its scores."""

from __future__ import annotations

import math

import pytest
import torch
from lm_eval.api.instance import Instance

from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.backends import LatentSRNN
from lm_latent_eval.harness.tasks import request
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.srnn import SentenceRNN, hinges, objective, train_srnn
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import METRICS
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from lm_latent_eval.training.options import Options, SRNNSize
from tests import tiny_checkpoint, tiny_models
from tests.fuzz import models
from tests.tiny_checkpoint import conditional, generation, ids, rolling


def score(model: SentenceRNN, words: list[int]) -> float:
    batch = TokenBatch.collate([words], first=START)
    return model.log_joint(model.encode(batch), NO_LATENT).item()


def test_a_sentence_is_scored_by_hand():
    model = tiny_models.srnn()
    layer, u = model.rnn.layers[0], model.score.weight[0].tolist()
    w, v = layer.input.weight.tolist(), layer.recurrent.weight.tolist()
    b = layer.input.bias.tolist()
    size = range(3)
    h, total = [0.0] * 3, 0.0
    for word in (4, 1, 4, 4):
        x = model.embeddings.weight[word].tolist()
        norm = math.hypot(*x)
        x = [number / norm for number in x]
        inner = [
            b[i] + sum(w[i][j] * x[j] + v[i][j] * h[j] for j in size) for i in size
        ]
        h = [1 / (1 + math.exp(-number)) for number in inner]
        total += sum(u[i] * h[i] for i in size)
    assert score(model, [4, 1, 4, 4]) == pytest.approx(total, abs=1e-12)


def test_hinges_are_of_pairs():
    model = tiny_models.srnn()
    model.score.weight *= 0.5
    sentences = [[4, 1, 4], [1], [4, 4, 4, 1, 1]]
    distorted = [[1, 1, 4], [1], [1, 1, 4, 4, 4]]
    found = hinges(model, sentences, distorted)
    exact = [
        max(0.0, 1 - (score(model, x) - score(model, noisy)))
        for x, noisy in zip(sentences, distorted, strict=True)
    ]
    assert found.tolist() == pytest.approx(exact, abs=1e-12)
    assert exact[1] == 1.0, "an undistorted sentence keeps its margin"
    norm = sum(weight.square().sum().item() for weight in model.parameters())
    total = objective(model, sentences, distorted, 0.1).item()
    assert total == pytest.approx(sum(exact) + 3 * 0.05 * norm, abs=1e-12)
    model.score.weight *= 1000
    apart = hinges(model, [[4, 1, 4], [1, 1, 4]], [[1, 1, 4], [4, 1, 4]])
    assert apart.min() == 0, "what is far enough apart costs nothing"
    assert apart.max() > 2, "the other way round it costs that much more"


TEXTS = ["a b c a b c a b c", "b c a b c a", "c a b c a b c", "a b c a b c a b"] * 4


def test_every_line_is_a_sentence_and_an_interrupted_run_goes_on(tmp_path):
    """Distortions follow from the epoch, in a run that is resumed, too."""
    joined = ["\n".join(TEXTS[:6]), " \n\n" + "\n".join(TEXTS[6:])]
    given = {"already_cut": True, "size": SRNNSize(6)}
    for name, texts, epochs in (
        *(("whole", TEXTS, 4), ("cut", TEXTS, 2)),
        *(("cut", TEXTS, 4), ("joined", joined, 4)),
    ):
        options = Options(epochs=epochs, batch_size=8)
        train_srnn(texts, TEXTS[:4], tmp_path / name, **given, options=options)
    whole, *others = (
        load_checkpoint(tmp_path / name).model.state_dict()
        for name in ("whole", "cut", "joined")
    )
    for other in others:
        assert all(torch.equal(other[name], whole[name]) for name in whole)


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    folder = tiny_checkpoint.write(tmp_path_factory.mktemp("srnn"), models.srnn())
    return LatentSRNN(pretrained=str(folder))


def contrasted(*texts: str) -> list[Instance]:
    """Requests as the contrastive tasks make them."""
    return [
        request("loglikelihood_rolling", r.args, {"distortion": {}}, 0, ("t", n, 1))
        for n, r in enumerate(rolling(*texts))
    ]


def test_sentences_are_scored_without_ends(backend):
    model = models.srnn()
    texts = ["the fox saw .", "the fox\n\nsaw Ada .\n", "fox", " \n"]
    found = backend.loglikelihood_rolling(contrasted(*texts))
    exact = [
        score(model, ids("the", "fox", "saw", ".")),
        score(model, ids("the", "fox")) + score(model, ids("saw", "?", ".")),
        score(model, ids("fox")),
        0.0,
    ]
    assert found == pytest.approx(exact, abs=1e-10)
    for answer in found:
        assert answer.estimate.bound is Bound.UNNORMALISED
        with pytest.raises(ValueError, match="unnormalised score has no perplexity"):
            _ = answer.estimate.perplexity
    info = backend.get_model_info()["latent_eval"]
    assert info["mass"] == "unnormalised" and "unknown constant" in info["units"]
    assert info["bound_of_log_likelihood"] == {"unnormalised score": 4}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (rolling("the fox", task="wiki"), "wiki would read.*no perplexity.*contrast"),
        (conditional(("the", " fox")), "a continuation after its context no prob"),
        (generation("the"), "the next word no prob"),
    ],
)
def test_what_needs_a_probability_is_refused_by_name(backend, asked, message):
    with pytest.raises(ValueError, match=message):
        getattr(backend, asked[0].request_type)(asked)


def test_every_metric_of_ours_refuses_with_the_reason(backend):
    texts = ("the fox saw .", "saw")
    answers = backend.loglikelihood_rolling(contrasted(*texts))
    items = [scored.answer for scored in answers]
    for name, metric in METRICS.items():
        wanted = "N/A" if name.endswith("stderr") else "refused: unnormalised scores"
        assert metric(items) == wanted, name
        assert metric([items[0], Answer.exact(-3.0, "the fox")]) == wanted, name
