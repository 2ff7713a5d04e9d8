"""Log-weights in, estimates and diagnostics out: laws, enumeration, tails."""

import itertools
import math

import pytest
import torch
from arviz_stats.base.array import array_stats

from lm_latent_eval.estimators import (
    effective_sample_size,
    log_evidence,
    log_ratio_stderr,
    pareto_k,
    relative_variance,
    sample_size_curve,
    stderr,
)
from tests.means import normal, uniform

POINTWISE = [log_evidence, relative_variance, stderr]
POINTWISE += [effective_sample_size, pareto_k]

# A lopsided model of five latents, one of which it excludes, and its proposal.
LOG_JOINT = torch.tensor([0.02, 0.003, 0.11, 0.0, 0.007], dtype=torch.float64).log()
LOG_Q = torch.tensor([0.25, 0.05, 0.4, 0.1, 0.2], dtype=torch.float64).log()
EXACT = LOG_JOINT.logsumexp(0)


@pytest.mark.parametrize("shift", [-1e4, 3.0, 1e4])
def test_shift_moves_the_evidence_alone(shift):
    log_w = normal(40, seed=0, sd=3.0)
    log_w[::7] = -torch.inf
    moved = log_w + shift

    expected = log_evidence(log_w) + shift
    torch.testing.assert_close(log_evidence(moved), expected, rtol=1e-12, atol=1e-9)
    for diagnostic in (stderr, effective_sample_size):
        assert diagnostic(moved) == pytest.approx(float(diagnostic(log_w)), rel=1e-9)


@pytest.mark.parametrize("function", [*POINTWISE, sample_size_curve])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_batch_equals_alone_in_float64(function, dtype):
    log_w = normal(2, 3, 60, seed=0, sd=2.0).to(dtype)
    log_w[0, 1, :20] = -torch.inf
    log_w[1, 2] = -torch.inf
    before = log_w.clone()

    batch = function(log_w)

    assert batch.dtype == torch.float64
    for i, j in itertools.product(range(2), range(3)):
        alone = function(log_w[i, j].double())
        torch.testing.assert_close(batch[i, j], alone, rtol=0, atol=0)
    assert torch.equal(log_w, before), "inputs are not modified"


def test_unbiased_and_its_log_biased_downwards_by_enumeration_of_every_sample():
    means = []
    possible = -torch.inf < LOG_JOINT
    for num_samples in (1, 2, 4):
        draws = torch.cartesian_prod(*[torch.arange(5)] * num_samples)
        draws = draws.view(-1, num_samples)
        chance = LOG_Q[draws].sum(-1).exp()
        estimates = log_evidence((LOG_JOINT - LOG_Q)[draws])
        mean = (chance * (estimates - EXACT).exp()).sum().item()
        assert chance.sum().item() == pytest.approx(1, abs=1e-12)
        assert mean == pytest.approx(1, abs=1e-12)
        some = possible[draws].any(-1)
        means.append((chance * estimates)[some].sum() / chance[some].sum())
    assert means == sorted(means), "less so with more samples"
    assert means[-1] < EXACT


def test_zero_weights_and_single_draws():
    log_w = torch.tensor([0.6, 0.0, 0.0], dtype=torch.float64).log()
    assert log_evidence(log_w).exp() == pytest.approx(0.2)
    assert stderr(log_w) == pytest.approx(math.sqrt(2 / 3))
    assert sample_size_curve(log_w.flip(0), [1, 2, 3]).exp()[:2].tolist() == [0, 0]

    one, none = torch.tensor([-3.0]), torch.full((30,), -torch.inf)
    for function, of_one, of_none in (
        (log_evidence, -3, -math.inf),
        (effective_sample_size, 1, 0),
        (stderr, math.inf, math.inf),
        (pareto_k, math.inf, math.inf),
    ):
        assert (function(one), function(none)) == (of_one, of_none)
    assert log_ratio_stderr(one, one) == math.inf
    assert log_ratio_stderr(none, torch.zeros(30)) == math.inf


def test_the_error_of_a_ratio_counts_what_its_parts_share():
    """Against the spread over replicates, where the delta method is accurate."""
    prefix = normal(4000, 200, seed=0, sd=0.3)
    log_w = prefix + normal(4000, 200, seed=1, sd=0.2) - 1.0
    ratio = log_evidence(log_w) - log_evidence(prefix)
    spread = ratio.std().item()
    claimed = log_ratio_stderr(log_w, prefix).mean().item()
    assert abs(claimed / spread - 1) < 5 / math.sqrt(2 * 4000)
    apart = (stderr(log_w) ** 2 + stderr(prefix) ** 2).sqrt().mean().item()
    assert apart > 1.5 * spread, "premise: ignoring the covariance would be wrong"


# -- Pareto k: that of arviz-stats, and tails that it has no answer for -----------


def of_arviz(log_w):
    """Return its k; NaN where it refuses, which some of its versions do by an error."""
    try:
        return float(array_stats.psislw(-log_w.numpy())[1])
    except ValueError:
        return math.nan


@pytest.mark.parametrize("num_samples", [30, 60, 225, 226, 1000, 40_000])
def test_pareto_k_is_that_of_arviz(num_samples):
    """Of log-normal weights, and of generalized Pareto ones, bounded and with tails."""
    shape = torch.tensor([-0.5, 0.2, 0.7, 1.5], dtype=torch.float64)[:, None]
    pareto = (uniform(4, num_samples, seed=4).pow(-shape) - 1) / shape
    log_w = torch.cat([normal(4, num_samples, seed=5, sd=2.0), pareto.log()])

    expected = [of_arviz(row) for row in log_w]
    assert pareto_k(log_w).tolist() == pytest.approx(expected, rel=1e-12)  # rounding


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
