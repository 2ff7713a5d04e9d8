"""Curves: error by true log-probability, by length, over training; new n-grams.

Figures 3, 4, 6, 8 and 10 to 13, and what an estimator adds to an error.
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
    LIGHTEST,
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
    ErrorTrajectory,
    LengthErrors,
    ProductivityCurve,
)
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


LATENT_PANELS, LENGTH_PANELS = 4, 3
"""Panels that share the width of a page."""
EXACT, ESTIMATED, CORRECTED = "black", "#0072b2", "#d55e00"
SLICES = 80
"""Equal ranges of log-probability that a density is counted in."""


def plot_curve(ax: Axes, curve: ErrorCurve, *, color: str, label: str) -> None:
    """Draw the mean error of each bin at its mean log p_L, in its bootstrap band."""
    x = [each.mean_true_log_p for each in curve.bins]
    plot_band(ax, x, curve.bins, color=color, label=label)


def plot_curves(
    ax: Axes, curves: Mapping[str, ErrorCurve], colour_of: Mapping[str, str]
) -> None:
    """Draw curves by name, with the line of no error."""
    for name, curve in curves.items():
        plot_curve(ax, curve, color=colour_of[name], label=name)
    zero_line(ax)
    ax.set_xlabel(TRUTH)
    ax.set_ylabel(ERROR)


def draw_random(path: Path, curves: Mapping[str, ErrorCurve]) -> None:
    """Draw the error of models on random sequences (figure 11).

    Args:
        path: Of the files, without their endings.
        curves: By model.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are more models than colours.
    """
    with page(path, width=COLUMN, height=2.8) as figure:
        plot_curves(figure.subplots(), curves, colours(curves))
        legend(figure)


def draw_temperatures(
    path: Path,
    distributions: Mapping[float, Tensor],
    curves: Mapping[float, ErrorCurve],
) -> None:
    """Draw languages of several temperatures and a model's error on each (figure 6).

    Args:
        path: Of the files, without their endings.
        distributions: Log p_L of sequences of each language, nats, finite, shape
            ``(N,)``, by temperature.
        curves: By temperature.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    temperatures = sorted({*distributions, *curves})
    names = {each: f"T = {each:g}" for each in temperatures}
    with page(path, width=PAGE, height=2.9) as figure:
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
    exact: ErrorCurve | None,
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

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
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


def draw_lengths(path: Path, panels: Sequence[tuple[str, LengthErrors]]) -> None:
    """Draw expected and observed error by length (figure 12).

    Args:
        path: Of the files, without their endings.
        panels: Models and their errors, from left to right.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    width = width_of(len(panels), LENGTH_PANELS)
    with page(path, width=width, height=2.7) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (name, errors) in zip(axes, panels, strict=True):
            plot_lengths(ax, errors)
            ax.set_title(name)
        axes[0].set_ylabel(ERROR)
        legend(figure)


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


def draw_productivity(path: Path, curves: Mapping[str, ProductivityCurve]) -> None:
    """Draw the probability that the next event is new (figure 13).

    Args:
        path: Of the files, without their endings.
        curves: By what is counted (1-grams, 2-grams, ..., sequences), from dark to
            light.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    with page(path, width=COLUMN, height=2.8) as figure:
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


TRAINING_PANELS = 3
"""Panels that share the width of a page."""
MANY = 30
"""Epochs above which lines are pixels in an SVG, which is then smaller."""
INSET = (0.42, 0.12, 0.56, 0.31)
"""Where an inset lies in its panel: left, bottom, width, height."""
MIDDLE = 0.95
"""Share of the changes that an inset shows."""
CLEAR = 0.52
"""Share of a panel's height that the lines above an inset stay clear of."""


def draw_training(
    path: Path,
    panels: Sequence[tuple[str, ErrorTrajectory, int]],
) -> None:
    """Draw the error after each epoch, darker for less probable sequences (figure 3).

    Args:
        path: Of the files, without their endings.
        panels: Sequences (those of training, of test), their errors, and the epoch of
            the least validation loss, counted from 1; shaded.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    width = width_of(len(panels), TRAINING_PANELS)
    with page(path, width=width, height=2.8) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        scale = colour_scale([trajectory for _, trajectory, _ in panels])
        for ax, (name, trajectory, best) in zip(axes, panels, strict=True):
            plot_training(ax, trajectory, best, scale)
            ax.set_title(name)
        _finish(figure, axes, scale)


def draw_amount(
    path: Path,
    panels: Sequence[tuple[str, ErrorTrajectory, int]],
) -> None:
    """Draw the error by sequences seen, its change inset (figures 4, 8 and 10).

    Args:
        path: Of the files, without their endings.
        panels: Models, their errors, and how many sequences an epoch brings each.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    width = width_of(len(panels), TRAINING_PANELS)
    with page(path, width=width, height=3.0) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        scale = colour_scale([trajectory for _, trajectory, _ in panels])
        for ax, (name, trajectory, sequences) in zip(axes, panels, strict=True):
            plot_amount(ax, trajectory, sequences, scale)
            ax.set_title(name)
        _finish(figure, axes, scale)


def plot_training(
    ax: Axes,
    trajectory: ErrorTrajectory,
    best_epoch: int,
    scale: ScalarMappable,
) -> None:
    """Draw the error by epoch, with the best one shaded."""
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
    """Draw a line a bin through rows of an epoch each, the most probable bin first.

    Args:
        ax: To draw into.
        x: Where each row stands.
        rows: Of a value a bin, from the least probable on.
        trajectory: Whose bins they are.
        scale: From log-probability to colour.
        linewidth: Points.
    """
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


def _finish(figure: Figure, axes: Sequence[Axes], scale: ScalarMappable) -> None:
    axes[0].set_ylabel(ERROR)
    figure.colorbar(
        scale,
        ax=list(axes),
        label="mean true log-probability\nof a bin (nats)",
        pad=0.02,
    )
    legend(figure)


def _make_room(ax: Axes, seen: Sequence[int], trajectory: ErrorTrajectory) -> None:
    """Lower the bottom until the lines right of the inset's left end lie above it."""
    bottom, top = ax.get_ylim()
    left = ax.get_xlim()[1] * (INSET[0] - 0.12)
    beside = [
        row for x, row in zip(seen, trajectory.mean_error, strict=True) if x >= left
    ]
    lowest = min(map(min, beside))
    ax.set_ylim(min(bottom, (lowest - CLEAR * top) / (1 - CLEAR)), top)
