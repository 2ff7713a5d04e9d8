import itertools
import math

import numpy as np
import pytest
import torch
from arviz_stats.base.array import array_stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

from lm_latent_eval.estimators import (
    checked_weights,
    degrees_of_freedom,
    effective_sample_size,
    log_evidence,
    log_grid,
    log_normal_stderr,
    log_ratio_stderr,
    pareto_k,
    relative_variance,
    sample_size_curve,
    stderr,
)

POINTWISE = [log_evidence, relative_variance, stderr, effective_sample_size, pareto_k]

# A lopsided model of five latents, one of which it excludes, and its proposal.
LOG_JOINT = torch.tensor([0.02, 0.003, 0.11, 0.0, 0.007], dtype=torch.float64).log()
LOG_Q = torch.tensor([0.25, 0.05, 0.4, 0.1, 0.2], dtype=torch.float64).log()
EXACT = LOG_JOINT.logsumexp(0)


def log_weights(min_size=1, zeros=True):
    finite = st.floats(-30, 30)
    entry = st.one_of(finite, st.just(-math.inf)) if zeros else finite
    lists = st.lists(entry, min_size=min_size, max_size=40)
    return lists.filter(lambda row: max(row) > -math.inf).map(
        lambda row: torch.tensor(row, dtype=torch.float64)
    )


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed, sd=1.0):
    return sd * torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


# Laws


@settings(deadline=None)
@given(log_w=log_weights(), shift=st.floats(-1e4, 1e4))
def test_shift_moves_the_evidence_alone(log_w, shift):
    moved = log_w + shift

    torch.testing.assert_close(
        log_evidence(moved), log_evidence(log_w) + shift, rtol=1e-12, atol=1e-9
    )
    for diagnostic in (stderr, effective_sample_size):
        torch.testing.assert_close(
            diagnostic(moved), diagnostic(log_w), rtol=1e-9, atol=1e-6
        )


@settings(deadline=None)
@given(log_w=log_weights(), seed=st.integers(0, 2**31))
def test_order_does_not_matter(log_w, seed):
    shuffled = log_w[torch.randperm(len(log_w), generator=seeded(seed))]

    for function in POINTWISE:
        torch.testing.assert_close(
            function(shuffled), function(log_w), rtol=1e-9, atol=1e-9
        )


@settings(deadline=None)
@given(log_w=log_weights())
def test_effective_sample_size_is_between_one_and_k(log_w):
    assert 1 <= effective_sample_size(log_w).item() <= len(log_w)


@settings(deadline=None)
@given(log_w=log_weights(min_size=2))
def test_squared_stderr_is_one_over_ess_less_one_over_k(log_w):
    expected = 1 / effective_sample_size(log_w) - 1 / len(log_w)

    torch.testing.assert_close(stderr(log_w).square(), expected, rtol=1e-9, atol=1e-13)
    assert stderr(log_w) < 1


@settings(deadline=None)
@given(log_w=log_weights(zeros=False))
def test_evidence_is_between_the_elbo_and_the_largest_weight(log_w):
    estimate = log_evidence(log_w).item()

    assert log_w.mean().item() - 1e-12 <= estimate <= log_w.max().item() + 1e-12


@settings(deadline=None)
@given(log_w=log_weights())
def test_curve_is_nested_and_ends_at_the_estimate(log_w):
    sizes = range(1, len(log_w) + 1)
    alone = torch.stack([log_evidence(log_w[:size]) for size in sizes])

    curve = sample_size_curve(log_w, sizes)

    torch.testing.assert_close(curve, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(curve[-1], log_evidence(log_w), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        sample_size_curve(log_w)[-1], log_evidence(log_w), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("function", [*POINTWISE, sample_size_curve])
def test_batch_equals_alone(function):
    log_w = normal(2, 3, 60, seed=0, sd=2.0)
    log_w[0, 1, :20] = -torch.inf
    log_w[1, 2] = -torch.inf

    batch = function(log_w)

    for i, j in itertools.product(range(2), range(3)):
        torch.testing.assert_close(batch[i, j], function(log_w[i, j]), rtol=0, atol=0)


@pytest.mark.parametrize("function", [*POINTWISE, sample_size_curve])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_is_accumulated_in_float64(function, dtype):
    log_w = normal(3, 50, seed=1).to(dtype)
    before = log_w.clone()

    answer = function(log_w)

    assert answer.dtype == torch.float64
    torch.testing.assert_close(answer, function(log_w.double()), rtol=0, atol=0)
    assert torch.equal(log_w, before), "inputs are not modified"


def test_a_documents_weights_neither_overflow_nor_lose_digits():
    offsets = [0.0, -0.5, 0.25, -3.0]
    log_w = torch.tensor(offsets) - 10_000.0  # exact in float32
    mean = math.fsum(math.exp(offset) for offset in offsets) / 4

    assert log_evidence(log_w).item() == pytest.approx(
        math.log(mean) - 10_000, rel=0, abs=1e-11
    )
    assert log_evidence(-log_w).isfinite()
    in_float32 = (log_w.logsumexp(-1) - math.log(4)).item()
    assert abs(in_float32 - (math.log(mean) - 10_000)) > 1e-5, "premise: it matters"
    assert effective_sample_size(log_w) == effective_sample_size(torch.tensor(offsets))


# Against enumeration


@pytest.mark.parametrize("num_samples", [1, 2, 4])
def test_unbiased_by_enumeration_of_every_sample(num_samples):
    draws = torch.cartesian_prod(*[torch.arange(5)] * num_samples).view(-1, num_samples)
    chance = LOG_Q[draws].sum(-1).exp()

    estimates = log_evidence((LOG_JOINT - LOG_Q)[draws])

    mean = (chance * (estimates - EXACT).exp()).sum().item()
    assert chance.sum().item() == pytest.approx(1, abs=1e-12)
    assert mean == pytest.approx(1, abs=1e-12)


def test_log_is_biased_downwards_and_less_so_with_more_samples():
    log_q = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64).log()
    log_joint = torch.tensor([0.1, 0.15, 0.02], dtype=torch.float64).log()
    means = []
    for num_samples in range(1, 7):
        draws = torch.cartesian_prod(*[torch.arange(3)] * num_samples)
        draws = draws.view(-1, num_samples)
        estimates = log_evidence((log_joint - log_q)[draws])
        means.append((log_q[draws].sum(-1).exp() * estimates).sum().item())

    assert means == sorted(means)
    assert means[-1] < log_joint.logsumexp(0).item()


def test_evidence_agrees_with_enumeration():
    draws = torch.multinomial(LOG_Q.exp(), 20_000, True, generator=seeded(2))
    log_w = (LOG_JOINT - LOG_Q)[draws]

    ratio = (log_w - EXACT).exp()  # has mean 1 if the weights are right
    tolerance = ratio.std() / math.sqrt(len(ratio))
    assert 0 < tolerance < 0.05, "premise: precise enough to notice an error"
    estimate = (log_evidence(log_w) - EXACT).exp()
    assert abs(estimate - 1) < 5 * tolerance
    assert stderr(log_w) == pytest.approx(tolerance.item(), rel=0.02)


def test_exact_posterior_as_proposal_has_no_error():
    log_w = EXACT.expand(200)

    assert log_evidence(log_w) == pytest.approx(EXACT.item(), abs=1e-14)
    assert stderr(log_w) < 1e-15
    assert effective_sample_size(log_w) == pytest.approx(200)
    assert pareto_k(log_w) == -math.inf


def test_stderr_is_the_spread_of_replicates():
    log_w = normal(4000, 200, seed=3) - 0.5

    spread = log_evidence(log_w).std().item()

    # 4,000 replicates know their spread to 1.1 percent
    assert stderr(log_w).square().mean().sqrt() == pytest.approx(spread, rel=0.055)


# Corners


def test_zero_weights_count_as_samples():
    log_w = torch.tensor([0.6, 0.0, 0.0], dtype=torch.float64).log()

    assert log_evidence(log_w).exp() == pytest.approx(0.2)
    assert effective_sample_size(log_w) == pytest.approx(1)
    assert stderr(log_w) == pytest.approx(math.sqrt(2 / 3))
    curve = sample_size_curve(log_w.flip(0), [1, 2, 3])
    assert curve[:2].isneginf().all()
    assert curve[2].exp() == pytest.approx(0.2)


def test_all_weights_zero():
    log_w = torch.full((2, 30), -torch.inf)

    assert log_evidence(log_w).tolist() == [-math.inf] * 2
    assert effective_sample_size(log_w).tolist() == [0, 0]
    assert stderr(log_w).tolist() == [math.inf] * 2
    assert relative_variance(log_w).tolist() == [math.inf] * 2
    assert pareto_k(log_w).tolist() == [math.inf] * 2
    assert sample_size_curve(log_w, [1, 30]).isneginf().all()


def test_one_draw_shows_no_spread():
    log_w = torch.tensor([-3.0])

    assert log_evidence(log_w) == -3
    assert effective_sample_size(log_w) == 1
    assert stderr(log_w) == math.inf
    assert pareto_k(log_w) == math.inf


@pytest.mark.parametrize("function", [*POINTWISE, sample_size_curve, checked_weights])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_errors_name_the_first_offending_index(function, value):
    log_w = torch.zeros(2, 3)
    log_w[1, 1:] = value

    with pytest.raises(ValueError, match=rf"log_w\[1, 1\] is {value}"):
        function(log_w)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_no_samples_is_an_error(shape):
    with pytest.raises(ValueError, match="K >= 1"):
        log_evidence(torch.zeros(shape))


@pytest.mark.parametrize(
    "value", [[0.5], 0.5, None, np.zeros(3), torch.zeros(3, dtype=torch.long)]
)
def test_only_floating_point_tensors(value):
    with pytest.raises(TypeError, match="log_w must be a floating-point tensor"):
        log_evidence(value)


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (10, (1, 2, 5, 10)),
        (99, (1, 2, 5, 10, 20, 50, 99)),
        (1001, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1001)),
    ],
)
def test_log_grid(num_samples, expected):
    assert log_grid(num_samples) == expected


def test_log_grid_of_nothing():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        log_grid(0)


@pytest.mark.parametrize("size", [0, -1, 4])
def test_curve_refuses_sizes_it_has_no_samples_for(size):
    with pytest.raises(ValueError, match=rf"sizes\[1\] is {size}; expected 1 to 3"):
        sample_size_curve(torch.zeros(3), [1, size])


# Pareto k


@pytest.mark.parametrize("shape", [-0.5, 0.2, 0.5, 0.7, 1.0, 1.5])
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


@pytest.mark.parametrize("num_samples", [30, 34, 35, 224, 225, 226, 900, 1000])
def test_tail_is_as_long_as_that_of_arviz(num_samples):
    wide = 3 * math.sqrt(num_samples) if num_samples > 225 else num_samples / 5
    log_w = torch.linspace(-5, -1, num_samples, dtype=torch.float64)
    log_w[-math.floor(wide) + 1 :] = 0.0
    assert math.isfinite(of_arviz(log_w))
    assert pareto_k(log_w).isfinite()

    log_w[-math.floor(wide) :] = 0.0
    assert not math.isfinite(of_arviz(log_w))
    assert pareto_k(log_w) == -math.inf


def test_too_few_weights_are_unreliable():
    assert pareto_k(normal(29, seed=6)) == math.inf
    assert pareto_k(normal(30, seed=6)).isfinite()
    mostly_zero = torch.full((1000,), -torch.inf, dtype=torch.float64)
    mostly_zero[:29] = normal(29, seed=6)
    assert pareto_k(mostly_zero) == math.inf


def test_zero_weights_do_not_change_the_tail():
    log_w = normal(100, seed=7)
    zeros = torch.full((900,), -torch.inf, dtype=torch.float64)

    assert pareto_k(torch.cat([zeros, log_w])) == pareto_k(log_w)


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


@pytest.mark.parametrize("sd", [10.0, 100.0, 300.0, 1e3, 1e5])
def test_wide_tails_are_flagged_however_wide(sd):
    assert (pareto_k(normal(5, 100, seed=8, sd=sd)) > 0.7).all()


@pytest.mark.parametrize("sd", [0.5, 1.0, 2.0])
def test_intervals_of_wide_weights_hold(sd):
    """Those of 50 log-normal weights, against their mean, exp(s^2 / 2)."""
    trials = 2000
    log_w = normal(trials, 50, seed=3, sd=sd)
    off = (log_evidence(log_w) - sd**2 / 2).abs()
    drawn = stderr(log_w)
    wide = torch.tensor([log_normal_stderr(row) for row in log_w])
    degrees = np.array([degrees_of_freedom(row) for row in log_w])
    quantile = torch.from_numpy(student_t.ppf(0.975, degrees))
    margin = 2 * math.sqrt(0.05 * 0.95 / trials)
    held = off <= quantile * torch.maximum(drawn, wide)
    assert held.double().mean() > 0.95 - margin
    if sd == 2:
        narrow = off <= quantile * drawn
        assert narrow.double().mean() < 0.95 - margin, "premise: it is needed"


def test_the_error_of_log_normal_weights_by_hand():
    even = torch.tensor([0.0, 0.0, 2.0, 2.0], dtype=torch.float64)
    # The quantiles are the third and the fourth of -1, 0, 1, 3: they are 2 apart.
    uneven = torch.tensor([3.0, -1.0, 1.0, 0.0], dtype=torch.float64)
    assert log_normal_stderr(even) < 1e-6
    expected = math.sqrt(math.log1p(math.expm1(4) / 4))
    assert log_normal_stderr(uneven) == pytest.approx(expected)
    assert log_normal_stderr(uneven - 5000) == pytest.approx(expected)
    assert log_normal_stderr(torch.tensor([0.0, -math.inf, -math.inf])) == 0
    assert log_normal_stderr(torch.tensor([0.0])) == 0
    wide = torch.tensor([0.0, 0.0, 5000.0], dtype=torch.float64)
    assert log_normal_stderr(wide) == pytest.approx(5000, rel=1e-6)


# -- a ratio of two estimates from the same draws -----------------------------------


def test_the_error_of_a_ratio_counts_what_its_parts_share():
    """Against the spread over replicates, where the delta method is accurate."""
    generator = torch.Generator().manual_seed(0)
    prefix = 0.3 * torch.randn(4000, 200, generator=generator, dtype=torch.float64)
    step = 0.2 * torch.randn(4000, 200, generator=generator, dtype=torch.float64)
    log_w = prefix + step - 1.0
    ratio = log_evidence(log_w) - log_evidence(prefix)
    spread = ratio.std().item()
    claimed = log_ratio_stderr(log_w, prefix).mean().item()
    assert abs(claimed / spread - 1) < 5 / math.sqrt(2 * 4000)
    apart = (stderr(log_w) ** 2 + stderr(prefix) ** 2).sqrt().mean().item()
    assert apart > 1.5 * spread, "premise: ignoring the covariance would be wrong"


def test_the_error_of_a_ratio_is_unknown_where_it_is():
    one, zero = torch.tensor([0.0]), torch.tensor([-math.inf, -math.inf])
    assert log_ratio_stderr(one, one) == math.inf
    assert log_ratio_stderr(zero, torch.zeros(2)) == math.inf
    with pytest.raises(ValueError, match="the same draws have the same shape"):
        log_ratio_stderr(torch.zeros(2), torch.zeros(3))
