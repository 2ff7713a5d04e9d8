"""Distortion error as a metric function."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch

from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.distortion.statistics.bins import FEWEST
from lm_latent_eval.metric_functions.columns import complete, known, present

COLUMNS = ("true_log_p", "model_log_p", "stderr")


def distortion_error(**inputs: Any) -> dict[str, Any]:
    """Compute what the ``evaluate`` module of that name does; see its card.

    Args:
        inputs: Those of the module's ``compute``.

    Example:
        >>> found = distortion_error(
        ...     true_log_p=[-1.0, -2.0, -3.0, -4.0],
        ...     model_log_p=[-1.0, -2.5, -3.5, -6.0],
        ...     bins="count",
        ...     num_bins=2,
        ... )
        >>> found["mean_error"]
        -0.75
    """
    columns, facts = prepare(inputs)
    return {**compute(**columns), **facts}


def prepare(
    inputs: dict[str, Any], *, stored: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of ``compute``, and facts; see ``metric_functions``."""
    inputs = known(inputs, compute, ErrorCurve.of)
    return complete(inputs, COLUMNS[:2], COLUMNS[2:], stored=stored), {}


def compute(
    true_log_p: Any,
    model_log_p: Any,
    stderr: Any,
    histogram_bins: Any = 50,
    **settings: Any,
) -> dict[str, Any]:
    """Compute the error curve of two columns of log-probabilities."""
    columns = _column(true_log_p, "true_log_p"), _column(model_log_p, "model_log_p")
    if any(error is not None for error in stderr):
        settings["stderr"] = _column(stderr, "stderr")
    curve = ErrorCurve.of(*columns, **settings)
    histogram = JointHistogram.of(*columns, num_bins=histogram_bins)
    bins = curve.bins.drop(columns="trusted").astype({"underestimates": object})
    bins.loc[bins["count"] < FEWEST, ["lower", "upper"]] = math.nan
    return {
        **vars(curve),
        "bins": bins.astype(object).where(bins.notna(), None).to_dict("records"),
        "histogram": asdict(histogram),
    }


def _column(values: Any, name: Any) -> Any:
    return torch.as_tensor(present(values, name), dtype=torch.float64)
