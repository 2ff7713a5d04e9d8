"""A new EntityNLM is a distribution, and nothing moves its numbers."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.entitynlm import network
from lm_latent_eval.models.entitynlm.latents import Chains
from tests.models.entitynlm import tiny
from tests.models.entitynlm.tiny import MAX_LENGTH, every_chain
from tests.watching import watch

PROPOSALS = ("adapted", "peeking", "nonpeeking", "prior")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request):
    return tiny.entitynlm(tied=request.param)


def test_a_chain_that_cannot_be_has_no_probability(model):
    """Of all pairs of numbers, exactly the listed chains are possible."""
    length, most = 3, 3
    step = list(product(range(most + 1), range(-1, MAX_LENGTH + 1)))
    every = torch.tensor(list(product(step, repeat=length)))[None]
    chains = Chains(every[..., 0], every[..., 1])
    possible = {
        tuple(c) for c in torch.cat(every_chain(length, MAX_LENGTH), -1)[0].tolist()
    }
    wanted = [tuple(c) in possible for c in torch.cat(chains, -1)[0].tolist()]
    assert sum(wanted) == len(possible), "premise: all chains are among them"
    batch = tiny.batch([4, 5, 4])
    found = model.log_joint(model.encode(batch), chains)[0] > -torch.inf
    assert found.tolist() == wanted
    for name in PROPOSALS:
        q = model.proposal(name)
        assert ((q.log_prob(q.encode(batch), chains)[0] > -torch.inf) == found).all()


def test_scores_too_far_apart_for_their_type_are_not_factored(monkeypatch):
    """Where places and contexts want other words, float32 loses the sum of products."""
    model = tiny.entitynlm(tied=False)
    model.generative.words.weight.data *= 200
    model.generative.words.entity.weight.data *= -1
    q, batch = model.proposal("prior"), tiny.batch([4, 5, 4, 4, 1, 5])
    chains = q.sample(q.encode(batch), Streams([1], 50), 50).latents

    def log_words():
        encoded = model.encode(batch)
        return model.log_words(encoded, encoded.follow(chains))

    exact = log_words()
    model.float()
    lost = watch(monkeypatch, network, "log_softmax_at", lambda p, *_: p.isnan())
    found = log_words()
    assert lost[-1].any(), "premise: some pairs are found alone"
    rounding = exact.abs().max().item() * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found, exact, rtol=0, atol=100 * rounding)
