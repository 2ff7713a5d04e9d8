"""Mean error over training, one line a bin: figures 3, 4, 8 and 10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lm_latent_eval.distortion.report.style import (
    ERROR,
    LIGHTEST,
    legend,
    width_of,
    zero_line,
)
from lm_latent_eval.distortion.statistics import ErrorTrajectory
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST = 3
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
    panels: Sequence[tuple[str, ErrorTrajectory]],
    best_epoch: int | None,
    *,
    title: str | None = None,
) -> None:
    """Draw the error after each epoch, darker for less probable sequences (figure 3).

    Args:
        path: Of the files, without their endings.
        panels: Sequences (those of training, of test) and their errors.
        best_epoch: Of the least validation loss, counted from 1; shaded.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are no panels.
    """
    width = width_of(len(panels), MOST)
    with page(path, width=width, height=2.8, title=title) as figure:
        axes = _panels(figure, len(panels), sharey=True)
        scale = colour_scale([trajectory for _, trajectory in panels])
        for ax, (name, trajectory) in zip(axes, panels, strict=True):
            plot_training(ax, trajectory, best_epoch, scale)
            ax.set_title(name)
        _finish(figure, axes, scale)


def draw_amount(
    path: Path,
    panels: Sequence[tuple[str, ErrorTrajectory, int]],
    *,
    title: str | None = None,
) -> None:
    """Draw the error by sequences seen, its change inset (figures 4, 8 and 10).

    Args:
        path: Of the files, without their endings.
        panels: Models, their errors, and how many sequences an epoch brings each.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are no panels.
    """
    width = width_of(len(panels), MOST)
    with page(path, width=width, height=3.0, title=title) as figure:
        axes = _panels(figure, len(panels))
        scale = colour_scale([trajectory for _, trajectory, _ in panels])
        for ax, (name, trajectory, sequences) in zip(axes, panels, strict=True):
            plot_amount(ax, trajectory, sequences, scale)
            ax.set_title(name)
        _finish(figure, axes, scale)


def plot_training(
    ax: Axes,
    trajectory: ErrorTrajectory,
    best_epoch: int | None,
    scale: ScalarMappable,
) -> None:
    """Draw the error by epoch, with the best one shaded."""
    from matplotlib.ticker import MaxNLocator

    if best_epoch is not None:
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


def _panels(figure: Figure, count: int, *, sharey: bool = False) -> list[Axes]:
    if count == 0:
        raise ValueError("a figure of training needs an error trajectory; got none")
    return list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


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
