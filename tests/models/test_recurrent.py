"""Recurrent layers and language models: by hand, in pieces, and trained."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models import recurrent_lm
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.recurrent import LSTM, Elman, RecurrentStack
from lm_latent_eval.models.recurrent_lm import (
    LSTMConfig,
    LSTMLanguageModel,
    RNNConfig,
    RNNLanguageModel,
    class_starts,
)
from lm_latent_eval.models.recurrent_training import train_rnn
from lm_latent_eval.text.words import END, PADDING, START
from lm_latent_eval.training.options import Options, RNNSize
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


SIGMOID = torch.sigmoid


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
