"""Curves: error by true log-probability and by length; new n-grams in a text.

Figures 6, 11, 12 and 13, and what an estimator adds to an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lm_latent_eval.distortion.report.style import (
    COLUMN,
    ERROR,
    PAGE,
    TRUTH,
    colours,
    legend,
    plot_band,
    shades,
    width_of,
    zero_line,
)
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    LengthErrors,
    ProductivityCurve,
)
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENT_PANELS, LENGTH_PANELS = 4, 3
"""Panels that share the width of a page."""
EXACT, ESTIMATED, CORRECTED = "black", "#0072b2", "#d55e00"
SLICES = 80
"""Equal ranges of log-probability that a density is counted in."""


def plot_curve(ax: Axes, curve: ErrorCurve, *, color: str, label: str) -> None:
    """Draw the mean error of each bin at its mean log p_L, in its bootstrap band."""
    plot_band(
        ax,
        [each.mean_true_log_p for each in curve.bins],
        [each.mean_error for each in curve.bins],
        [each.lower for each in curve.bins],
        [each.upper for each in curve.bins],
        color=color,
        label=label,
    )


def plot_curves(
    ax: Axes, curves: Mapping[str, ErrorCurve], colour_of: Mapping[str, str]
) -> None:
    """Draw curves by name, with the line of no error."""
    for name, curve in curves.items():
        plot_curve(ax, curve, color=colour_of[name], label=name)
    zero_line(ax)
    ax.set_xlabel(TRUTH)
    ax.set_ylabel(ERROR)


def draw_random(
    path: Path, curves: Mapping[str, ErrorCurve], *, title: str | None = None
) -> None:
    """Draw the error of models on random sequences (figure 11).

    Args:
        path: Of the files, without their endings.
        curves: By model.
        title: Above the panel.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are more models than colours.
    """
    with page(path, width=COLUMN, height=2.8, title=title) as figure:
        plot_curves(figure.subplots(), curves, colours(curves))
        legend(figure)


def draw_temperatures(
    path: Path,
    distributions: Mapping[float, Tensor],
    curves: Mapping[float, ErrorCurve],
    *,
    title: str | None = None,
) -> None:
    """Draw languages of several temperatures and a model's error on each (figure 6).

    Args:
        path: Of the files, without their endings.
        distributions: Log p_L of sequences of each language, nats, shape ``(N,)``,
            by temperature.
        curves: By temperature.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If a log-probability of the languages is not finite.
    """
    temperatures = sorted({*distributions, *curves})
    names = {each: f"T = {each:g}" for each in temperatures}
    with page(path, width=PAGE, height=2.9, title=title) as figure:
        left, right = figure.subplots(1, 2)
        hue = dict(zip(temperatures, shades(len(temperatures)), strict=True))
        plot_densities(left, distributions, hue)
        plot_curves(
            right,
            {names[each]: curves[each] for each in sorted(curves)},
            {names[each]: hue[each] for each in temperatures},
        )
        left.set_title("languages")
        right.set_title("models")
        legend(figure)


def plot_densities(
    ax: Axes, distributions: Mapping[float, Tensor], hue: Mapping[float, str]
) -> None:
    """Draw how log p_L is distributed in each language, over the same ranges.

    Raises:
        ValueError: If a log-probability is not finite.
    """
    for temperature, log_p in distributions.items():
        if not log_p.isfinite().all():
            raise ValueError(
                f"log p_L at temperature {temperature:g} has values that are not "
                "finite: no sequence of the language is impossible"
            )
    lowest = min(log_p.min().item() for log_p in distributions.values())
    highest = max(log_p.max().item() for log_p in distributions.values())
    edges = np.histogram_bin_edges([], SLICES, (lowest, highest))
    for temperature, log_p in sorted(distributions.items()):
        density, _ = np.histogram(log_p.double().numpy(), edges, density=True)
        ax.stairs(density, edges, color=hue[temperature], linewidth=1)
        ax.stairs(density, edges, color=hue[temperature], alpha=0.12, fill=True)
    ax.set_xlabel(TRUTH)
    ax.set_ylabel("density (1/nat)")


def draw_latent(
    path: Path,
    curves: Mapping[str, ErrorCurve],
    exact: ErrorCurve | None,
    *,
    title: str | None = None,
) -> None:
    """Draw how much of a latent model's underestimation is its estimator's.

    The logarithm of an unbiased estimate falls short of the model's log-probability on
    average, so a curve of estimates lies below the model's own. Dashed: estimates less
    the estimator's bias to second order, which is an approximation, not a bound.

    Args:
        path: Of the files, without their endings.
        curves: Of estimates, by what they were estimated with: a panel each, so that no
            band lies on another's curve.
        exact: Of the model's own probabilities, where they can be summed exactly; in
            every panel.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are no curves.
    """
    if not curves:
        raise ValueError("a figure of estimates needs an error curve; got none")
    across = min(len(curves), LATENT_PANELS)
    down = -(-len(curves) // across)
    width = width_of(across, LATENT_PANELS)
    with page(path, width=width, height=0.7 + 2.1 * down, title=title) as figure:
        panels = figure.subplots(
            down, across, squeeze=False, sharex=True, sharey=True
        ).ravel()
        for ax, (name, curve) in zip(panels, curves.items(), strict=False):
            plot_corrected(ax, curve, exact)
            ax.set_title(name)
            ax.label_outer()
        for ax in panels[len(curves) :]:
            ax.set_axis_off()
        legend(figure)


def plot_corrected(ax: Axes, curve: ErrorCurve, exact: ErrorCurve | None) -> None:
    """Draw estimates and, dashed, the same less the estimator's bias."""
    if exact is not None:
        plot_curve(ax, exact, color=EXACT, label="exact")
    plot_curves(ax, {"estimated": curve}, {"estimated": ESTIMATED})
    ax.plot(
        [each.mean_true_log_p for each in curve.bins],
        [each.mean_error - each.estimator_bias for each in curve.bins],
        "--",
        marker="D" if len(curve.bins) == 1 else "",
        color=CORRECTED,
        linewidth=1,
        label="estimated, corrected to second order",
    )


def draw_lengths(
    path: Path, panels: Sequence[tuple[str, LengthErrors]], *, title: str | None = None
) -> None:
    """Draw expected and observed error by length (figure 12).

    Args:
        path: Of the files, without their endings.
        panels: Models and their errors, from left to right.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are no panels.
    """
    if not panels:
        raise ValueError("a figure of lengths needs the errors of a model; got none")
    width = width_of(len(panels), LENGTH_PANELS)
    with page(path, width=width, height=2.7, title=title) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (name, errors) in zip(axes, panels, strict=True):
            plot_lengths(ax, errors)
            ax.set_title(name)
        axes[0].set_ylabel(ERROR)
        legend(figure)


def plot_lengths(ax: Axes, errors: LengthErrors) -> None:
    """Draw the mean error of each length, and what its number of tokens explains."""
    lengths = [each.num_tokens for each in errors.lengths]
    plot_band(
        ax,
        lengths,
        [each.mean_error for each in errors.lengths],
        [each.lower for each in errors.lengths],
        [each.upper for each in errors.lengths],
        color="#0072b2",
        label="observed",
    )
    ax.plot(
        lengths,
        [each.expected for each in errors.lengths],
        "-" if len(lengths) > 1 else "D",
        color="black",
        label="expected (length × mean error a token)",
    )
    zero_line(ax)
    ax.set_xlabel("tokens of a sequence")


def draw_productivity(
    path: Path, curves: Mapping[str, ProductivityCurve], *, title: str | None = None
) -> None:
    """Draw the probability that the next event is new (figure 13).

    Args:
        path: Of the files, without their endings.
        curves: By what is counted (1-grams, 2-grams, ..., sequences), from dark to
            light.
        title: Above the panel.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    with page(path, width=COLUMN, height=2.8, title=title) as figure:
        plot_productivity(figure.subplots(), curves)
        legend(figure)


def plot_productivity(ax: Axes, curves: Mapping[str, ProductivityCurve]) -> None:
    """Draw N_1/N at each sample size, over its logarithm."""
    from matplotlib.ticker import EngFormatter, NullFormatter

    for (name, curve), color in zip(curves.items(), shades(len(curves)), strict=True):
        ax.plot(
            curve.sample_sizes,
            curve.productivity,
            marker="o" if len(curve.sample_sizes) == 1 else "",
            color=color,
            label=name,
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("events sampled")
    ax.set_ylabel("probability that the next is new")
