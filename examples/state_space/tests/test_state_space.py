"""The laws of lm_latent_eval, and the Kalman filter as the truth."""

from __future__ import annotations

import math

import pytest
import torch
from latent_state_space import StateSpace, StateSpaceConfig
from latent_state_space.__main__ import write
from torch.distributions import Normal

import lm_latent_eval
from lm_latent_eval.extend import END, UNKNOWN, Case, laws

CELLS, WIDTH = 40, 1.0
"""Of z_t, around the level: as far as a flattened proposal goes."""


def tiny() -> Case:
    """Three numbers, in float64; every latent is the middle of a cell."""
    model = StateSpace(StateSpaceConfig(vocab_size=7, lowest=3))
    model = model.double().eval().requires_grad_(False)
    middles = model.level + WIDTH * (torch.arange(CELLS) - (CELLS - 1) / 2)

    def every_cell(text: list[int]) -> torch.Tensor:
        axes = torch.meshgrid(*[middles] * len(text), indexing="ij")
        return torch.stack(axes, -1).view(1, -1, len(text), 1)

    return Case(
        model,
        every_cell,
        words=(UNKNOWN, 4, 6),
        proposals=model.proposal_names,
        log_cell=lambda text: len(text) * math.log(WIDTH),
        quadrature=1e-4,
    )


@pytest.mark.parametrize("law", laws(tiny()), ids=str)
def test_it_keeps_the_law(law):
    law()


def kalman(model: StateSpace, ids: list[int]) -> float:
    """Log p(x), by the mean and the variance of z_t given the words so far."""
    moving, reading = (scale.item() ** 2 for scale in model.scales)
    level, keeps = model.level.item(), model.keeps.item()
    log_kind = model.kinds.double().log_softmax(-1).tolist()
    mean, variance, total = level, 0.0, 0.0
    for word in ids:
        mean, variance = level + keeps * (mean - level), keeps**2 * variance + moving
        if word in (END, UNKNOWN):
            total += log_kind[(END, UNKNOWN).index(word)]
            continue
        x, spread = word - 4 + model.config.lowest, variance + reading
        log_x = Normal(mean, math.sqrt(spread)).log_prob(torch.tensor(x))
        total += log_kind[2] + log_x.item()
        gain = variance / spread
        mean, variance = mean + gain * (x - mean), (1 - gain) * variance
    return total


TEXTS = ["17 19 18 22 25 24", "", "30 31 29"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state_space")
    write(folder)
    return lm_latent_eval.load(folder, device="cpu")


@pytest.mark.parametrize("estimator", ["smc", "is"])
def test_strings_have_the_probability_of_the_kalman_filter(opened, estimator):
    chosen = {"estimator": estimator, "num_samples": 4000}
    estimates = opened.log_likelihood(TEXTS, **chosen)
    for text, estimate in zip(TEXTS, estimates, strict=True):
        ids = [*opened.checkpoint.tokenizer(text).ids, END]
        exact = kalman(opened.checkpoint.model, ids)
        assert estimate.draws_stderr < 0.05, "premise: precise enough"
        assert abs(estimate.log_evidence - exact) < 5 * estimate.draws_stderr + 1e-9


def test_continuations_are_ratios_of_the_kalman_filter(opened):
    model, read = opened.checkpoint.model, opened.checkpoint.tokenizer
    [found] = opened.log_likelihood(
        [" 22 25"], contexts=["17 19 18"], estimator="smc", num_samples=4000
    )
    whole = read("17 19 18 22 25").ids
    exact = kalman(model, whole) - kalman(model, whole[:3])
    assert abs(found.log_evidence - exact) < 5 * found.draws_stderr < 0.25


def test_what_is_written_goes_on_where_the_readings_are(opened):
    written = opened.generate(["40 41 40 42"] * 4, max_tokens=3, seed=2)
    numbers = [int(word) for text in written for word in text.split()]
    assert numbers and all(25 < number < 55 for number in numbers)


def test_what_lists_latents_is_refused(opened):
    for estimator in ("beam", "auto"):
        with pytest.raises(ValueError, match="expected one of smc, is"):
            opened.log_likelihood(["17"], estimator=estimator)
