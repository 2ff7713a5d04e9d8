"""True against model log-probabilities: figures 1, 2, 7 and 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lm_latent_eval.distortion.report.curves import plot_curves
from lm_latent_eval.distortion.report.style import (
    DOTTED,
    NO_ERROR,
    PAGE,
    TRUTH,
    colours,
    legend,
    width_of,
)
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

MOST = 4
"""Panels that share the width of a page."""
PALEST = 0.2
"""Where the scale of counts begins, so that a single sequence can be seen on white."""


def draw_estimates(
    path: Path,
    panels: Sequence[tuple[str, JointHistogram]],
    curves: Mapping[str, ErrorCurve],
    *,
    title: str | None = None,
) -> None:
    """Draw joint histograms and error curves of models (figures 1, 2 and 9).

    Args:
        path: Of the files, without their endings.
        panels: Models and their histograms, from left to right.
        curves: By model, in a last panel; none, no panel.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there is no histogram, or more models than colours.
    """
    count = len(panels) + bool(curves)
    width = width_of(count, MOST)
    height = 2.9 if count == 1 else 2.2
    with page(path, width=width, height=height, title=title) as figure:
        axes = figure.subplots(1, count, squeeze=False)[0]
        plot_histograms(figure, list(axes[: len(panels)]), panels)
        if curves:
            plot_curves(axes[-1], curves, colours(curves))
            axes[-1].set_title("mean error")
        legend(figure)


def draw_language_check(
    path: Path,
    histogram: JointHistogram,
    curve: ErrorCurve,
    random_curve: ErrorCurve,
    *,
    title: str | None = None,
) -> None:
    """Draw a model on the language's and on random sequences (figure 7).

    Args:
        path: Of the files, without their endings.
        histogram: Of the language's sequences.
        curve: Of the same.
        random_curve: Of random sequences.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    with page(path, width=PAGE, height=2.3, title=title) as figure:
        left, middle, right = figure.subplots(1, 3)
        plot_histograms(figure, [left], [("sequences of the language", histogram)])
        for ax, name, each, color in (
            (middle, "sequences of the language", curve, "#0072b2"),
            (right, "random sequences", random_curve, "#cc79a7"),
        ):
            plot_curves(ax, {name: each}, {name: color})
            ax.set_title(name)
        legend(figure)


def plot_histograms(
    figure: Figure, axes: Sequence[Axes], panels: Sequence[tuple[str, JointHistogram]]
) -> None:
    """Draw histograms side by side, on one range and one scale of counts.

    Raises:
        ValueError: If there is none.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

    if not panels:
        raise ValueError("a figure of estimates needs a joint histogram; got none")
    most = max(max(map(max, histogram.counts)) for _, histogram in panels)
    norm = LogNorm(1, max(10, most))
    ends = (
        min(histogram.edges[0] for _, histogram in panels),
        max(histogram.edges[-1] for _, histogram in panels),
    )
    for ax, (name, histogram) in zip(axes, panels, strict=True):
        mesh = plot_histogram(ax, histogram, norm)
        ax.set_title(name)
        ax.set(xlim=ends, ylim=ends, xlabel=TRUTH)
        ax.tick_params(labelleft=ax is axes[0])
    axes[0].set_ylabel("model log p (nats)")
    figure.colorbar(
        mesh,
        cax=axes[-1].inset_axes((1.04, 0, 0.05, 1)),
        label="sequences",
        format=EngFormatter(sep=""),
    )


def plot_histogram(ax: Axes, histogram: JointHistogram, norm: Normalize) -> QuadMesh:
    """Draw counts: true log-probability to the right, the model's upwards."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    edges = np.array(histogram.edges)
    counts = np.array(histogram.counts, dtype=float).T
    mesh = ax.pcolormesh(
        edges,
        edges,
        np.ma.masked_equal(counts, 0),
        norm=norm,
        cmap=ListedColormap(colormaps["YlGnBu"](np.linspace(PALEST, 1, 256))),
        rasterized=True,
    )
    ax.axline(
        (edges[-1], edges[-1]),
        slope=1,
        label=NO_ERROR,
        **DOTTED,
    )
    grey: dict[str, Any] = {"color": "0.45", "fontsize": 6.5, "transform": ax.transAxes}
    grey["bbox"] = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5}
    ax.text(0.97, 0.04, "underestimated", ha="right", va="bottom", **grey)
    ax.text(0.03, 0.96, "overestimated", ha="left", va="top", **grey)
    return mesh
