import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorTrajectory, LengthErrors
from lm_latent_eval.estimators import bootstrap_interval
from tests.means import normal, uniform

# By length


def test_lengths_by_brute_force():
    """Where long sequences are worse than their length explains."""
    num_tokens = (1 + 11 * uniform(300, seed=0)).int()
    true_log_p, noise = -3.0 * num_tokens.double(), normal(300, seed=1)
    model_log_p = (true_log_p - 0.05 * num_tokens**2 + noise).clamp(max=0)
    errors = (model_log_p - true_log_p).tolist()
    by_length = {}
    for error, length in zip(errors, num_tokens.tolist(), strict=True):
        by_length.setdefault(length, []).append(error)
    fewest = sorted(map(len, by_length.values()))[3]
    settings = {"resamples": 200, "confidence": 0.9}

    found = LengthErrors.of(
        true_log_p, model_log_p, num_tokens, fewest=fewest, seed=5, **settings
    )

    ratios = [e / n for e, n in zip(errors, num_tokens.tolist(), strict=True)]
    assert found.token_error == pytest.approx(sum(ratios) / len(ratios))
    kept = {n: e for n, e in sorted(by_length.items()) if len(e) >= fewest}
    assert 0 < len(kept) < len(by_length), "premise"
    assert found.left_out == 300 - sum(map(len, kept.values()))
    assert [each.num_tokens for each in found.lengths] == [*kept]
    for each, (length, members) in zip(found.lengths, kept.items(), strict=True):
        assert each.count == len(members)
        assert each.mean_error == pytest.approx(sum(members) / len(members))
        assert each.expected == pytest.approx(length * sum(ratios) / len(ratios))
        ends = bootstrap_interval(torch.tensor(members), seed=(5, length), **settings)
        assert (each.lower, each.upper) == pytest.approx(ends)


def test_columns_without_lengths():
    ok, lengths = torch.tensor([-1.0] * 11), torch.tensor([2] * 11)
    LengthErrors.of(ok, ok, lengths, resamples=2)
    for columns, fewest, message in (
        ((ok[:10], ok[:10], lengths[:10]), 11, "no length has 11 of the 10 sequences"),
        ((ok, ok, lengths - 2), 11, r"num_tokens\[0\] is 0; expected at least 1"),
        ((ok, ok, lengths), 0, "fewest must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            LengthErrors.of(*columns, fewest=fewest)


# Over training


def training(epochs=4, size=103):
    """Return true log-probabilities, and a model's that come nearer."""
    true_log_p = -3 - 40 * uniform(size, seed=0)
    share = 1 + 1 / torch.arange(1, epochs + 1, dtype=torch.float64)
    noise = normal(epochs, size, seed=1)
    return true_log_p, (share[:, None] * true_log_p + noise).clamp(max=0)


@pytest.mark.parametrize("num_bins", [1, 7, 103])
def test_epochs_by_brute_force(num_bins):
    true_log_p, model_log_p = training()
    error = (model_log_p - true_log_p).numpy()
    parts = np.array_split(np.argsort(true_log_p.numpy(), kind="stable"), num_bins)

    found = ErrorTrajectory.of(true_log_p, model_log_p, num_bins)

    assert found.counts == tuple(map(len, parts))
    means = [true_log_p.numpy()[part].mean() for part in parts]
    assert found.mean_true_log_p == pytest.approx(means)
    assert means == sorted(means)
    expected = np.array([[row[part].mean() for part in parts] for row in error])
    assert np.array(found.mean_error) == pytest.approx(expected)
    assert found.overall == pytest.approx(error.mean(-1))
    change = (expected[1:] - expected[:-1]) / np.abs(expected[:-1])
    assert np.array(found.relative_change) == pytest.approx(change)


def test_signs_of_relative_change():
    """Up is above 0, from under- and from overestimation; nothing is relative to 0."""
    true_log_p = torch.tensor([-10.0])
    errors = [-4.0, -1.0, 0.0, 2.0, 1.0, -1.0]
    model_log_p = torch.tensor(errors)[:, None] - 10

    found = ErrorTrajectory.of(true_log_p, model_log_p, num_bins=1).relative_change

    (first,), (second,), (third,), (fourth,), (fifth,) = found
    assert (first, second, fourth, fifth) == (0.75, 1, -0.5, -2)
    assert math.isnan(third)


def test_errors_name_the_epoch():
    true_log_p, model_log_p = training(epochs=3, size=4)
    broken = model_log_p.clone()
    broken[1, 2] = -math.inf
    for columns, message in [
        ((true_log_p, broken), r"epoch 2: model_log_p\[2\] is -inf"),
        ((true_log_p, model_log_p[:0]), r"\(E, N\).* got \(0, 4\)"),
        ((true_log_p[:3], model_log_p), "epoch 1: true_log_p has 3 sequences and"),
        ((true_log_p, model_log_p), "4 sequences cannot fill 5 bins"),
    ]:
        with pytest.raises(ValueError, match=message):
            ErrorTrajectory.of(*columns, num_bins=5)
