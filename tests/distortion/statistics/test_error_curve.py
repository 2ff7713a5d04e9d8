import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorCurve
from lm_latent_eval.estimators import bootstrap_interval, log_evidence, standard_errors
from lm_latent_eval.estimators import stderr as importance_stderr
from tests.means import log_normal, normal, uniform


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def language(size):
    """Return true and model log-probabilities of some sequences."""
    true_log_p = -3 - 40 * uniform(size, seed=0)
    return true_log_p, (1.1 * true_log_p + normal(size, seed=1)).clamp(max=0)


def rows_of(curve):
    return [*curve.bins.itertuples(index=False)]


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


# Bins of equal width


@pytest.mark.parametrize(
    ("sizes", "num_bins", "bins", "left_out"),
    [
        ({-9.0: 10, -1.0: 11}, 4, [(-3, -1, 11)], 10),  # ten are too few, eleven not
        ({-4.0: 11, -3.0: 12, -2.0: 13}, 2, [(-4, -3, 11), (-3, -2, 25)], 0),
        ({-2.0: 11}, 1, [(-2.5, -1.5, 11)], 0),  # all have one probability
    ],
)
def test_edges_belong_to_the_bin_above(sizes, num_bins, bins, left_out):
    true_log_p = doubles(*(p for p, count in sizes.items() for _ in range(count)))
    curve = ErrorCurve.of(true_log_p, true_log_p - 1, num_bins=num_bins, resamples=5)
    found = [*curve.bins.itertuples(index=False, name=None)]
    assert [row[:3] for row in found] == bins
    assert curve.left_out == left_out
    assert (curve.bins[["mean_error", "lower", "upper"]] == -1).all(axis=None)
    lowest, highest = curve.bins.lowest, curve.bins.highest
    assert curve.bins.mean_true_log_p.between(lowest, highest).all()


# Bins of equal count


@pytest.mark.parametrize("num_bins", [1, 3, 7, 20])
def test_bins_of_equal_count_by_brute_force(num_bins):
    """Bins that have the same errors have draws of their own."""
    true_log_p, model_log_p = language(20)
    error = model_log_p - true_log_p
    order = np.argsort(true_log_p.numpy(), kind="stable")

    curve = ErrorCurve.of(
        true_log_p, model_log_p, bins="count", num_bins=num_bins, resamples=5, seed=4
    )

    parts = np.array_split(order, num_bins)
    assert curve.bins["count"].tolist() == [len(part) for part in parts]
    assert curve.bins.mean_error.tolist() == pytest.approx(
        [error[part].mean().item() for part in parts]
    )
    for index, (part, found) in enumerate(zip(parts, rows_of(curve), strict=True)):
        ends = bootstrap_interval(error[part], seed=(4, index), resamples=5)
        assert (found.lower, found.upper) == pytest.approx(ends)
    assert curve.left_out == 0


# Bad input


OK = doubles(-1.0, -2.0)


REFUSED = [
    ((doubles(-1.0, -math.inf), OK), {}, r"true_log_p\[1\] is -inf.*no sequence"),
    ((OK, doubles(-math.inf, -1.0)), {}, r"model_log_p\[0\] is -inf.*rules the seq"),
    ((OK, doubles(0.5, -1.0)), {}, r"model_log_p\[0\] is 0.5; expected at most 0"),
    ((OK, doubles(-1.0)), {}, "2 sequences and model_log_p 1"),
    ((doubles(), doubles()), {}, "N >= 1"),
    ((torch.tensor([-1]), OK), {}, "floating-point"),
    ((OK, OK), {"num_bins": 50}, "none of 50 bins of equal width has 11"),
    ((OK, OK), {"bins": "count", "num_bins": 3}, "2 sequences cannot fill 3 bins"),
    ((OK, OK), {"num_bins": 0}, "num_bins must be a whole number"),
    ((OK, OK), {"bins": "tall"}, "tall"),
    ((OK, OK), {"bins": "count", "confidence": 1}, "confidence 1"),
    ((OK, OK), {"stderr": doubles(0.1)}, r"stderr must have shape \(2,\).* got \(1,\)"),
    ((OK, OK), {"stderr": doubles(0.1, -0.1)}, r"\[1\] is -0.1; expected finite, >= 0"),
    ((OK, OK), {"stderr": doubles(math.inf, 0.1)}, r"stderr\[0\] is inf.*draw more"),
]


@pytest.mark.parametrize(("columns", "settings", "message"), REFUSED)
def test_what_has_no_curve(columns, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ErrorCurve.of(*columns, **{"bins": "width", "num_bins": 1} | settings)


# Estimated log p_M


ONE_BIN = {"bins": "count", "num_bins": 1}


def test_monte_carlo_errors_by_hand():
    true_log_p = doubles(-4.0, -3.0, -2.0, -1.0)
    stderr = doubles(0.3, 0.4, 0.0, 0.2)

    above = doubles(-5.0, -4.0, -3.0, 0.05)  # p-hat may be more than one
    curve = ErrorCurve.of(true_log_p, above, stderr=stderr, bins="count", num_bins=2)
    low, high = rows_of(curve)
    assert (low.mean_error, low.lower, low.upper) == (-1, -1, -1), "as without"
    assert high.mean_error == pytest.approx((1.05 - 1) / 2)
    assert low.monte_carlo_stderr == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2
    assert low.estimator_bias == pytest.approx(-0.0625)  # (0.09 + 0.16) / 2 / 2
    assert high.monte_carlo_stderr == pytest.approx(0.1)
    assert high.estimator_bias == pytest.approx(-0.01)
    assert curve.monte_carlo_stderr == pytest.approx(math.sqrt(0.29) / 4)
    assert curve.estimator_bias == pytest.approx(-0.29 / 8)


@pytest.mark.parametrize(
    ("spread", "bias", "claimed"),
    [(1, -0.007, -0.008), (2, -0.112, -0.059), (3, -0.650, -0.138)],
)
def test_uneven_weights_have_more_bias_than_the_second_order(spread, bias, claimed):
    """The bound holds; the correction falls short, as the documentation says."""
    log_w = log_normal(10_000, 100, seed=0, sd=spread)
    true_log_p = torch.full((10_000,), -70.0, dtype=torch.float64)
    stderr = importance_stderr(log_w)

    model_log_p = true_log_p + log_evidence(log_w)
    curve = ErrorCurve.of(
        true_log_p, model_log_p, stderr=stderr, **ONE_BIN, resamples=2
    )

    error = log_evidence(log_w).std().item() / math.sqrt(10_000)
    assert curve.mean_error == pytest.approx(bias, abs=4 * error + 0.0005)
    error = (stderr**2 / 2).std().item() / math.sqrt(10_000)
    assert curve.estimator_bias == pytest.approx(claimed, abs=4 * error + 0.0005)
    # The model is right: it must not be blamed for what the order leaves out.
    (found,) = rows_of(curve)
    assert found.trusted == (spread == 1)
    assert not found.underestimates or spread == 1


def test_underestimation_is_called_as_often_as_the_confidence_allows():
    """Models right on average: 2.5 % are called by the upper end of a 95 % interval."""
    called = biased = 0
    trials, stderr = 800, torch.full((800,), 0.24, dtype=torch.float64)
    for trial in range(trials):
        own = normal(800, seed=trial, sd=0.1)
        # A lognormal p-hat: unbiased, and its logarithm se^2 / 2 too low.
        noise = log_normal(800, seed=trials + trial, sd=0.24)
        true_log_p, how = torch.full_like(own, -100), {"resamples": 400, "seed": trial}
        (found,) = rows_of(
            ErrorCurve.of(
                true_log_p, true_log_p + own + noise, stderr=stderr, **ONE_BIN, **how
            )
        )
        called += found.underestimates
        biased += found.upper < 0

    assert biased / trials > 0.5, "premise: uncorrected, the bias is taken for an error"
    spread = 5 * math.sqrt(0.025 * 0.975 / trials)
    assert 0.025 - spread < 0.005 < called / trials, "or the noise is counted twice"
    assert called / trials < 0.025 + spread
