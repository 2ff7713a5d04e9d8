import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorTrajectory


def training(epochs=4, size=103, seed=0):
    """Return true log-probabilities, and a model's that come nearer."""
    generator = torch.Generator().manual_seed(seed)
    true_log_p = -3 - 40 * torch.rand(size, generator=generator, dtype=torch.float64)
    share = 1 + 1 / torch.arange(1, epochs + 1, dtype=torch.float64)
    noise = torch.randn(epochs, size, generator=generator, dtype=torch.float64)
    return true_log_p, (share[:, None] * true_log_p + noise).clamp(max=0)


@pytest.mark.parametrize("num_bins", [1, 7, 103])
def test_bins_by_brute_force(num_bins):
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


def test_fifty_bins_unless_told():
    true_log_p, model_log_p = training()
    assert len(ErrorTrajectory.of(true_log_p, model_log_p).counts) == 50


def test_bins_are_the_same_sequences_after_every_epoch():
    """Whatever the model says, errors go by the true order."""
    true_log_p = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    model_log_p = torch.tensor([[-2.0, -3, -5, -6], [-9.0, -8, -5, -4]])
    found = ErrorTrajectory.of(true_log_p, model_log_p, num_bins=2)
    assert found.mean_error == ((-2, -1), (-1, -7))
    assert found.relative_change == ((0.5, -6),)


def test_signs_of_relative_change():
    """Up is above 0, from under- and from overestimation; nothing is relative to 0."""
    true_log_p = torch.tensor([-10.0])
    errors = [-4.0, -1.0, 0.0, 2.0, 1.0, -1.0]
    model_log_p = torch.tensor(errors)[:, None] - 10

    found = ErrorTrajectory.of(true_log_p, model_log_p, num_bins=1).relative_change

    (first,), (second,), (third,), (fourth,), (fifth,) = found
    assert (first, second, fourth, fifth) == (0.75, 1, -0.5, -2)
    assert math.isnan(third)


def test_an_epoch_alone_has_no_change():
    true_log_p, model_log_p = training(epochs=1)
    assert ErrorTrajectory.of(true_log_p, model_log_p).relative_change == ()


def test_errors_name_the_epoch():
    true_log_p, model_log_p = training(epochs=3, size=4)
    broken = model_log_p.clone()
    broken[1, 2] = -math.inf
    impossible = true_log_p.clone()
    impossible[3] = -math.inf
    for columns, message in [
        ((true_log_p, broken), r"epoch 2: model_log_p\[2\] is -inf"),
        ((impossible, model_log_p), r"true_log_p\[3\] is -inf"),
        ((true_log_p, model_log_p[0]), r"\(E, N\).* got \(4,\)"),
        ((true_log_p, model_log_p[:0]), r"\(E, N\).* got \(0, 4\)"),
        ((true_log_p[:3], model_log_p), "epoch 1: true_log_p has 3 sequences and"),
        ((true_log_p, model_log_p), "4 sequences cannot fill 5 bins"),
    ]:
        with pytest.raises(ValueError, match=message):
            ErrorTrajectory.of(*columns, num_bins=5)
    with pytest.raises(ValueError, match="num_bins must be a whole number"):
        ErrorTrajectory.of(true_log_p, model_log_p, num_bins=0)
    with pytest.raises(TypeError, match="model_log_p must be a floating-point"):
        ErrorTrajectory.of(true_log_p, model_log_p.long())
