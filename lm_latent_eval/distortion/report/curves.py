"""Curves: error by true log-probability and by length (figures 11 and 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lm_latent_eval.distortion.report.style import (
    ERROR,
    TRUTH,
    plot_band,
    zero_line,
)
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    LengthErrors,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = {"exact": "black", "estimated": "#0072b2", "corrected": "#d55e00"}


def plot_curves(
    ax: Axes, curves: Mapping[str, ErrorCurve], colour_of: Mapping[str, str]
) -> None:
    """Draw mean errors at the mean log p_L of their bins, and the line of no error."""
    for name, curve in curves.items():
        x = [each.mean_true_log_p for each in curve.bins]
        plot_band(ax, x, curve.bins, color=colour_of[name], label=name)
    zero_line(ax)
    ax.set_xlabel(TRUTH)
    ax.set_ylabel(ERROR)


def plot_corrected(ax: Axes, curve: ErrorCurve, exact: ErrorCurve) -> None:
    """Draw estimates and, dashed, the same less the estimator's bias."""
    plot_curves(ax, {"exact": exact, "estimated": curve}, COLOURS)
    ax.plot(
        [each.mean_true_log_p for each in curve.bins],
        [each.mean_error - each.estimator_bias for each in curve.bins],
        "--",
        marker="D" if len(curve.bins) == 1 else "",
        color=COLOURS["corrected"],
        linewidth=1,
        label="estimated, corrected to second order",
    )


def plot_lengths(ax: Axes, errors: LengthErrors) -> None:
    """Draw the mean error of each length, and what its number of tokens explains."""
    lengths = [each.num_tokens for each in errors.lengths]
    plot_band(ax, lengths, errors.lengths, color="#0072b2", label="observed")
    ax.plot(
        lengths,
        [each.expected for each in errors.lengths],
        "-" if len(lengths) > 1 else "D",
        color="black",
        label="expected (length × mean error a token)",
    )
    zero_line(ax)
    ax.set_xlabel("tokens of a sequence")
