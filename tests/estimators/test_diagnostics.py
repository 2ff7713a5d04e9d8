"""Pareto k: known tails, arviz-stats, and tails that it has no answer for."""

from __future__ import annotations

import math

import pytest
import torch
from arviz_stats.base.array import array_stats

from lm_latent_eval.estimators import (
    pareto_k,
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed, sd=1.0):
    return sd * torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [-0.5, 0.2, 0.7, 1.5])
def test_pareto_k_of_generalized_pareto_weights(shape):
    num_samples, replicates = 40_000, 40
    uniform = torch.rand(
        (replicates, num_samples), generator=seeded(4), dtype=torch.float64
    )
    log_w = ((uniform.pow(-shape) - 1) / shape).log()

    found = pareto_k(log_w)

    num_tail = 3 * math.sqrt(num_samples)
    expected = (num_tail * shape + 10 * 0.5) / (num_tail + 10)  # with its prior
    tolerance = found.std().item() / math.sqrt(replicates)
    assert 0 < tolerance < 0.02, "premise: precise enough to notice an error"
    assert abs(found.mean().item() - expected) < 5 * tolerance


def of_arviz(log_w):
    """Return its k; NaN where it refuses, which some of its versions do by an error."""
    try:
        return float(array_stats.psislw(-log_w.numpy())[1])
    except ValueError:
        return math.nan


@pytest.mark.parametrize("num_samples", [30, 60, 225, 226, 1000])
def test_pareto_k_is_that_of_arviz(num_samples):
    log_w = normal(4, num_samples, seed=5, sd=2.0)

    assert pareto_k(log_w).tolist() == [of_arviz(row) for row in log_w]


@pytest.mark.parametrize("num_samples", [30, 100, 400])
def test_equal_weights_in_the_tail_are_as_good_as_nearly_equal_ones(num_samples):
    """Latents are drawn more than once; versions of arviz-stats disagree on these."""
    log_w = normal(num_samples, seed=7).sort().values
    first = math.floor(min(num_samples / 5, 3 * math.sqrt(num_samples)))
    log_w[-first : -first // 2] = log_w[-first]
    nearly = log_w + 1e-7 * normal(num_samples, seed=8)

    assert pareto_k(log_w).isfinite()
    assert abs(pareto_k(log_w) - pareto_k(nearly)) < 1e-4


def test_zero_weights_are_no_tail_and_few_weights_tell_none():
    few, enough = normal(29, seed=6), normal(30, seed=6)
    zeros = torch.full((900,), -torch.inf, dtype=torch.float64)
    assert pareto_k(few) == pareto_k(torch.cat([zeros, few])) == math.inf
    assert pareto_k(enough).isfinite()
    assert pareto_k(torch.cat([zeros, enough])) == pareto_k(enough)


@pytest.mark.parametrize(
    ("values", "counts", "reliable"),
    [
        ([0.5, 1.0], [95, 5], True),
        ([0.5, 1.0], [99, 1], True),
        ([1.0, 2.0, 3.0], [80, 15, 5], True),
        ([0.5, 1e6], [99, 1], False),
        ([0.0, 0.5, 1e6], [900, 99, 1], False),
    ],
)
def test_tied_weights_of_discrete_latents(values, counts, reliable):
    weights = torch.tensor(values, dtype=torch.float64)
    log_w = weights.repeat_interleave(torch.tensor(counts)).log()

    assert (pareto_k(log_w).item() < 0.7) == reliable


@pytest.mark.parametrize("sd", [10.0, 300.0, 1e5])
def test_wide_tails_are_flagged_however_wide(sd):
    assert (pareto_k(normal(5, 100, seed=8, sd=sd)) > 0.7).all()
