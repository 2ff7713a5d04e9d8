"""Why the number of samples comes from a pilot: every true log p(x) here is 0."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_latent_eval.estimators import (
    certified_log_likelihood,
    enough_samples,
    log_evidence,
    required_num_samples,
    sample_size_curve,
    stderr,
)

MAXIMUM = 100
PILOT = 10


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def now_and_then_dead(*shape, seed):
    """Log-weights of mean 1, one in ten nearly zero."""
    dead = torch.rand(shape, generator=seeded(seed), dtype=torch.float64) < 0.1
    return torch.where(dead, 1e-3, (1 - 1e-4) / 0.9).log()


def long_tailed(*shape, seed):
    """Log-normal weights of mean 1."""
    noise = torch.randn(shape, generator=seeded(seed), dtype=torch.float64)
    return noise - 0.5


def looks_precise(mean, error):
    return error < 0.1


def looks_high(mean, error):
    return mean > 1


def stopped(log_w, rule):
    """Return p-hat and k at the first k >= PILOT that a rule likes, or the last."""
    k = torch.arange(1, log_w.shape[-1] + 1)
    mean = sample_size_curve(log_w, k.tolist()).exp()
    mean_square = sample_size_curve(2 * log_w, k.tolist()).exp()
    error = ((mean_square / mean.square() - 1).clamp(min=0) / k).sqrt()
    stop = rule(mean, error) & (k >= PILOT)
    stop[..., -1] = True
    first = stop.double().argmax(-1, keepdim=True)
    return mean.gather(-1, first)[..., 0], first[..., 0] + 1.0


def piloted(pilot_log_w, fresh_log_w):
    """Return p-hat from fresh draws at the K that a pilot chooses."""
    num_samples = required_num_samples(pilot_log_w, 0.1, maximum=MAXIMUM)
    curve = sample_size_curve(fresh_log_w, range(1, MAXIMUM + 1))
    return curve.gather(-1, num_samples[..., None] - 1)[..., 0].exp()


def z_score(sample, mean):
    return ((sample.mean() - mean) / (sample.std() / math.sqrt(sample.numel()))).item()


def test_running_error_is_the_librarys():
    log_w = long_tailed(3, 50, seed=0)

    estimate, _ = stopped(log_w, lambda mean, error: error < -1)

    torch.testing.assert_close(estimate, log_evidence(log_w).exp())
    assert (stopped(log_w, lambda m, e: e <= stderr(log_w)[:, None])[1] <= 50).all()


@pytest.mark.parametrize(
    ("weights", "rule", "direction"),
    [
        (now_and_then_dead, looks_precise, +1),
        (now_and_then_dead, looks_high, +1),
        (long_tailed, looks_high, +1),
        (long_tailed, looks_precise, -1),
    ],
)
def test_stopping_on_the_running_estimate_biases_it(weights, rule, direction):
    estimate, stopping_time = stopped(weights(20_000, MAXIMUM, seed=1), rule)

    assert direction * z_score(estimate, 1) > 5
    assert abs(z_score(estimate * stopping_time - stopping_time, 0)) < 5, "Wald"


@pytest.mark.parametrize("weights", [now_and_then_dead, long_tailed])
def test_pilot_and_fresh_draws_are_unbiased(weights):
    estimate = piloted(weights(20_000, PILOT, seed=2), weights(20_000, MAXIMUM, seed=3))

    tolerance = estimate.std().item() / math.sqrt(len(estimate))
    assert tolerance < 0.003, "premise: the bias of stopping would show"
    assert abs(estimate.mean().item() - 1) < 5 * tolerance


def test_an_estimate_that_includes_its_pilot_is_biased():
    pilot = now_and_then_dead(20_000, PILOT, seed=4)
    fresh = now_and_then_dead(20_000, MAXIMUM, seed=5)
    num_samples = required_num_samples(pilot, 0.1, maximum=MAXIMUM, minimum=PILOT)
    curve = sample_size_curve(torch.cat([pilot, fresh], -1)[:, :MAXIMUM], range(1, 101))

    estimate = curve.gather(-1, num_samples[:, None] - 1)[:, 0].exp()

    assert z_score(estimate, 1) > 5


def test_stopping_voids_the_certificate_and_a_pilot_keeps_it():
    corpora, texts = 200, 300
    log_w = now_and_then_dead(corpora, texts, MAXIMUM, seed=6)
    stop, _ = stopped(log_w, looks_precise)
    pilot = piloted(now_and_then_dead(corpora, texts, PILOT, seed=7), log_w)

    def violations(estimate):
        bounds = [certified_log_likelihood(row.log()) for row in estimate]
        return sum(bound > 0 for bound in bounds) / corpora

    margin = 5 * math.sqrt(0.05 * 0.95 / corpora)
    assert violations(stop) > 0.05 + margin
    assert violations(stop) > 0.5
    assert violations(pilot) <= 0.05


def test_reaches_the_target():
    # 400 weights know a variance of e - 1 well enough on average
    pilot, fresh = long_tailed(500, 2000, seed=8), long_tailed(500, 2000, seed=9)
    num_samples = required_num_samples(pilot, 0.05, maximum=2000)

    curve = sample_size_curve(fresh, range(1, 2001))
    estimate = curve.gather(-1, num_samples[:, None] - 1)[:, 0]

    assert (num_samples < 2000).double().mean() > 0.95, "premise: seldom cut off"
    # 500 inputs know their spread to 3.2 percent
    assert estimate.std().item() == pytest.approx(0.05, rel=0.16)


@settings(deadline=None)
@given(
    row=st.lists(st.floats(-5, 5), min_size=2, max_size=40).filter(
        lambda row: max(row) - min(row) > 0.1
    )
)
def test_a_pilot_that_reached_the_target_asks_for_itself(row):
    pilot = torch.tensor(row, dtype=torch.float64)

    chosen = required_num_samples(pilot, stderr(pilot).item(), maximum=1000)

    assert chosen.item() == len(row)


def test_rows_are_inputs_and_limits_are_kept():
    pilot = torch.stack(
        [
            torch.tensor([1.0, 3.0, 1.0, 3.0]),  # variance 1/4
            torch.tensor([1.0, 1.0, 1.0, 1.0]),
            torch.tensor([0.0, 0.0, 0.0, 1.0]),  # variance 3
            torch.tensor([0.0, 0.0, 0.0, 0.0]),
        ]
    ).double()

    chosen = required_num_samples(pilot.log(), 0.1, maximum=200, minimum=4)

    assert chosen.tolist() == [25, 4, 200, 200]
    assert chosen.dtype == torch.int64
    assert required_num_samples(torch.zeros(1), 0.1, maximum=50) == 50


@pytest.mark.parametrize("target", [0.0, -0.1, math.inf, math.nan])
def test_target_is_an_error_in_nats(target):
    with pytest.raises(ValueError, match="target_stderr must be above 0"):
        required_num_samples(torch.zeros(5), target, maximum=10)


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 5), (6, 5)])
def test_limits_are_limits(minimum, maximum):
    with pytest.raises(ValueError, match="1 <= minimum <= maximum"):
        required_num_samples(torch.zeros(5), 0.1, maximum=maximum, minimum=minimum)


def test_pilot_weights_are_checked():
    with pytest.raises(ValueError, match=r"log_w\[1\] is nan"):
        required_num_samples(torch.tensor([0.0, math.nan]), 0.1, maximum=5)


@pytest.mark.parametrize("draws", [0.0, 0.1, math.inf])
@pytest.mark.parametrize("texts", [0.0, 0.2, math.inf])
def test_errors_must_be_known(draws, texts):
    if (draws, texts) == (0.1, 0.2):
        assert enough_samples(100, draws, texts) == 625
        return
    with pytest.raises(ValueError, match=f"finite; got {draws}, {texts}"):
        enough_samples(100, draws, texts)
