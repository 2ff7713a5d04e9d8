import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    JointHistogram,
    estimation_error,
)
from lm_latent_eval.estimators import bootstrap_interval, log_evidence, standard_errors
from lm_latent_eval.estimators import stderr as importance_stderr


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def language(size, seed=0):
    """Return true and model log-probabilities of some sequences."""
    generator = torch.Generator().manual_seed(seed)
    true_log_p = -3 - 40 * torch.rand(size, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, generator=generator, dtype=torch.float64)
    return true_log_p, (1.1 * true_log_p + noise).clamp(max=0)


# The bootstrap


def test_interval_has_the_quantiles_of_every_resample():
    """All 256 resamples of four values give the distribution that is sampled."""
    values = doubles(0.0, 1.0, 10.0, 100.0)
    means = values[torch.cartesian_prod(*[torch.arange(4)] * 4)].mean(-1)
    resamples = 10_000

    ends = bootstrap_interval(values, seed=3, resamples=resamples, confidence=0.8)

    spread = 5 * math.sqrt(0.1 * 0.9 / resamples)
    for end, chance in zip(ends, (0.1, 0.9), strict=True):
        below = (means < end - 1e-9).double().mean().item()
        up_to = (means <= end + 1e-9).double().mean().item()
        assert below - spread < chance < up_to + spread
    assert ends[1] - ends[0] > 20, "premise: an interval that can be wrong"


def test_pieces_move_no_number(monkeypatch):
    values, _ = language(37)
    whole = bootstrap_interval(values, seed=1, resamples=501)
    for drawn_at_once in (1, 37 * 7, 37 * 100):
        monkeypatch.setattr(standard_errors, "DRAWN_AT_ONCE", drawn_at_once)
        assert bootstrap_interval(values, seed=1, resamples=501) == whole
    assert bootstrap_interval(values, seed=2, resamples=501) != whole


def test_interval_is_as_wide_as_the_standard_error_says():
    values, _ = language(2000)
    lower, upper = bootstrap_interval(values, seed=0)

    error = values.std(correction=0).item() / math.sqrt(2000)
    assert (upper - lower) / (2 * 1.96 * error) == pytest.approx(1, abs=0.05)
    assert lower < values.mean() < upper


def test_bootstraps_of_nothing():
    with pytest.raises(ValueError, match="0 values"):
        bootstrap_interval(doubles(), seed=0)
    with pytest.raises(ValueError, match="confidence 1"):
        bootstrap_interval(doubles(1.0), seed=0, confidence=1)


# Bins of equal width


def test_bins_of_equal_width_by_brute_force():
    true_log_p, model_log_p = language(300)
    error = model_log_p - true_log_p
    low, high = true_log_p.min().item(), true_log_p.max().item()
    width = (high - low) / 12

    curve = ErrorCurve.of(true_log_p, model_log_p, num_bins=12, resamples=50)

    expected = []
    for i in range(12):
        last = i == 11
        inside = [
            n
            for n, log_p in enumerate(true_log_p.tolist())
            if low + i * width <= log_p and (last or log_p < low + (i + 1) * width)
        ]
        if len(inside) > 10:
            expected.append((len(inside), error[inside].mean().item()))
    assert [b.count for b in curve.bins] == [count for count, _ in expected]
    assert [b.mean_error for b in curve.bins] == pytest.approx(
        [mean for _, mean in expected]
    )
    assert curve.left_out == 300 - sum(count for count, _ in expected)
    assert curve.mean_error == pytest.approx(error.mean().item())
    for b in curve.bins:
        assert b.lowest <= b.mean_true_log_p <= b.highest
        assert b.lower < b.mean_error < b.upper


def test_more_than_ten_and_empty_bins():
    """Ten sequences are too few, eleven are not; the gap between has none."""
    true_log_p = doubles(*[-9.0] * 10, *[-1.0] * 11)

    curve = ErrorCurve.of(true_log_p, true_log_p - 1, num_bins=4, resamples=5)

    assert [b.count for b in curve.bins] == [11] and curve.left_out == 10
    assert (curve.bins[0].lowest, curve.bins[0].highest) == (-3, -1)


def test_an_edge_belongs_to_the_bin_above_it():
    true_log_p = doubles(*[-4.0] * 11, *[-3.0] * 12, *[-2.0] * 13)
    curve = ErrorCurve.of(true_log_p, true_log_p, num_bins=2, resamples=5)
    assert [b.count for b in curve.bins] == [11, 25]
    assert [(b.lowest, b.highest) for b in curve.bins] == [(-4, -3), (-3, -2)]


def test_equal_probabilities_share_a_bin():
    curve = ErrorCurve.of(doubles(*[-2.0] * 11), doubles(*[-2.5] * 11), num_bins=3)
    (only,) = curve.bins
    assert (only.count, only.mean_error, only.lower, only.upper) == (
        11,
        -0.5,
        -0.5,
        -0.5,
    )


# Bins of equal count


@pytest.mark.parametrize("num_bins", [1, 3, 7, 20])
def test_bins_of_equal_count_by_brute_force(num_bins):
    true_log_p, model_log_p = language(20)
    error = (model_log_p - true_log_p).numpy()
    order = np.argsort(true_log_p.numpy(), kind="stable")

    curve = ErrorCurve.of(
        true_log_p, model_log_p, bins="count", num_bins=num_bins, resamples=5
    )

    parts = np.array_split(order, num_bins)
    assert [b.count for b in curve.bins] == [len(part) for part in parts]
    assert [b.mean_error for b in curve.bins] == pytest.approx(
        [error[part].mean() for part in parts]
    )
    assert curve.left_out == 0
    sizes = {b.count for b in curve.bins}
    assert max(sizes) - min(sizes) <= 1


def test_bins_draw_for_themselves():
    """The interval of a bin depends on its sequences and place, not on the others."""
    true_log_p, model_log_p = language(40)
    order = true_log_p.argsort()
    true_log_p, model_log_p = true_log_p[order], model_log_p[order]
    changed = model_log_p.clone()
    changed[20:] -= 5

    one = ErrorCurve.of(true_log_p, model_log_p, bins="count", num_bins=2, seed=4)
    other = ErrorCurve.of(true_log_p, changed, bins="count", num_bins=2, seed=4)

    assert one.bins[0] == other.bins[0]
    assert one.bins[1].mean_error - other.bins[1].mean_error == pytest.approx(5)


def test_bins_do_not_share_their_draws():
    """Two bins with the same errors in the same order have intervals of their own."""
    errors = -(torch.arange(15, dtype=torch.float64) ** 1.5)
    true_log_p = doubles(*[-9.0] * 15, *[-1.0] * 15)

    low, high = ErrorCurve.of(
        true_log_p, true_log_p + errors.repeat(2), num_bins=2
    ).bins

    assert low.mean_error == high.mean_error
    assert (low.lower, low.upper) != (high.lower, high.upper)
    width = high.upper - high.lower
    assert low.upper == pytest.approx(high.upper, abs=0.05 * width)


@given(st.integers(1, 60), st.integers(0, 5))
def test_order_moves_nothing_but_rounding(size, seed):
    true_log_p, model_log_p = language(size, seed)
    shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    both = [
        ErrorCurve.of(t, m, bins="count", num_bins=min(size, 4), resamples=2)
        for t, m in (
            (true_log_p, model_log_p),
            (true_log_p[shuffled], model_log_p[shuffled]),
        )
    ]
    one, other = (
        [(b.lowest, b.highest, b.count, b.mean_error) for b in curve.bins]
        for curve in both
    )
    assert np.array(one) == pytest.approx(np.array(other))
    assert both[0].share_underestimated == both[1].share_underestimated


# Signs, shares, the histogram


def test_negative_is_underestimated():
    true_log_p = doubles(-2.0, -3.0, -4.0, -5.0)
    model_log_p = doubles(-2.5, -3.0, -3.5, -9.0)

    curve = ErrorCurve.of(true_log_p, model_log_p, bins="count", num_bins=1)

    assert estimation_error(true_log_p, model_log_p).tolist() == [-0.5, 0, 0.5, -4]
    assert curve.mean_error == -1
    assert curve.share_underestimated == 0.5, "an exact estimate is not below"
    assert curve.share_stderr == 0.25


def test_mean_error_on_draws_is_minus_the_divergence():
    """With every sequence as often as its probability says."""
    p, q = doubles(0.5, 0.25, 0.125, 0.125), doubles(0.25, 0.25, 0.375, 0.125)
    counts = torch.tensor([4, 2, 1, 1])
    drawn = [log.repeat_interleave(counts) for log in (p.log(), q.log())]

    curve = ErrorCurve.of(*drawn, bins="count", num_bins=2, resamples=2)

    divergence = (p * (p / q).log()).sum().item()
    assert curve.mean_error == pytest.approx(-divergence)


def test_histogram_agrees_with_numpy():
    true_log_p, model_log_p = language(500)

    found = JointHistogram.of(true_log_p, model_log_p, num_bins=9)

    counts, _, _ = np.histogram2d(
        true_log_p.numpy(), model_log_p.numpy(), bins=[np.array(found.edges)] * 2
    )
    assert found.counts == tuple(tuple(map(int, row)) for row in counts)
    assert sum(itertools.chain(*found.counts)) == 500
    both = torch.cat([true_log_p, model_log_p])
    assert (found.edges[0], found.edges[-1]) == (both.min(), both.max())


# Bad input


def test_errors_say_what_is_wrong():
    ok = doubles(-1.0, -2.0)
    with pytest.raises(ValueError, match=r"true_log_p\[1\] is -inf.*no sequence"):
        estimation_error(doubles(-1.0, -math.inf), ok)
    with pytest.raises(ValueError, match=r"model_log_p\[0\] is -inf.*rules the seq"):
        estimation_error(ok, doubles(-math.inf, -1.0))
    with pytest.raises(ValueError, match=r"model_log_p\[0\] is 0.5; expected finite"):
        estimation_error(ok, doubles(0.5, -1.0))
    with pytest.raises(ValueError, match="2 sequences and model_log_p 1"):
        estimation_error(ok, doubles(-1.0))
    with pytest.raises(ValueError, match="N >= 1"):
        estimation_error(doubles(), doubles())
    with pytest.raises(TypeError, match="floating-point"):
        estimation_error(torch.tensor([-1]), ok)
    with pytest.raises(ValueError, match="none of 50 bins of equal width has 11"):
        ErrorCurve.of(ok, ok)
    with pytest.raises(ValueError, match="2 sequences cannot fill 3 bins"):
        ErrorCurve.of(ok, ok, bins="count", num_bins=3)
    with pytest.raises(ValueError, match="num_bins must be a whole number"):
        ErrorCurve.of(ok, ok, num_bins=0)
    with pytest.raises(ValueError, match="num_bins must be a whole number"):
        JointHistogram.of(ok, ok, num_bins=0)
    with pytest.raises(ValueError, match="tall"):
        ErrorCurve.of(ok, ok, bins="tall")


# Estimated log p_M


def estimates(error, stderr, seed=0):
    """Estimate log p_M by a lognormal p-hat: unbiased, log p-hat se^2 / 2 too low."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(error.shape, generator=generator, dtype=torch.float64)
    true_log_p = torch.full_like(error, -100)
    return true_log_p, true_log_p + error - stderr**2 / 2 + stderr * noise


def test_monte_carlo_errors_by_hand():
    true_log_p = doubles(-4.0, -3.0, -2.0, -1.0)
    stderr = doubles(0.3, 0.4, 0.0, 0.2)

    curve = ErrorCurve.of(
        true_log_p, true_log_p - 1, stderr=stderr, bins="count", num_bins=2
    )

    low, high = curve.bins
    assert low.monte_carlo_stderr == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2
    assert low.estimator_bias == pytest.approx(-0.0625)  # (0.09 + 0.16) / 2 / 2
    assert high.monte_carlo_stderr == pytest.approx(0.1)
    assert high.estimator_bias == pytest.approx(-0.01)
    assert curve.monte_carlo_stderr == pytest.approx(math.sqrt(0.29) / 4)
    assert curve.estimator_bias == pytest.approx(-0.29 / 8)


def test_standard_errors_move_nothing_else():
    true_log_p, model_log_p = language(300)
    settings = {"num_bins": 12, "resamples": 50}
    plain = ErrorCurve.of(true_log_p, model_log_p, **settings)
    zero = torch.zeros(300)
    assert ErrorCurve.of(true_log_p, model_log_p, stderr=zero, **settings) == plain
    for each in (plain, *plain.bins):
        assert (each.monte_carlo_stderr, str(each.estimator_bias)) == (0, "0.0")

    noisy = ErrorCurve.of(true_log_p, model_log_p, stderr=zero + 0.5, **settings)
    assert noisy.mean_error == plain.mean_error
    for one, other in zip(noisy.bins, plain.bins, strict=True):
        assert (one.mean_error, one.lower, one.upper) == (
            other.mean_error,
            other.lower,
            other.upper,
        )


def test_bias_and_error_of_importance_sampling():
    """A model without errors of its own: all that is seen is the estimator's."""
    generator = torch.Generator().manual_seed(0)
    log_w = torch.empty(60_000, 50, dtype=torch.float64)
    log_w.normal_(-(0.5**2) / 2, 0.5, generator=generator)  # weights of mean 1
    true_log_p = torch.full((60_000,), -70.0, dtype=torch.float64)

    curve = ErrorCurve.of(
        true_log_p,
        true_log_p + log_evidence(log_w),
        stderr=importance_stderr(log_w),
        bins="count",
        num_bins=1,
        resamples=500,
    )

    tolerance = 4 * curve.monte_carlo_stderr
    assert curve.estimator_bias < -2 * tolerance, "premise: a bias that would be missed"
    assert abs(curve.mean_error - curve.estimator_bias) < tolerance
    (only,) = curve.bins
    width = (only.upper - only.lower) / (2 * 1.96)  # holds the Monte Carlo error, once
    assert width / only.monte_carlo_stderr == pytest.approx(1, abs=0.12)
    assert only.upper < 0 and not only.underestimates


@pytest.mark.parametrize(
    ("spread", "bias", "claimed"),
    [(1, -0.007, -0.008), (2, -0.112, -0.059), (3, -0.650, -0.138)],
)
def test_uneven_weights_have_more_bias_than_the_second_order(spread, bias, claimed):
    """The bound holds; the correction falls short, as the documentation says."""
    generator = torch.Generator().manual_seed(0)
    log_w = torch.empty(10_000, 100, dtype=torch.float64)
    log_w.normal_(-(spread**2) / 2, spread, generator=generator)
    true_log_p = torch.full((10_000,), -70.0, dtype=torch.float64)
    stderr = importance_stderr(log_w)

    curve = ErrorCurve.of(
        true_log_p,
        true_log_p + log_evidence(log_w),
        stderr=stderr,
        bins="count",
        num_bins=1,
        resamples=2,
    )

    error = log_evidence(log_w).std().item() / math.sqrt(10_000)
    assert curve.mean_error == pytest.approx(bias, abs=4 * error + 0.0005)
    error = (stderr**2 / 2).std().item() / math.sqrt(10_000)
    assert curve.estimator_bias == pytest.approx(claimed, abs=4 * error + 0.0005)
    # The model is right: it must not be blamed for what the order leaves out.
    (found,) = curve.bins
    assert found.trusted == (spread == 1)
    assert not found.underestimates or spread == 1


def test_underestimation_is_called_as_often_as_the_confidence_allows():
    """Models right on average: 2.5 % are called by the upper end of a 95 % interval."""
    called = biased = 0
    trials, stderr = 800, torch.full((800,), 0.24, dtype=torch.float64)
    for trial in range(trials):
        generator = torch.Generator().manual_seed(trial)
        own = 0.1 * torch.randn(800, generator=generator, dtype=torch.float64)
        (found,) = ErrorCurve.of(
            *estimates(own, stderr, seed=trials + trial),
            stderr=stderr,
            bins="count",
            num_bins=1,
            resamples=400,
            seed=trial,
        ).bins
        called += found.underestimates
        biased += found.upper < 0

    assert biased / trials > 0.5, "premise: uncorrected, the bias is taken for an error"
    spread = 5 * math.sqrt(0.025 * 0.975 / trials)
    assert 0.025 - spread < 0.005 < called / trials, "or the noise is counted twice"
    assert called / trials < 0.025 + spread


def test_underestimation_of_the_model_is_seen_through_the_noise():
    stderr = torch.full((400,), 0.2, dtype=torch.float64)
    for own, expected in [(-0.3, True), (0.0, False), (0.3, False)]:
        columns = estimates(torch.full_like(stderr, own), stderr)
        (found,) = ErrorCurve.of(*columns, stderr=stderr, num_bins=1, bins="count").bins
        assert found.underestimates is expected
        assert found.lower < own - 0.02 < found.upper, "the interval is of estimates"


def test_an_estimate_may_be_above_one():
    """p-hat is unbiased: of a probability near one it may be more."""
    true_log_p, model_log_p = doubles(-0.1, -0.2), doubles(0.05, -0.2)
    stderr = doubles(0.2, 0.1)
    curve = ErrorCurve.of(
        true_log_p, model_log_p, stderr=stderr, bins="count", num_bins=1
    )
    assert curve.mean_error == pytest.approx(0.075)
    with pytest.raises(ValueError, match=r"model_log_p\[0\] is 0.05; expected finite"):
        ErrorCurve.of(true_log_p, model_log_p, bins="count", num_bins=1)


def test_standard_errors_that_are_none():
    ok = doubles(-1.0, -2.0)
    for stderr, error, message in [
        (doubles(0.1), ValueError, r"stderr must have shape \(2,\).* got \(1,\)"),
        (doubles(0.1, -0.1), ValueError, r"stderr\[1\] is -0.1; expected finite, >= 0"),
        (doubles(math.nan, 0.1), ValueError, r"stderr\[0\] is nan"),
        (doubles(math.inf, 0.1), ValueError, r"stderr\[0\] is inf.*draw more"),
        (torch.tensor([0, 1]), TypeError, "stderr must be a floating-point"),
    ]:
        with pytest.raises(error, match=message):
            ErrorCurve.of(ok, ok, stderr=stderr, bins="count", num_bins=1)
