"""Recurrent layers and language models: by hand and alone."""

from __future__ import annotations

import json
import math

import pytest
import torch

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models.recurrent import LSTM, Elman, RecurrentStack
from lm_latent_eval.models.recurrent_lm import LSTMConfig
from lm_latent_eval.text.words import END, START
from tests import tiny_models

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


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_a_model_may_utter_every_word(cell):
    """Padding and the start, too: then it wastes what they get, and says so."""
    model = tiny_models.lstm(cell=cell)
    model.config.never_uttered = []
    hidden = torch.ones(2, model.config.embedding_dim, dtype=torch.float64)
    every = model.log_probs(hidden)
    assert every.isfinite().all()
    assert (every.logsumexp(-1).abs() < 1e-12).all()
    assert model.normalization is Normalization.BELOW_ONE


def test_a_text_is_scored_by_hand():
    model = tiny_models.lstm(cell="rnn")
    (first, second), embed = model.rnn.layers, model.embeddings.weight
    h, g, total = torch.zeros(4).double(), torch.zeros(3).double(), 0.0
    text, last = [4, 1, 4, END], START
    for word in text:
        h = torch.sigmoid(first.input(embed[last]) + first.recurrent(h))
        g = torch.sigmoid(second.input(h) + second.recurrent(g))
        scores = {w: (embed[w] @ g + model.bias[w]).item() for w in (1, 3, 4)}
        total += scores[word] - math.log(sum(map(math.exp, scores.values())))
        last = word
    found = model.log_joint(model.encode(tiny_models.batch([text])), NO_LATENT)
    assert found.item() == pytest.approx(total, abs=1e-12)


def test_a_file_of_version_0_3_is_of_an_lstm(tmp_path):
    """It names no cell."""
    tiny_models.lstm().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written.pop("cell") == "lstm"
    assert LSTMConfig.from_dict(written).cell == "lstm"
    with pytest.raises(ValueError, match="cell is 'gru': expected one of lstm, rnn"):
        LSTMConfig.from_dict({**written, "cell": "gru"})
