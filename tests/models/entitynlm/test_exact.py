"""Proposals over every chain: totals, weights, sampled frequencies, beams."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.entitynlm.latents import Chains
from tests.models.entitynlm import reference
from tests.models.entitynlm.space import best_chains, every_chain

EXACT = reference.numbers()["exact"]
PROPOSALS = ("adapted", "peeking", "nonpeeking", "prior")
TEMPERATURES = (0.5, 0.9, 1.0, 1.1, 2.0, 5.0)
EXACTLY = {"rtol": 0, "atol": 1e-10}


def name(case):
    return f"{case['model']}-{len(case['tokens'])}"


def enumerated(case):
    model = reference.model(case["model"])
    chains = every_chain(len(case["tokens"]) - 1, model.config.max_mention_length)
    return model, reference.batch(case["tokens"]), chains


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("case", EXACT, ids=name)
def test_importance_weights_are_exact(case, which, temperature):
    model, batch, chains = enumerated(case)
    proposal = model.proposal(which, temperature)
    log_p = model.log_joint(model.encode(batch), chains)
    log_q = proposal.log_prob(proposal.encode(batch), chains)
    assert abs(log_q.logsumexp(-1).item()) < 1e-10, "q is a distribution"
    assert (log_p > -torch.inf).all(), "every chain that is listed is possible"
    assert (log_q > -torch.inf).all(), "q covers p"
    expected = (log_q.exp() * (log_p - log_q).exp()).sum()
    assert abs(expected / log_p.logsumexp(-1).exp() - 1) < 1e-10


@pytest.mark.parametrize("which", PROPOSALS)
def test_a_temperature_divides_every_score(which):
    """Against the definition, from the scores of temperature 1."""
    case = EXACT[1]
    model, batch, chains = enumerated(case)
    tau = 1.7
    plain = model.proposal(which).encode(batch)
    tempered = model.proposal(which, tau).encode(batch)
    factors = tempered.follow(chains).factors()
    place = torch.arange(plain.steps.num_tokens)
    torch.testing.assert_close(
        tempered.steps.mention, (plain.steps.mention / tau).log_softmax(-1), **EXACTLY
    )
    first = plain.state.memory
    slots = torch.cat([first.slots[0], first.slots[0].flip(-1)], 1)
    rows = slots.expand(len(place), 2, -1)
    last, count = torch.tensor([[0, 1]]), torch.ones(len(place), dtype=torch.long)
    for method, args in (
        ("log_slot", (rows, last.expand(len(place), 2), count)),
        ("log_length", (rows[:, 1],)),
    ):
        once = getattr(plain.steps, method)(place, *args)
        divided = getattr(tempered.steps, method)(place, *args)
        torch.testing.assert_close(divided, (once / tau).log_softmax(-1), **EXACTLY)
    untempered = plain.follow(chains).factors()
    assert all(
        (a - b).abs().max() > 0.1 for a, b in zip(factors, untempered, strict=True)
    ), "premise: the temperature matters"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("model", ["A", "B"])
def test_samples_follow_q(model, which, temperature):
    case = next(c for c in EXACT if c["model"] == model and c["num_z"] > 900)
    entitynlm, batch, chains = enumerated(case)
    proposal = entitynlm.proposal(which, temperature)
    encoded = proposal.encode(batch)
    log_q = proposal.log_prob(encoded, chains)[0]
    draws = proposal.sample(encoded, Streams([7], 20_000), 20_000)
    key = {chain: k for k, chain in enumerate(as_tuples(chains))}
    drawn = torch.tensor([key[chain] for chain in as_tuples(draws.latents)])
    torch.testing.assert_close(draws.log_q[0], log_q[drawn], **EXACTLY)
    expected = log_q.exp() * len(drawn)
    observed = torch.bincount(drawn, minlength=len(expected)).double()
    common = expected >= 5
    cells = torch.cat([observed[common], observed[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    assert len(cells) > 5, "premise: something to compare"
    assert (
        chisquare(cells.numpy(), (wanted * cells.sum() / wanted.sum()).numpy()).pvalue
        > 1e-4
    )


def as_tuples(chains: Chains) -> list[tuple[tuple[int, ...], ...]]:
    return [tuple(map(tuple, rows)) for rows in torch.stack(chains, -1)[0].tolist()]


@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("case", EXACT, ids=name)
def test_beam_is_a_bound_and_becomes_exact(case, which):
    model, batch, chains = enumerated(case)
    proposal = model.proposal(which)
    p, q = model.encode(batch), proposal.encode(batch)
    exact = model.log_joint(p, chains).logsumexp(-1).item()

    def rank(chains):
        """By log q, or by p so far, of whose words psi is known."""
        if which != "adapted":
            return proposal.log_prob(q, chains)[0]
        following = p.follow(chains)
        versions, context = following.contexts()
        place = torch.arange(context.shape[-1])
        log_psi = q.steps.twist(place, versions.vectors[context[0]].transpose(0, 1))
        return (following.log_prob().sum(-1) + log_psi.double().sum(0))[0]

    ranks = rank(chains)
    for width in (1, 4, 50, len(ranks) + 3):
        beam = proposal.beam(q, width)
        found = beam.score[0] > -torch.inf
        latents = torch.cat(beam.latents, -1)[0, found]
        assert len(latents.unique(dim=0)) == len(latents) <= width
        torch.testing.assert_close(
            rank(beam.latents)[found], beam.score[0, found], **EXACTLY
        )
        total = model.log_joint(p, beam.latents)[0, found].logsumexp(0).item()
        assert total <= exact + 1e-12
    assert found.sum() == len(ranks)
    assert abs(total - exact) < 1e-10
    torch.testing.assert_close(
        beam.score[0, found].sort().values, ranks.sort().values, **EXACTLY
    )


@pytest.mark.parametrize("width", [1, 3, 10])
@pytest.mark.parametrize("case", EXACT, ids=name)
def test_beam_keeps_the_best_beginnings(case, width):
    model, batch, _ = enumerated(case)
    proposal = model.proposal("peeking")
    kept = best_chains(proposal, batch, width)
    beam = proposal.beam(proposal.encode(batch), width)
    assert (beam.score > -torch.inf).sum() == len(kept)
    assert set(as_tuples(beam.latents)) == kept
