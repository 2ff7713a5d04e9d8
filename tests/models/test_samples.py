"""Samples come as often as q says: against all latents of a text, listed."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.text.words import END
from tests.test_laws import TINY_MODELS

NUMBER = 20_000
PAIRS = [
    (name, which)
    for name in ("entitynlm", "kglm", "lrlm", "nklm", "rnng")
    for which in TINY_MODELS[name].proposals
]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(("name", "which"), PAIRS)
def test_samples_follow_q(name, which, temperature):
    case = TINY_MODELS[name].case()
    text = [*case.words[1::-1], *case.words[:2]]
    if name == "rnng":
        text.append(END)  # whole sentences, which every proposal can read
    proposal = case.proposal(which, temperature)
    encoded = proposal.encode(case.batch([text]))
    every = case.latents(text)
    log_q = proposal.log_prob(encoded, every)[0]
    draws = proposal.sample(encoded, Streams([7], NUMBER), NUMBER)
    code, order = fingerprint(every)[0].sort()
    assert len(code.unique()) == len(code), "premise: latents are told apart"
    place = torch.searchsorted(code, fingerprint(draws.latents)[0])
    drawn = order[place.clamp_max(len(code) - 1)]
    for ours, wanted in zip(draws.latents, every, strict=True):
        assert torch.equal(ours[0], wanted[0, drawn]), "every draw is listed"
    torch.testing.assert_close(draws.log_q[0], log_q[drawn], rtol=0, atol=1e-10)

    expected = log_q.exp() * NUMBER
    observed = torch.bincount(drawn, minlength=len(expected)).double()
    assert observed[expected == 0].sum() == 0
    common = expected >= 5
    assert common.sum() > 3, "premise: something to compare"
    cells, wanted = (
        torch.cat([x[common], x[~common].sum()[None]]) for x in (observed, expected)
    )
    some = wanted > 1e-6
    wanted = wanted[some] * cells[some].sum() / wanted[some].sum()
    assert chisquare(cells[some].numpy(), wanted.numpy()).pvalue > 1e-4
