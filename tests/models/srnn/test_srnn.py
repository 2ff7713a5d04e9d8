"""The sentence-level RNN: its score by hand, its hinge, its training."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.srnn import SentenceRNN, SRNNConfig, hinges, train_srnn
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.text.words import START
from lm_latent_eval.training.options import MarginObjective, Options, SRNNSize
from tests import tiny_models


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


def test_the_length_of_an_embedding_means_nothing():
    model = tiny_models.srnn()
    before = score(model, [4, 1, 4])
    model.embeddings.weight[4] *= 7
    assert score(model, [4, 1, 4]) == pytest.approx(before, abs=1e-12)
    model.embeddings.weight[4, 0] *= 2
    assert abs(score(model, [4, 1, 4]) - before) > 1e-3, "premise: its direction does"


def test_words_that_have_no_embedding_are_unknown():
    model = tiny_models.srnn()
    assert score(model, [4, 9, 4]) == score(model, [4, 1, 4])


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
    model.score.weight *= 1000
    apart = hinges(model, [[4, 1, 4], [1, 1, 4]], [[1, 1, 4], [4, 1, 4]])
    assert apart.min() == 0, "what is far enough apart costs nothing"
    assert apart.max() > 2, "the other way round it costs that much more"


# Words alternate: a random word in its place is noticed.
TEXTS = ["a b c a b c a b c", "b c a b c a", "c a b c a b c", "a b c a b c a b"] * 8


def trained(folder, epochs=8, margin=None):
    return train_srnn(
        TEXTS,
        TEXTS[:4],
        folder,
        already_cut=True,
        size=SRNNSize(6),
        margin=margin or MarginObjective(0.3, l2=1e-6),
        options=Options(epochs=epochs, batch_size=8, learning_rate=0.02),
    )


def test_training_tells_sentences_from_distorted_ones(tmp_path):
    """A model that tells nothing apart has a hinge of 1 on average."""
    model = train_srnn(
        TEXTS,
        TEXTS[:4],
        tmp_path,
        already_cut=True,
        size=SRNNSize(12),
        margin=MarginObjective(0.3, l2=1e-6),
        options=Options(epochs=25, batch_size=8, learning_rate=0.1, patience=25),
    )
    loaded = load_checkpoint(tmp_path)
    assert loaded.name == "srnn" and loaded.orthography is None
    noise = NoiseChannel.preset(0.3, ["a", "b", "c"])
    copies = [noise.distort(t.split(), seed=7, name=n) for n, t in enumerate(TEXTS)]
    good = [loaded.tokenizer(text).ids for text in TEXTS]
    bad = [loaded.tokenizer(" ".join(copy)).ids for copy in copies]
    found = hinges(model, good, bad).detach()
    assert found.mean() + 3 * found.std() / math.sqrt(len(found)) < 1
    assert [score(loaded.model, ids) for ids in good] == [
        score(model, ids) for ids in good
    ]


def test_an_interrupted_run_goes_on_as_it_would_have(tmp_path):
    whole = trained(tmp_path / "whole", 4)
    trained(tmp_path / "cut", 2)
    resumed = trained(tmp_path / "cut", 4)
    for name, tensor in whole.state_dict().items():
        assert (resumed.state_dict()[name] == tensor).all(), name


def test_weights_are_kept_small(tmp_path):
    def norm(model: SentenceRNN) -> float:
        return sum(p.square().sum().item() for p in model.parameters())

    free = trained(tmp_path / "free", 4)
    small = trained(tmp_path / "small", 4, MarginObjective(0.3, l2=0.1))
    assert norm(small) < 0.7 * norm(free)


def test_every_line_is_a_sentence(tmp_path):
    joined = ["\n".join(TEXTS[:16]), " \n\n" + "\n".join(TEXTS[16:])]
    options = {"already_cut": True, "size": SRNNSize(6), "options": Options(epochs=2)}
    one = train_srnn(TEXTS, TEXTS[:4], tmp_path / "one", **options)
    two = train_srnn(joined, ["\n".join(TEXTS[:4])], tmp_path / "two", **options)
    for name, tensor in one.state_dict().items():
        assert (two.state_dict()[name] == tensor).all(), name


@pytest.mark.parametrize("distortion", [0.0, 0.6, -0.1, math.nan])
def test_levels_that_teach_nothing_are_refused(distortion):
    with pytest.raises(ValueError, match="more than 0 and at most"):
        MarginObjective(distortion)


def test_a_negative_weight_of_the_norm_is_refused():
    with pytest.raises(ValueError, match="l2=-1"):
        MarginObjective(0.1, l2=-1)


def test_the_configuration_keeps_its_fields(tmp_path):
    SRNNConfig(vocab_size=7, hidden_size=5).save_pretrained(tmp_path)
    read = SRNNConfig.from_pretrained(tmp_path)
    assert (read.vocab_size, read.num_words, read.hidden_size) == (7, 7, 5)
    assert read.num_unknown_types == 0
