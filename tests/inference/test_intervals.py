"""Printed errors against the truth, over many trials on models small enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from lm_latent_eval.estimators import certified_log_likelihood, log_evidence
from lm_latent_eval.estimators import estimate as estimate_module
from lm_latent_eval.inference import DiscreteFilter, ImportanceSampling
from lm_latent_eval.inference.discrete import NARROWEST, PASSES
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.latent import Draws, LatentLM, Proposal
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.batch import TokenBatch
from tests.means import normal
from tests.test_laws import opened

TRIALS = 2000
ROUNDING = 1e-9
"""Nats by which sums of the same numbers differ."""


@pytest.fixture(autouse=True)
def _no_tails(monkeypatch):
    """Fit no Pareto tails to thousands of trials: no interval depends on them."""
    unknown = torch.tensor(math.inf)
    monkeypatch.setattr(estimate_module, "pareto_k", lambda log_w: unknown)


@dataclass(frozen=True)
class Table(LatentLM, Proposal):
    """p(x, z) and q(z | x) of one text, as tables over numbered latents."""

    p: Tensor
    q: Tensor
    name: str = "table"

    proposal_names = ("table",)

    def proposal(self, name=None, temperature=1.0):
        return self

    def encode(self, batch, after=None):
        return batch

    def log_joint(self, batch, latents):
        return self.p.log()[latents.squeeze(-1)]

    def sample(self, batch, uniforms, num_samples):
        u = uniforms(0)[..., 0].contiguous().double()
        z = torch.searchsorted(self.q.cumsum(0), u).clamp_max(len(self.q) - 1)
        return Draws(z[..., None], self.q.log()[z])

    def log_prob(self, batch, latents):
        return self.q.log()[latents.squeeze(-1)]


def lopsided(latents=400, agreement=0.7, seed=0):
    """A posterior with a long tail, and a proposal that is off by e^(+-1) or so."""
    p = (1 + torch.arange(latents, dtype=torch.float64)) ** -1.3
    q = p**agreement * normal(latents, seed=seed).exp()
    return p / p.sum() * 1e-3, q / q.sum()


def weights(method, p, q, trials):
    """Weigh one text, drawn anew so many times."""
    table = Table(p, q)
    batch = TokenBatch.collate([[0]] * trials, [[0.0]] * trials, first=0, device="cpu")
    return method.log_weights(Texts(table, table, batch, keys(trials)))


def estimates(method, p, q, trials=TRIALS):
    return [method.estimate(row, 1) for row in weights(method, p, q, trials)]


@cache
def of_lopsided(num_samples, agreement):
    """Estimates, of which several tests look at different things."""
    p, q = lopsided(agreement=agreement)
    return estimates(ImportanceSampling(num_samples), p, q)


def coverage(found, truth):
    """Share of intervals that hold the truth, of those that are printed."""
    printed = [e for e in found if e.stderr is not None]
    far = [abs(e.log_evidence - truth) - 1.96 * e.stderr for e in printed]
    held = [nats <= ROUNDING for nats in far]  # exact ones have no error
    return sum(held) / len(held), len(printed) / len(found)


def blind(share):
    """A proposal that never visits a share of p, which lies on a few latents."""
    p, q = lopsided(agreement=1.0)
    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(1))
    order = order[(p[order].cumsum(0) <= share * p.sum())]
    q = q.clone()
    q[order] = 1e-30
    return p, q / q.sum()


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "lda", "nklm", "rnng"])
def test_first_proposals_of_models_search_by_p(name):
    """Not by log q and a number that the latents of a text share."""
    case, model, _ = opened(name)
    proposal, most = case.proposal(model.proposal_names[0]), torch.zeros(0)
    for text in case.readable(proposal)[::7]:
        batch = case.batch([[*text[:-1], *text]])
        p, q = model.encode(batch), proposal.encode(batch)
        beam = proposal.beam(q, 50)
        log_p = model.log_joint(p, beam.latents)
        log_q = proposal.log_prob(q, beam.latents)
        some = (beam.score > -torch.inf) & (log_p > -torch.inf)
        if some.sum() > len(most):
            most, of_q = (beam.score - log_p)[some], (beam.score - log_q)[some]
    assert of_q.std() > 0.01, f"{name}: the search ranks by what it draws from"
    if name != "kglm":  # which knows p of the nodes that the words of a text suggest
        assert most.std() < 0.1 * of_q.std()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_draws_alone_print_no_error(share):
    p, q = blind(share)
    truth = p.sum().log().item()
    alone = estimates(ImportanceSampling(20), p, q)
    tricked = [abs(e.log_evidence - truth) > 1.96 * e.draws_stderr for e in alone]
    assert sum(tricked) / TRIALS > 0.2, "premise: the draws do not show what they miss"
    assert all(e.stderr is None for e in alone)


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_intervals_of_models_whose_latents_can_be_listed(name):
    case, _, proposal = opened(name)
    text = case.readable(proposal)[5]
    method, truth = DiscreteFilter(NARROWEST * PASSES), case.log_p(text).item()
    rows = case.log_weights(method, proposal, [text] * 500)
    covered, printed = coverage([method.estimate(row, 3) for row in rows], truth)
    assert printed == 0 or covered >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / 500 / printed)


@pytest.mark.parametrize("num_texts", [1, 50])
def test_certificates_hold(num_texts):
    """However bad the proposal."""
    (p, q), method = blind(0.6), ImportanceSampling(20)
    trials = 400
    log_p_hat = log_evidence(weights(method, p, q, trials * num_texts))
    bounds = [certified_log_likelihood(n) for n in log_p_hat.view(trials, num_texts)]
    truth = num_texts * p.sum().log().item()
    held = sum(bound <= truth for bound in bounds) / trials
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


@pytest.mark.parametrize("all_known", [True, False])
def test_upper_bounds_hold_on_average_where_there_is_an_error(all_known):
    """Also where an error is known of low estimates alone."""
    truth = lopsided()[0].sum().log().item()
    found = of_lopsided(20, 0.7)
    first, second = found[: TRIALS // 2], found[TRIALS // 2 :]
    bounded = [
        replace(e, stderr=e.draws_stderr).bounded_above(other).upper
        for e, other in zip(first, second, strict=True)
        if all_known or e.log_evidence < truth
    ]
    uppers = torch.tensor(bounded)
    error = uppers.std().item() / math.sqrt(len(uppers))
    assert uppers.mean().item() >= truth - 3 * error
    assert all(e.bounded_above(e).upper is None for e in found), "no error, no bound"
