"""Joint histograms of log-probabilities, and the heat map of errors.

The map, figure 5, is the mean error by rarity and perturbations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
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
from lm_latent_eval.distortion.statistics import (
    ErrorCell,
    ErrorCurve,
    ErrorMap,
    JointHistogram,
)
from lm_latent_eval.report.figures import drawable, page

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
) -> None:
    """Draw joint histograms of models, and their error curves in a last panel.

    Figures 1, 2 and 9.

    Raises:
        ValueError: If there are more models than colours.
    """
    count = len(panels) + bool(curves)
    width = width_of(count, MOST)
    height = 2.9 if count == 1 else 2.2
    with page(path, width=width, height=height) as figure:
        axes = figure.subplots(1, count, squeeze=False)[0]
        plot_histograms(figure, list(axes[: len(panels)]), panels)
        if curves:
            plot_curves(axes[-1], curves, colours(curves))
            axes[-1].set_title("mean error")
        legend(figure)


def plot_histograms(
    figure: Figure, axes: Sequence[Axes], panels: Sequence[tuple[str, JointHistogram]]
) -> None:
    """Draw histograms side by side, on one range and one scale of counts."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

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
    ax.axline((edges[-1], edges[-1]), slope=1, label=NO_ERROR, **DOTTED)
    grey: dict[str, Any] = {"color": "0.45", "fontsize": 6.5, "transform": ax.transAxes}
    grey["bbox"] = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5}
    ax.text(0.97, 0.04, "underestimated", ha="right", va="bottom", **grey)
    ax.text(0.03, 0.96, "overestimated", ha="left", va="top", **grey)
    return mesh


FEWEST = 11
"""Sequences in a cell that is shaded: more than ten, as in the error curves."""
MIDST = 0.98
"""Share of the shaded sequences whose cells' mean errors the colours tell apart."""
LINEAR = 0.1
"""Share of that error up to which colours are proportional; then logarithmic."""
BROWN, WHITE, BLUE = "#7f4a0c", "#ffffff", "#0b559f"
BLANK = "0.9"
"""Grey of cells without a colour: white means that there is no error."""
CHARACTERS = 125
"""Of an example, in one line of the page."""
LINE = 0.14
"""Height of a line of examples, inches."""


def draw_map(
    path: Path,
    error_map: ErrorMap,
    examples: Sequence[tuple[str, str]] = (),
) -> None:
    """Draw where a model overestimates: rare against perturbed sequences (figure 5).

    Cells of ten sequences or fewer stay blank, and the figure says how many sequences
    those are. Sequences without a finite error are in no cell; the table counts them.
    Examples say where a sequence lies in the map, and the sequence.
    """
    lines = [line for example in examples for line in _lines(*example)]
    below = LINE * len(lines) + 0.01
    with page(path, width=PAGE, height=3.4 + below) as figure:
        ax, foot = figure.subplots(2, height_ratios=(3.4, below))
        plot_map(ax, error_map)
        ax.set_ylabel("perturbations")
        foot.set_axis_off()
        foot.text(0, 1, "\n".join(lines), va="top", fontsize=6.5, in_layout=False)


def plot_map(ax: Axes, error_map: ErrorMap) -> QuadMesh:
    """Shade cells by mean error: blue over-, brown underestimates, white is right."""
    from matplotlib.colors import AsinhNorm, LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    cells = error_map.cells()
    shown = [cell for cell in cells if cell.count >= FEWEST]
    limit = colour_limit(shown)
    x, y, values = table(shown, error_map)
    mesh = ax.pcolormesh(
        x,
        y,
        values,
        cmap=LinearSegmentedColormap.from_list("error", (BROWN, WHITE, BLUE), N=257),
        norm=AsinhNorm(limit * LINEAR, -limit, limit),
        rasterized=True,
    )
    bar = ax.figure.colorbar(
        mesh,
        ax=ax,
        extend="both",
        ticks=colour_ticks(limit),
        format="{x:g}",
        label="mean estimation error (nats)\nbrown: underestimated",
        pad=0.02,
    )
    bar.minorticks_off()
    ax.set_facecolor(BLANK)
    ax.set_xlabel(TRUTH)
    ax.yaxis.set_major_locator(
        MaxNLocator(integer=True, steps=(1, 2, 5, 10), min_n_ticks=1)
    )
    blank = sum(cell.count for cell in cells if cell.count < FEWEST)
    ax.set_title(
        f"grey: no cell of more than ten sequences ({blank:,} sequences in smaller "
        "ones)",
        fontsize=6.5,
        color="0.35",
        loc="right",
    )
    return mesh


def table(
    cells: Sequence[ErrorCell], error_map: ErrorMap
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells to be shaded as rows of equal perturbation; others are NaN.

    Returns:
        Edges of log p_L (C + 1,), edges of perturbations (R + 1,), errors (R, C).
    """
    edits = [row.edits for row in error_map.rows()]
    width = error_map.width
    left = min((cell.lowest for cell in cells), default=-width)
    right = max((cell.highest for cell in cells), default=0.0)
    columns, lines = round((right - left) / width), max(edits) - min(edits) + 1
    values = np.full((lines, columns), np.nan)
    for cell in cells:
        column = round((cell.lowest - left) / width)
        values[cell.edits - min(edits), column] = cell.mean_error
    x = left + width * np.arange(columns + 1)
    return x, min(edits) - 0.5 + np.arange(lines + 1), values


def colour_limit(cells: Sequence[ErrorCell]) -> float:
    """Return how far from 0 the colours reach: far enough for most of the sequences.

    The least absolute mean error that bounds those of cells with 98% of the sequences;
    1 where that is 0 or there are no cells, so that there is a scale.
    """
    if not cells:
        return 1.0
    ordered = sorted(cells, key=lambda cell: abs(cell.mean_error))
    running = np.cumsum([cell.count for cell in ordered])
    place = int(np.searchsorted(running, MIDST * running[-1]))
    return abs(ordered[place].mean_error) or 1.0


def colour_ticks(limit: float) -> list[float]:
    """Return round errors to mark: 0 and those that differ in colour up to the limit.

    Example:
        >>> colour_ticks(60.0)
        [-50.0, -20.0, -10.0, 0.0, 10.0, 20.0, 50.0]
    """
    decade = 10.0 ** np.floor(np.log10(LINEAR * limit))
    steps = decade * np.outer((1, 10, 100), (1, 2, 5)).ravel()
    marked = [step for step in steps.tolist() if LINEAR * limit <= step <= limit]
    return [*(-step for step in reversed(marked)), 0.0, *marked]


def _lines(place: str, sequence: str) -> list[str]:
    """Return an example in lines of the page; those after its first are set in."""
    text = drawable(f"{place}: {sequence}")
    return wrap(text, CHARACTERS, subsequent_indent="    ")
