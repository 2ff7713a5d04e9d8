"""A new EntityNLM is a distribution, and nothing moves its numbers."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.entitynlm import network
from lm_latent_eval.models.entitynlm.latents import Chains
from lm_latent_eval.text.words import START
from tests.models.entitynlm import tiny
from tests.models.entitynlm.tiny import MAX_LENGTH, every_chain
from tests.watching import watch

PROPOSALS = ("adapted", "peeking", "nonpeeking", "prior")
EXACTLY = {"rtol": 0, "atol": 1e-10}


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


def test_the_adapted_proposal_weighs_each_choice_by_what_p_says_of_the_word(model):
    """Against its definition, with slopes of log p from automatic differentiation.

    q(z_t | ..) is proportional to p(z_t | ..) psi(g), over all z_t after one z_<t.
    """
    text = [4, 1, 5, 4]
    chains = every_chain(len(text), MAX_LENGTH)
    encoded, q = model.encode(tiny.batch(text)), model.proposal("adapted")
    given = encoded.follow(chains)
    versions, which = given.contexts()
    vectors, tangents = versions.vectors, []
    for at in (0, 1):
        with torch.enable_grad():
            hidden = encoded.hidden[0].detach()
            context = at * model.generative.trunk.first_slot.detach().expand_as(hidden)
            context = context.clone().requires_grad_()
            said = model.generative.words.log_words(hidden, context)
            said = said[range(len(text)), text]
            (slope,) = torch.autograd.grad(said.sum(), context)
        rise = (slope * (vectors[which[0]] - context)).sum(-1)
        tangents.append((said + rise).detach())
    log_psi = torch.minimum(*tangents)
    score = given.log_prob()[0] + log_psi
    steps = torch.stack([*chains], -1)[0].tolist()
    expected = score.sum(-1)
    for t in range(len(text)):
        total: dict[str, float] = defaultdict(float)
        for k in {str(z[: t + 1]): k for k, z in enumerate(steps)}.values():
            total[str(steps[k][:t])] += score[k, t].exp().item()
        expected -= expected.new_tensor([total[str(z[:t])] for z in steps]).log()
    found = q.log_prob(q.encode(tiny.batch(text)), chains)[0]
    assert log_psi.std(0).max() > 0.1, "premise: contexts matter"
    assert (tangents[0] < tangents[1]).any() and (tangents[1] < tangents[0]).any()
    torch.testing.assert_close(found, expected, **EXACTLY)


def test_a_word_that_is_never_uttered_leaves_a_distribution(model):
    chains = every_chain(2, MAX_LENGTH)
    batch, q = tiny.batch([START, 4]), model.proposal("adapted")
    assert (model.log_joint(model.encode(batch), chains) == -torch.inf).all()
    assert abs(q.log_prob(q.encode(batch), chains).logsumexp(-1).item()) < 1e-10


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
