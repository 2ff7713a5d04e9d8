"""KGLM against sums over every walk: the original's, and our own enumeration."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from scipy.stats import chisquare

from lm_latent_eval.inference.streams import Streams
from tests import kglm_reference as reference
from tests.kglm_space import every_walk

EXACT = reference.numbers()["exact"]
RANKED_BY_Q = ("peeking", "nonpeeking", "prior")
PROPOSALS = (*RANKED_BY_Q, "adapted")
TEMPERATURES = (0.5, 1.0, 1.1, 2.0)


def name(case):
    return f"{case['model']}-{'.'.join(map(str, case['tokens']))}"


def enumerate_walks(case):
    kglm = reference.model(case["model"])
    walks = every_walk(
        kglm.knowledge,
        len(case["tokens"]) - 1,
        kglm.config.cutoff,
        reference.SPECIAL_ENTITIES,
    )
    return kglm, walks


@pytest.mark.parametrize("case", EXACT, ids=name)
def test_sum_over_every_walk(case):
    kglm, walks = enumerate_walks(case)
    log_p = kglm.log_joint(kglm.encode(reference.batch(case["tokens"])), walks)
    assert abs(log_p.logsumexp(-1).item() - case["log_px_clean"]) < 1e-6

    penalty = -math.log(reference.numbers()["num_unknown_types"])
    encoded = kglm.encode(reference.batch(case["tokens"], penalty=penalty))
    total = kglm.log_joint(encoded, walks).logsumexp(-1).item()
    assert abs(total - case["log_px_clean_penalized"]) < 1e-6


@pytest.mark.parametrize("case", [c for c in EXACT if c["all"]], ids=name)
def test_every_walk_of_the_original(case):
    """Ours is the original's, summed over the parents of the same walk."""
    kglm, walks = enumerate_walks(case)
    log_p = kglm.log_joint(kglm.encode(reference.batch(case["tokens"])), walks)
    golden = defaultdict(list)
    for entry in case["all"]:
        golden[tuple(entry["m"]), tuple(entry["raw"])].append(entry["clean"])
    for k in range(walks.node.shape[1]):
        key = tuple(walks.mention[0, k].tolist()), tuple(walks.node[0, k].tolist())
        wanted = torch.tensor(golden.pop(key), dtype=torch.float64).logsumexp(0)
        assert abs(log_p[0, k] - wanted) < 1e-6
    assert not golden, "we miss walks that the original has"


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("case", EXACT, ids=name)
def test_importance_weights_are_exact(case, which, temperature):
    kglm, walks = enumerate_walks(case)
    batch = reference.batch(case["tokens"])
    proposal = kglm.proposal(which, temperature)
    log_p = kglm.log_joint(kglm.encode(batch), walks)
    log_q = proposal.log_prob(proposal.encode(batch), walks)
    assert abs(log_q.logsumexp(-1).item()) < 1e-10, "q is a distribution"
    assert (log_q[log_p > -torch.inf] > -torch.inf).all(), "q covers p"
    expected = (log_q.exp() * (log_p - log_q).exp()).sum()
    assert abs(expected / log_p.logsumexp(-1).exp() - 1) < 1e-10


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("model", ["A", "B"])
def test_samples_follow_q(model, which, temperature):
    case = next(c for c in EXACT if c["model"] == model and c["num_z"] > 1000)
    kglm, walks = enumerate_walks(case)
    proposal = kglm.proposal(which, temperature)
    encoded = proposal.encode(reference.batch(case["tokens"]))
    log_q = proposal.log_prob(encoded, walks)[0]
    draws = proposal.sample(encoded, Streams([7], 20_000), 20_000)
    key = {
        (tuple(m), tuple(n)): k
        for k, (m, n) in enumerate(
            zip(walks.mention[0].tolist(), walks.node[0].tolist(), strict=True)
        )
    }
    drawn = torch.tensor(
        [
            key[tuple(m), tuple(n)]
            for m, n in zip(
                draws.latents.mention[0].tolist(),
                draws.latents.node[0].tolist(),
                strict=True,
            )
        ]
    )
    torch.testing.assert_close(draws.log_q[0], log_q[drawn], rtol=0, atol=1e-10)
    expected = log_q.exp() * len(drawn)
    observed = torch.bincount(drawn, minlength=len(expected)).double()
    common = expected >= 5
    cells = torch.cat([observed[common], observed[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    assert (
        chisquare(cells.numpy(), (wanted * cells.sum() / wanted.sum()).numpy()).pvalue
        > 1e-4
    )


@pytest.mark.parametrize("which", PROPOSALS)
@pytest.mark.parametrize("case", EXACT, ids=name)
def test_beam_is_a_bound_and_becomes_exact(case, which):
    kglm, walks = enumerate_walks(case)
    batch = reference.batch(case["tokens"])
    proposal = kglm.proposal(which)
    p, q = kglm.encode(batch), proposal.encode(batch)
    exact = kglm.log_joint(p, walks).logsumexp(-1).item()
    log_q = proposal.log_prob(q, walks)[0]
    for width in (1, 4, 50, walks.node.shape[1]):
        beam = proposal.beam(q, width)
        found = beam.score[0] > -torch.inf
        latents = torch.cat([beam.latents.mention, beam.latents.node], -1)[0, found]
        assert len(latents.unique(dim=0)) == len(latents) <= width
        log_p = kglm.log_joint(p, beam.latents)[0, found]
        total = log_p.logsumexp(0).item()
        if which in RANKED_BY_Q:
            log_q_found = proposal.log_prob(q, beam.latents)[0, found]
            torch.testing.assert_close(
                beam.score[0, found], log_q_found, rtol=0, atol=1e-10
            )
    assert abs(total - exact) < 1e-10
    if which in RANKED_BY_Q:
        best = proposal.beam(q, len(log_q)).score[0]
        torch.testing.assert_close(
            best.sort().values, log_q.sort().values[-len(best) :], rtol=0, atol=1e-10
        )
