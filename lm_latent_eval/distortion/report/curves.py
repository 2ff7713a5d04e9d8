"""Curves: error by true log-probability, by length, over training; new n-grams.

Figures 3, 4, 6, 8 and 10 to 13, and what an estimator adds to an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lm_latent_eval.distortion.report.style import (
    ERROR,
    LIGHTEST,
    TRUTH,
    legend,
    plot_band,
    shades,
    width_of,
    zero_line,
)
from lm_latent_eval.distortion.statistics import (
    ErrorCurve,
    ErrorTrajectory,
    LengthErrors,
    ProductivityCurve,
)
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable


LATENT_PANELS, TRAINING_PANELS = 4, 3
"""Panels that share the width of a page."""
COLOURS = {"exact": "black", "estimated": "#0072b2", "corrected": "#d55e00"}
SLICES = 80
"""Equal ranges of log-probability that a density is counted in."""


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


def plot_densities(
    ax: Axes, distributions: Mapping[float, Tensor], hue: Mapping[float, str]
) -> None:
    """Draw how log p_L is distributed in each language, over the same ranges."""
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
    exact: ErrorCurve,
) -> None:
    """Draw how much of a latent model's underestimation is its estimator's.

    The logarithm of an unbiased estimate falls short of the model's log-probability on
    average, so a curve of estimates lies below the model's own. Dashed: estimates less
    the estimator's bias to second order, which is an approximation, not a bound.

    Estimates have a panel each, so that no band lies on another's curve, and the exact
    curve is in every panel.

    Raises:
        ValueError: If there are no curves.
    """
    if not curves:
        raise ValueError("a figure of estimates needs an error curve; got none")
    across = min(len(curves), LATENT_PANELS)
    down = -(-len(curves) // across)
    width = width_of(across, LATENT_PANELS)
    with page(path, width=width, height=0.7 + 2.1 * down) as figure:
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


MANY = 30
"""Epochs above which lines are pixels in an SVG, which is then smaller."""
INSET = (0.42, 0.12, 0.56, 0.31)
"""Where an inset lies in its panel: left, bottom, width, height."""
MIDDLE = 0.95
"""Share of the changes that an inset shows."""
CLEAR = 0.52
"""Share of a panel's height that the lines above an inset stay clear of."""


def draw_epochs(
    path: Path,
    panels: Sequence[tuple[str, ErrorTrajectory, int]],
    plot: Callable[[Axes, ErrorTrajectory, int, ScalarMappable], None],
    *,
    sharey: bool,
    height: float,
) -> None:
    """Draw errors over training, darker for less probable sequences.

    A panel has a name, errors, and the number that ``plot_training`` (figure 3) or
    ``plot_amount`` (figures 4, 8 and 10) takes.
    """
    width = width_of(len(panels), TRAINING_PANELS)
    with page(path, width=width, height=height) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=sharey)[0]
        scale = colour_scale([trajectory for _, trajectory, _ in panels])
        for ax, (name, trajectory, number) in zip(axes, panels, strict=True):
            plot(ax, trajectory, number, scale)
            ax.set_title(name)
        axes[0].set_ylabel(ERROR)
        figure.colorbar(
            scale,
            ax=list(axes),
            label="mean true log-probability\nof a bin (nats)",
            pad=0.02,
        )
        legend(figure)


def plot_training(
    ax: Axes,
    trajectory: ErrorTrajectory,
    best_epoch: int,
    scale: ScalarMappable,
) -> None:
    """Draw the error by epoch, with the one of least validation loss shaded."""
    from matplotlib.ticker import MaxNLocator

    ax.axvspan(
        best_epoch - 0.5,
        best_epoch + 0.5,
        color="0.88",
        linewidth=0,
        label="least validation loss",
    )
    epochs = range(1, len(trajectory.overall) + 1)
    plot_bins(ax, epochs, trajectory.mean_error, trajectory, scale)
    zero_line(ax)
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plot_amount(
    ax: Axes, trajectory: ErrorTrajectory, sequences: int, scale: ScalarMappable
) -> None:
    """Draw the error by sequences seen and, from the second epoch on, its change."""
    from matplotlib.ticker import EngFormatter

    seen = [sequences * (i + 1) for i in range(len(trajectory.overall))]
    plot_bins(ax, seen, trajectory.mean_error, trajectory, scale)
    zero_line(ax)
    ax.set_xlabel("sequences seen")
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(seen) > 1:
        _make_room(ax, seen, trajectory)
        inset = ax.inset_axes(INSET)
        changes = trajectory.relative_change
        plot_bins(inset, seen[1:], changes, trajectory, scale, 0.5)
        zero_line(inset, label=None)
        inset.set_xlim(left=0)
        inset.set_ylim(*_middle(changes))
        inset.xaxis.set_major_formatter(EngFormatter(sep=""))
        inset.tick_params(labelsize=5.5, length=2, pad=1.5)
        title = f"relative change\n(middle {100 * MIDDLE:g} %)"
        inset.set_title(title, fontsize=5.5, pad=2, linespacing=1)


def _middle(changes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the ends of an axis that shows 0 and most changes.

    Bins whose error is near 0 change by a multiple of it, which would leave all others
    on one line.
    """
    known = np.array(changes)
    known = known[np.isfinite(known)]
    if not len(known):
        return -1.0, 1.0
    low, high = np.quantile(known, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    low, high = min(low, 0.0), max(high, 0.0)
    room = 0.08 * (high - low) or 1.0
    return float(low - room), float(high + room)


def plot_bins(
    ax: Axes,
    x: Sequence[int],
    rows: Sequence[Sequence[float]],
    trajectory: ErrorTrajectory,
    scale: ScalarMappable,
    linewidth: float = 0.8,
) -> None:
    """Draw a line a bin through rows of an epoch each, the most probable bin first."""
    lines = list(zip(trajectory.mean_true_log_p, zip(*rows, strict=True), strict=True))
    for log_p, values in reversed(lines):
        ax.plot(
            x,
            values,
            marker="o" if len(x) == 1 else "",
            color=scale.to_rgba(log_p),
            rasterized=len(x) > MANY,
            linewidth=linewidth,
        )


def colour_scale(trajectories: Sequence[ErrorTrajectory]) -> ScalarMappable:
    """Return colours of log-probabilities, darker for less, common to all panels."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    viridis = colormaps["viridis"]
    ends = [each for one in trajectories for each in one.mean_true_log_p]
    shades = ListedColormap([viridis(LIGHTEST * i / 255) for i in range(256)])
    return ScalarMappable(Normalize(min(ends), max(ends)), shades)


def _make_room(ax: Axes, seen: Sequence[int], trajectory: ErrorTrajectory) -> None:
    """Lower the bottom until the lines right of the inset's left end lie above it."""
    bottom, top = ax.get_ylim()
    left = ax.get_xlim()[1] * (INSET[0] - 0.12)
    beside = [
        row for x, row in zip(seen, trajectory.mean_error, strict=True) if x >= left
    ]
    lowest = min(map(min, beside))
    ax.set_ylim(min(bottom, (lowest - CLEAR * top) / (1 - CLEAR)), top)
