"""The simple recurrent network: its formulas by hand, its classes, its training."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.recurrent import Elman
from lm_latent_eval.models.recurrent_lm import (
    RNNConfig,
    RNNLanguageModel,
    class_starts,
)
from lm_latent_eval.models.recurrent_training import train_rnn
from lm_latent_eval.text.words import END, PADDING, START
from lm_latent_eval.training.options import Options, RNNSize
from tests import tiny_models
from tests.tiny_models import randomised

EXACTLY = {"rtol": 0, "atol": 1e-12}
SIGMOID = torch.sigmoid


def classed(*starts: int, seed: int = 3) -> RNNLanguageModel:
    config = RNNConfig(
        vocab_size=9, class_starts=starts, embedding_dim=3, hidden_size=2, num_layers=2
    )
    return randomised(RNNLanguageModel(config).double(), seed, 0.8).eval()


def test_a_layer_is_its_formula():
    layer = randomised(Elman(2, 3).double(), 0, 1.0)
    value = torch.randn(2, 4, 2, dtype=torch.float64)
    h = start = torch.rand(2, 3, dtype=torch.float64)
    outputs, (after,) = layer(value, (start[None],))
    for t in range(4):
        pushed = value[:, t] @ layer.input.weight.T + layer.input.bias
        h = 1 / (1 + (-(pushed + h @ layer.recurrent.weight.T)).exp())
        torch.testing.assert_close(outputs[:, t], h, **EXACTLY)
    torch.testing.assert_close(after[0], h, **EXACTLY)


def test_a_text_is_scored_by_hand():
    model = tiny_models.rnn()  # one layer would do, but two classes do not
    (first, second), embed = model.rnn.layers, model.embeddings.weight
    h, g, total = torch.zeros(4).double(), torch.zeros(3).double(), 0.0
    text, last = [4, 1, 4, END], START
    for word in text:
        h = SIGMOID(first.input(embed[last]) + first.recurrent(h))
        g = SIGMOID(second.input(h) + second.recurrent(g))
        class_scores = (model.classes.weight @ g + model.classes.bias).tolist()
        members = {0: [1], 1: [3, 4]}  # PADDING and START are in them, and excluded
        c = int(word >= 3)
        scores = {w: (embed[w] @ g + model.bias[w]).item() for w in members[c]}
        total += class_scores[c] - math.log(sum(map(math.exp, class_scores)))
        total += scores[word] - math.log(sum(map(math.exp, scores.values())))
        last = word
    found = model.log_joint(model.encode(tiny_models.batch([text])), NO_LATENT)
    assert found.item() == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("starts", [(0,), (0, 3), (0, 2, 4, 5), (0, 2, 4, 5, 6, 7, 8)])
def test_classes_share_all_probability(starts):
    model = classed(*starts)
    assert model.normalization is Normalization.ONE
    hidden = torch.randn(5, 3, dtype=torch.float64)
    every = model.log_probs(hidden)
    assert every.shape == (5, 9)
    torch.testing.assert_close(
        every.logsumexp(-1), torch.zeros(5, dtype=torch.float64), **EXACTLY
    )
    assert every[:, [PADDING, START]].isneginf().all()
    for word in range(9):
        one = model.log_prob(hidden, torch.full((5,), word))
        torch.testing.assert_close(one, every[:, word], **EXACTLY)
    mixed = torch.tensor([8, 1, 4, 1, 3])
    torch.testing.assert_close(
        model.log_prob(hidden, mixed), every[torch.arange(5), mixed], **EXACTLY
    )


def test_gradients_reach_every_word_and_class():
    model = classed(0, 3, 6).requires_grad_(True)
    texts = [list(text) for text in product((1, 3, 4, 5, 6, 7, 8), repeat=2)]
    loss = model.log_joint(model.encode(tiny_models.batch(texts)), NO_LATENT).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
    assert (model.classes.weight.grad != 0).all()
    moved = (model.embeddings.weight.grad != 0).any(-1).tolist()
    assert [w for w, yes in enumerate(moved) if yes] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("starts", "reason"),
    [
        ((1, 3), "expected 0 and rising"),
        ((0, 5, 3), "expected 0 and rising"),
        ((0, 3, 3), "expected a list of distinct values"),
        ((0, 9), "each a whole number of 0 <= n < 9"),
        ((0, 1), "all excluded"),
    ],
)
def test_bad_classes_are_refused(starts, reason):
    with pytest.raises(ValueError, match=reason):
        classed(*starts)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 12))
def test_classes_are_of_about_equal_frequency(counts, num_classes):
    if not sum(counts):
        return
    starts = class_starts(counts, num_classes)
    assert starts[0] == 0 and starts == sorted(set(starts))
    assert len(starts) <= num_classes
    share = sum(counts) / num_classes
    for start, end in zip(starts, [*starts[1:], len(counts)], strict=True):
        # Without its last word, none is larger than its share.
        *rest, _ = [c for c in counts[start:end] if c] or [0]
        assert sum(rest) <= share + 1


TEXTS = ["a b c", "a b", "c b a", "b c a b", "a b c c"] * 4


def test_training_learns_and_the_checkpoint_scores_alike(tmp_path):
    options = Options(epochs=12, batch_size=4, learning_rate=0.03)
    size = RNNSize(4, 5, num_layers=2, num_classes=3)
    model = train_rnn(
        TEXTS, TEXTS[:5], tmp_path, already_cut=True, size=size, options=options
    )
    loaded = load_checkpoint(tmp_path)
    assert loaded.name == "rnn" and loaded.orthography is None
    assert loaded.model.config.class_starts == model.config.class_starts
    assert len(model.config.class_starts) == 3
    ids = [*loaded.tokenizer("a b c").ids, END]
    batch = tiny_models.batch([ids])
    scores = [
        m.log_joint(m.encode(batch), NO_LATENT).item() for m in (model, loaded.model)
    ]
    assert scores[0] == scores[1]
    # Better than the best that does not look at the words before.
    counts = {"a": 24, "b": 24, "c": 20, "</s>": 20}
    unigram = sum(n * math.log(n / 88) for n in counts.values()) / 88
    everything = [[*loaded.tokenizer(t).ids, END] for t in TEXTS]
    found = model.log_joint(model.encode(tiny_models.batch(everything)), NO_LATENT)
    assert found.sum().item() / 88 > unigram + 0.2
