"""Recurrent layers over texts of different lengths, in one go and in pieces."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models import recurrent_lm
from lm_latent_eval.models.recurrent import LSTM, Elman, RecurrentStack
from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
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


def test_old_checkpoints_find_their_weights():
    names = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}
    layers = RecurrentStack([3, 5, 4]).state_dict().keys()
    assert layers == {f"layers.{n}.{name}" for n in (0, 1) for name in names}
    model = LSTMLanguageModel(LSTMConfig(vocab_size=5, embedding_dim=3, num_layers=1))
    assert model.state_dict().keys() == {
        "bias",
        "embeddings.weight",
        *(f"rnn.layers.0.{name}" for name in names),
    }


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_texts_run_to_their_own_ends(stack, lengths):
    value = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    outputs, carry = stack(value, torch.tensor(lengths))
    assert outputs.shape == (len(lengths), max(lengths), 4)
    for b, length in enumerate(lengths):
        assert (outputs[b, length:] == 0).all()
        if length == 0:
            assert all((s[b] == 0).all() for states in carry.layers for s in states)
            continue
        wanted, states = one_by_one(stack, value[b, :length])
        torch.testing.assert_close(outputs[b, :length], wanted, **EXACTLY)
        for ours, alone in zip(carry.layers, states, strict=True):
            for found, exact in zip(ours, alone, strict=True):
                torch.testing.assert_close(found[b], exact, **EXACTLY)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_pieces_are_the_whole(stack, cut):
    length = torch.tensor([7, 3, 0, 7, 1])
    value = torch.randn(5, 7, 3, dtype=torch.float64)
    whole, end = stack(value, length)
    first, carry = stack(value[:, :cut], length.clamp_max(cut))
    rest, after = stack(value[:, cut:], (length - cut).clamp_min(0), carry)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, **EXACTLY)
    for ours, wanted in zip(after.layers, end.layers, strict=True):
        torch.testing.assert_close(ours, wanted, **EXACTLY)


def test_gradients_are_those_of_the_texts(stack):
    lengths = [4, 2, 0]
    value = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = stack(value, torch.tensor(lengths))
    (together,) = torch.autograd.grad(outputs.square().sum(), value)
    for b, length in enumerate(lengths):
        assert (together[b, length:] == 0).all()
        if length:
            alone, _ = one_by_one(stack, value[b, :length])
            (wanted,) = torch.autograd.grad(alone.square().sum(), value)
            torch.testing.assert_close(together[b], wanted[b], **EXACTLY)


@pytest.mark.parametrize("build", [tiny_models.lstm, tiny_models.rnn])
def test_scores_of_words_are_held_some_at_a_time(build, monkeypatch):
    model = build()
    texts = tiny_models.batch([[4, 4, 1, 3], [4, 3], [3]])
    whole, rows = model.log_joint(model.encode(texts), NO_LATENT), []
    log_prob = type(model).log_prob

    def watching(self, hidden, words):
        rows.append(len(words))
        return log_prob(self, hidden, words)

    monkeypatch.setattr(type(model), "log_prob", watching)
    monkeypatch.setattr(recurrent_lm, "TABLE", 3 * model.config.vocab_size)
    parts = model.log_joint(model.encode(texts), NO_LATENT)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    assert rows == [3, 3, 1]


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
