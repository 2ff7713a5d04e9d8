"""p(x, z): normalised or not, summed over every history, and how often it waits."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.rnng.choices import log_marginal
from lm_latent_eval.models.rnng.crf import num_trees
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.models.rnng import reference
from tests.models.rnng.reference import every_prefix


def test_what_an_original_loses_before_its_first_word():
    """An end as the first word: 8.7 % of the mass of model B, 0.3 % of model A."""
    for name, lost in (("A", 0.0030783), ("B", 0.0868455)):
        rnng = reference.model(name, "eos")
        encoded = rnng.encode(TokenBatch.collate([[4]], first=START))
        zeros = torch.zeros(1, 1, dtype=torch.float64)
        log_p = rnng.next_token(encoded, zeros, Streams([0], 1))
        assert abs(1 - log_p.exp().sum().item() - lost) < 1e-6
        at_start = rnng.generative.begin()
        scores = rnng.generative.embeddings.weight @ at_start.state[0, -1, 0]
        share = (scores + rnng.generative.bias).softmax(-1)[END]
        assert abs(share - lost) < 1e-6


def test_a_model_without_ends_cannot_claim_to_be_normalised():
    with pytest.raises(ValueError, match="without sentence_ends"):
        reference.tiny(sentence_ends=False, only_possible=True)


@pytest.mark.parametrize("num_words", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("end", [True, False])
def test_it_sums_over_every_history(num_words, end):
    model = reference.tiny(seed=num_words)
    texts = [[*t, *[END] * end] for t in product((1, 4, 5), repeat=num_words)][::5]
    listed = every_prefix(num_words + end, end=end)
    assert listed.after.shape[1] == num_trees(num_words)
    expected = [
        model.log_joint(
            model.encode(TokenBatch.collate([text], first=START)), listed
        ).logsumexp(-1)
        for text in texts
    ]
    found = log_marginal(model.generative, torch.tensor(texts))
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-12)


def test_what_cannot_be_said_has_no_probability():
    model = reference.tiny().generative
    impossible = torch.tensor([[END, 4], [START, 4], [4, START], [0, 0]])
    assert log_marginal(model, impossible)[1:].tolist() == [-torch.inf] * 3
    assert log_marginal(model, torch.tensor([[END]])).tolist() == [-torch.inf]
    both = log_marginal(model, torch.tensor([[4, START, 5], [4, 4, 5]]))
    alone = log_marginal(model, torch.tensor([[4, 4, 5]]))
    assert both[0] == -torch.inf
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-12)


def test_new_models_start_small_and_even():
    torch.manual_seed(0)
    rnng = RNNG(RNNGConfig(vocab_size=50, hidden_size=16, proposal_size=8))
    for name, weight in rnng.named_parameters():
        if name.endswith("bias") or "bias_" in name:
            assert (weight == 0).all(), name
        elif name == "spans.score.2.weight":
            assert (weight == 1).all()
        else:
            assert 0 < weight.abs().max() < 1, name
            assert weight.std() > 0.03, name
