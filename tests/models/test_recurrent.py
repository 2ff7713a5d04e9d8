"""Recurrent layers and language models: by hand and alone."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models.recurrent import LSTM, Elman, RecurrentStack
from lm_latent_eval.models.recurrent_lm import RNNConfig, RNNLanguageModel
from lm_latent_eval.text.words import END, PADDING, START
from tests import tiny_models
from tests.tiny_models import randomised

LENGTHS = [[7, 3, 0, 7, 1], [4, 4, 4], [0, 0], [5]]
EXACTLY = {"rtol": 0, "atol": 1e-12}


def one_by_one(stack, value):
    """One text of its full length through the layers as torch has them."""
    states = []
    for layer, size in zip(stack.layers, stack.sizes, strict=True):
        zeros = (torch.zeros(1, 1, size, dtype=torch.float64),) * stack.num_states
        value, after = layer(value[None], zeros)
        value = value[0]
        states.append(tuple(state[0, 0] for state in after))
    return value, states


@pytest.fixture(params=["lstm", "elman"])
def stack(request):
    torch.manual_seed(0)
    cell = {"lstm": LSTM, "elman": Elman}[request.param]
    return RecurrentStack([3, 5, 4], cell=cell).double().eval()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_texts_run_to_their_own_ends(stack, lengths):
    """Outputs, states and gradients are those of each text alone."""
    shape = len(lengths), max(lengths), 3
    value = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    outputs, carry = stack(value, torch.tensor(lengths))
    assert outputs.shape == (len(lengths), max(lengths), 4)
    loss = outputs.square().sum() + 0 * value.sum()  # of nothing but ends, too
    (together,) = torch.autograd.grad(loss, value)
    for b, length in enumerate(lengths):
        assert (outputs[b, length:] == 0).all() and (together[b, length:] == 0).all()
        if length == 0:
            assert all((s[b] == 0).all() for states in carry.layers for s in states)
            continue
        wanted, states = one_by_one(stack, value[b, :length])
        torch.testing.assert_close(outputs[b, :length], wanted, **EXACTLY)
        for ours, alone in zip(carry.layers, states, strict=True):
            for found, exact in zip(ours, alone, strict=True):
                torch.testing.assert_close(found[b], exact, **EXACTLY)
        (alone,) = torch.autograd.grad(wanted.square().sum(), value)
        torch.testing.assert_close(together[b], alone[b], **EXACTLY)


@pytest.mark.parametrize("build", [tiny_models.lstm, tiny_models.rnn])
def test_a_model_may_utter_every_word(build):
    """Padding and the start, too: then it wastes what they get, and says so."""
    model = build()
    model.config.never_uttered = []
    hidden = torch.ones(2, model.config.embedding_dim, dtype=torch.float64)
    every = model.log_probs(hidden)
    assert every.isfinite().all()
    assert (every.logsumexp(-1).abs() < 1e-12).all()
    assert model.normalization is Normalization.BELOW_ONE


def classed(*starts: int, seed: int = 3) -> RNNLanguageModel:
    config = RNNConfig(
        vocab_size=9, class_starts=starts, embedding_dim=3, hidden_size=2, num_layers=2
    )
    return randomised(RNNLanguageModel(config).double(), seed, 0.8).eval()


def test_a_text_is_scored_by_hand():
    model = tiny_models.rnn()  # one layer would do, but two classes do not
    (first, second), embed = model.rnn.layers, model.embeddings.weight
    h, g, total = torch.zeros(4).double(), torch.zeros(3).double(), 0.0
    text, last = [4, 1, 4, END], START
    for word in text:
        h = torch.sigmoid(first.input(embed[last]) + first.recurrent(h))
        g = torch.sigmoid(second.input(h) + second.recurrent(g))
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
    every, nothing = model.log_probs(hidden), torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(every.logsumexp(-1), nothing, **EXACTLY)
    assert every[:, [PADDING, START]].isneginf().all()
    alike = [torch.full((5,), word) for word in range(9)]
    for words in (*alike, torch.tensor([8, 1, 4, 1, 3])):
        one = model.log_prob(hidden, words)
        torch.testing.assert_close(one, every[torch.arange(5), words], **EXACTLY)


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
