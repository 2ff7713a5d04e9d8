"""What entities that a walk has mentioned are worth as parents of the text ahead."""

from dataclasses import replace

import torch

from lm_latent_eval.models.kglm import derivable, mention_chain, twisting
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Rows
from lm_latent_eval.models.kglm.mention_chain import backward
from tests.models.kglm.test_twisting import TEXT, WITH_DI, batch_of, of_graph
from tests.watching import watch

ROUNDED = {"rtol": 0, "atol": 1e-7}
"""Masses are divided by what they are worth, which may be 1e-8."""


def test_walks_gain_what_the_chain_finds_with_their_parents(monkeypatch):
    """Against sums with r of one token set to what a walk has mentioned."""
    seen = watch(monkeypatch, twisting, "derivable_tokens", lambda _, *chain: chain)
    monkeypatch.setattr(twisting, "FURTHEST", torch.inf)
    monkeypatch.setattr(mention_chain, "LIKELIEST", 1 << 10)
    monkeypatch.setattr(derivable, "LITTLE", -1.0)
    kglm, batch = of_graph(*WITH_DI), batch_of(TEXT)
    gains = kglm.proposal("adapted").encode(batch).ahead.gains
    cutoff, (costs, parents, *_) = kglm.config.cutoff, seen[-1]
    num_nodes, num_states = kglm.knowledge.num_nodes, costs.word.shape[2]
    first, spread = torch.tensor([0]), []

    def log_evidence(u, recent):
        changed = parents.recent.clone()
        changed[:, u] = recent
        _, found = backward(costs, batch.length, replace(parents, recent=changed))
        return found.none[:, 0, 0].item()

    def later(t):
        return range(t + 1, min(t + 1 + cutoff, len(TEXT)))

    def log_gains(t, stays):
        """Of states that stay for some tokens."""
        found = []
        for u in later(t):
            since = gains.log_absent[:, u] - gains.log_absent[:, t + 1]
            known = (-since.expm1()).masked_fill(u - t - 1 < stays, 1.0)
            found.append(log_evidence(u, known) - log_evidence(u, parents.recent[:, u]))
        return torch.tensor(found).double()

    def log_gain(t, state):
        """Of a mention of a state, with other entities as the chain expects them."""
        found = 0.0
        for u in later(t):
            recent = mention_chain.recent_mentions(gains.log_absent, cutoff)[:, u]
            found += log_evidence(u, recent.index_fill(1, torch.tensor([state]), 1.0))
            found -= log_evidence(u, recent)
        return found

    for t in range(len(TEXT) - 1):
        wanted = [[0.0, *(log_gain(t, state) for state in range(1, num_states))]]
        expected = gains.expected_after(t)
        torch.testing.assert_close(expected, expected.new_tensor(wanted), **ROUNDED)
        window = torch.rand(6, cutoff, generator=torch.manual_seed(t)) * 3 * num_nodes
        window = window.long()
        window[window >= num_nodes] = NO_ENTITY
        nobody = torch.zeros(6, dtype=torch.long)
        after = gains.after(t, nobody, window, Rows(nobody, window).last)
        order = after.ahead.distance[0].argsort()
        for row, nodes in enumerate(window):
            stays = torch.zeros(num_states, dtype=torch.long)
            for place in nodes.nonzero()[:, 0]:
                stays[gains.states(first, nodes[place, None])] = place
            stays[0] = 0
            wanted = log_gains(t, stays)
            torch.testing.assert_close(after.log_prob[row, order], wanted, **ROUNDED)
            torch.testing.assert_close(after.total[row], wanted.sum(), **ROUNDED)
            spread.append(wanted.sum())
            for node in range(1, num_nodes):
                state = gains.states(first, torch.tensor([node]))
                longer = stays.clone()
                longer[state] = cutoff * (state > 0)
                more = log_gains(t, longer).sum() - wanted.sum()
                found = after.mentioned(torch.tensor([row]), torch.tensor([node]))[0]
                torch.testing.assert_close(found, more, **ROUNDED)
                assert found <= after.most[row] + ROUNDED["atol"]
    assert torch.stack(spread).std() > 0.003, "premise: something to see"
