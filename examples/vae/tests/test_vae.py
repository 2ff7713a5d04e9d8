"""The laws of lm_latent_eval, and quadrature in two dimensions as the truth."""

from __future__ import annotations

import math

import pytest
import torch
from latent_vae import SentenceVAE, VAEConfig
from latent_vae.__main__ import TEXTS, write

import lm_latent_eval
from lm_latent_eval.extend import END, START, Case, TokenBatch, laws

CELLS, WIDTH = 81, 0.25


def grid() -> torch.Tensor:
    """Middles of square cells around the origin, (1, K, 2)."""
    axis = WIDTH * (torch.arange(CELLS, dtype=torch.float64) - CELLS // 2)
    return torch.cartesian_prod(axis, axis)[None]


def tiny() -> Case:
    """Three words, in float64."""
    model = SentenceVAE(VAEConfig(vocab_size=6)).double().eval()
    generator = torch.Generator().manual_seed(1)
    # Weights of an encoder that is much narrower than the posterior have no variance,
    # and no number of draws shows their mean: this one is about as wide.
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(0, 0.25, generator=generator)
    return Case(
        model,
        lambda text: grid(),
        words=(1, 4, 5),
        proposals=model.proposal_names,
        log_cell=lambda text: 2 * math.log(WIDTH),
        quadrature=1e-4,
    )


@pytest.mark.parametrize("law", laws(tiny()), ids=str)
def test_it_keeps_the_law(law):
    law()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vae")
    write(folder)
    return lm_latent_eval.load(folder, device="cpu")


@pytest.mark.parametrize("proposal", ["encoder", "prior"])
def test_strings_have_the_probability_of_the_integral(opened, proposal):
    model = opened.checkpoint.model
    estimates = opened.log_likelihood([*TEXTS], proposal=proposal, num_samples=2000)
    for text, estimate in zip(TEXTS, estimates, strict=True):
        ids = [*opened.checkpoint.tokenizer(text).ids, END]
        encoded = model.encode(TokenBatch.collate([ids], first=START))
        log_p = model.log_joint(encoded, grid()).logsumexp(-1) + 2 * math.log(WIDTH)
        assert 0 < estimate.draws_stderr < 0.2, "premise: precise enough"
        assert abs(estimate.log_evidence - log_p.item()) < 5 * estimate.draws_stderr


def test_what_lists_latents_or_goes_on_is_refused(opened):
    with pytest.raises(ValueError, match="expected one of is"):
        opened.log_likelihood(["the cat"], estimator="beam")
    with pytest.raises(ValueError, match="ask for whole texts"):
        opened.log_likelihood([" ran"], contexts=["the cat"])
