"""What ``distortion_error`` takes, gives and refuses."""

import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorCurve
from tests.metrics.conftest import of


@of("distortion_error")
def test_settings_reach_the_curve(metric):
    generator = torch.Generator().manual_seed(0)
    true_log_p = -30 * torch.rand(400, generator=generator, dtype=torch.float64)
    model_log_p = 1.2 * true_log_p
    settings = {"num_bins": 5, "resamples": 100, "confidence": 0.5, "seed": 9}

    for bins in ("width", "count"):
        found = metric.compute(
            true_log_p=true_log_p,
            model_log_p=model_log_p,
            bins=bins,
            histogram_bins=3,
            **settings,
        )
        curve = ErrorCurve.of(true_log_p, model_log_p, bins=bins, **settings)
        assert [each["upper"] for each in found["bins"]] == [
            each.upper for each in curve.bins
        ]
        assert np.array(found["histogram"]["counts"]).sum() == 400
        assert len(found["histogram"]["edges"]) == 4


@of("distortion_error")
@pytest.mark.parametrize("container", [list, np.array, torch.DoubleTensor])
def test_standard_errors_reach_the_curve(metric, container):
    true_log_p = [-float(n) for n in range(1, 31)]
    model_log_p = [1.1 * log_p for log_p in true_log_p]
    stderr = [0.005 * n for n in range(30)]
    settings = {"bins": "count", "num_bins": 3, "resamples": 50}

    found = metric.compute(
        true_log_p=true_log_p,
        model_log_p=model_log_p,
        stderr=container(stderr),
        **settings,
    )

    columns = torch.tensor([true_log_p, model_log_p, stderr], dtype=torch.float64)
    curve = ErrorCurve.of(*columns[:2], stderr=columns[2], **settings)
    for each in ("monte_carlo_stderr", "estimator_bias"):
        assert found[each] == getattr(curve, each) != 0
        assert [b[each] for b in found["bins"]] == [
            getattr(b, each) for b in curve.bins
        ]
    assert [b["underestimates"] for b in found["bins"]] == [True] * 3


@of("distortion_error")
def test_standard_errors_by_hand(metric):
    """0.6 and 1.2 nats a sequence explain 0.45 of a mean error of -0.125: all of it."""
    columns = {
        "true_log_p": [-1.0] * 1100 + [-3.0] * 1100,
        "model_log_p": [-1.5] * 1100 + [-2.75] * 1100,
    }
    settings = {"bins": "count", "num_bins": 1, "resamples": 100}

    (exact,) = metric.compute(**columns, **settings)["bins"]
    found = metric.compute(**columns, **settings, stderr=[0.6] * 1100 + [1.2] * 1100)

    (only,) = found["bins"]
    for each in (found, only):
        assert each["mean_error"] == exact["mean_error"] == -0.125
        expected = math.sqrt(1100 * (0.36 + 1.44)) / 2200
        assert each["monte_carlo_stderr"] == pytest.approx(expected)
        assert each["estimator_bias"] == pytest.approx(-0.45)
    assert (exact["upper"], exact["estimator_bias"]) == (only["upper"], 0)
    assert exact["underestimates"] and not only["underestimates"]


@of("distortion_error")
def test_distortion_refusals(metric):
    ok = {
        "true_log_p": [-1.0] * 11,
        "model_log_p": [-2.0] * 11,
        "resamples": 10,
    }
    metric.compute(**ok)
    for changed, message in [
        ({"model_log_p": [-2.0] * 10 + [-math.inf]}, r"model_log_p\[10\] is -inf"),
        ({"true_log_p": [-2.0] * 10 + [-math.inf]}, r"true_log_p\[10\] is -inf"),
        ({"true_log_p": [-2.0]}, "Mismatch"),
        ({"true_log_p": [-2.0], "model_log_p": [-1.0]}, "none of 50 bins"),
        ({"bins": "count", "num_bins": 12}, "11 sequences cannot fill 12 bins"),
        ({"bins": "round"}, "'round' is not a valid Bins"),
        ({"resamples": 0}, "resamples must be a whole number, at least 1; got 0"),
        ({"resamples": 10.0}, "resamples must be a whole number"),
        ({"num_bins": 2.0}, "num_bins must be a whole number, at least 1; got 2.0"),
        ({"histogram_bins": 2.0}, "num_bins must be a whole number"),
        ({"model_log_p": [-2.0] * 10 + [None]}, r"model_log_p\[10\] is missing"),
        ({"stderr": [0.1] * 10 + [None]}, r"stderr\[10\] is missing"),
        ({"stderr": [0.1] * 10 + [-0.1]}, r"stderr\[10\] is -0.1"),
        ({"stderr": [0.1] * 10}, r"stderr must have shape \(11,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            metric.compute(**{**ok, **changed})
