"""One page of figures of errors: a column a model, a row a question.

- How often do true and model log-probabilities fall together?
- How large is the mean error, by true log-probability and by length?
- Where are perturbed sequences overestimated?

After figures 1, 2, 5, 11 and 12 of LeBrun, Sordoni and O'Donnell (2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lm_latent_eval.distortion.measure import Measured
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.distortion.statistics.bins import FEWEST
from lm_latent_eval.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure


PANEL = (2.6, 2.3)
"""Width and height of a panel, inches."""
BESIDE = (1.04, 0, 0.05, 1)
"""Place of a scale of colours: left, bottom, width and height in panels."""
BLUE, PINK, ORANGE = "#0072b2", "#cc79a7", "#d55e00"
ERROR = "mean error (nats)"
TRUTH = "true log p (nats)"
NO_ERROR = "no error (below: underestimated)"
BAND = "95 % interval of the mean"
DOTTED: dict[str, Any] = {"color": "0.2", "linewidth": 1, "linestyle": (0, (1, 1.3))}
"""Style of the line where a model is right."""
PALEST = 0.2
"""Start of the scale of counts, where a single sequence can be seen on white."""
MIDST = 0.98
"""Share of the shaded sequences whose cells' mean errors the colours tell apart."""
LINEAR = 0.1
"""Share of that error up to which colours are proportional; then logarithmic."""
BLANK = "0.9"
"""Grey of cells without a colour: white means that there is no error."""


def draw_page(path: Path, models: Mapping[str, Measured]) -> None:
    """Draw the page into ``PATH.png``, ``PATH.svg`` and ``PATH.pdf``.

    Raises:
        ModuleNotFoundError: If matplotlib is missing; says how to install it.
    """
    rows = ["histogram", "curve", "lengths"]
    rows += ["map"] * any(each.map is not None for each in models.values())
    width, height = PANEL[0] * len(models) + 0.6, PANEL[1] * len(rows) + 0.4
    with figures.page(path, width=max(width, 5.0), height=height) as figure:
        grid = figure.subplots(len(rows), len(models), squeeze=False, sharey="row")
        panels = dict(zip(rows, grid, strict=True))
        for ax, name in zip(grid[0], models, strict=True):
            ax.set_title(name)
        histograms = [each.histogram for each in models.values()]
        plot_histograms(figure, panels["histogram"], histograms)
        for ax, each in zip(panels["curve"], models.values(), strict=True):
            plot_curves(ax, each.curve, each.random)
        for ax, each in zip(panels["lengths"], models.values(), strict=True):
            plot_lengths(ax, each.lengths)
        for ax, each in zip(panels.get("map", ()), models.values(), strict=False):
            if each.map is not None:
                plot_map(ax, each.map)
        for row in ("curve", "lengths"):
            panels[row][0].set_ylabel(ERROR)
        legend(figure)


def plot_histograms(
    figure: Figure, axes: Sequence[Axes], histograms: Sequence[JointHistogram | None]
) -> None:
    """Draw histograms side by side, on one range and one scale of counts."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

    drawn = [histogram for histogram in histograms if histogram]
    if not drawn:
        return
    most = max(max(map(max, histogram.counts)) for histogram in drawn)
    norm = LogNorm(1, max(10, most))
    ends = (
        min(histogram.edges[0] for histogram in drawn),
        max(histogram.edges[-1] for histogram in drawn),
    )
    for ax, histogram in zip(axes, histograms, strict=True):
        if histogram:
            mesh = plot_histogram(ax, histogram, norm)
        ax.set(xlim=ends, ylim=ends, xlabel=TRUTH)
    axes[0].set_ylabel("model log p (nats)")
    figure.colorbar(
        mesh,
        cax=axes[-1].inset_axes(BESIDE),
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


def plot_curves(ax: Axes, curve: ErrorCurve | None, random: ErrorCurve | None) -> None:
    """Draw mean errors of sequences of the language, and of random ones.

    Dashed, of estimates: less the estimator's bias to second order, which is an
    approximation, not a bound.
    """
    for name, each, color in (
        ("sequences of the language", curve, BLUE),
        ("random sequences", random, PINK),
    ):
        if each is None:
            continue
        bins = each.bins
        plot_band(ax, bins.mean_true_log_p, bins, color=color, label=name)
        if each.estimator_bias < 0:
            ax.plot(
                bins.mean_true_log_p,
                bins.mean_error - bins.estimator_bias,
                "--",
                marker="D" if len(bins) == 1 else "",
                color=ORANGE,
                linewidth=1,
                label="corrected to second order",
            )
    ax.axhline(0, label=NO_ERROR, **DOTTED)
    ax.set_xlabel(TRUTH)


def plot_lengths(ax: Axes, errors: pd.DataFrame) -> None:
    """Draw the mean error of each length, and what its number of tokens explains."""
    from matplotlib.ticker import MaxNLocator

    if len(errors):
        plot_band(ax, errors.num_tokens, errors, color=BLUE, label=None)
        ax.plot(
            errors.num_tokens,
            errors.expected,
            "-" if len(errors) > 1 else "D",
            color="black",
            label="expected (length × mean error a token)",
        )
    ax.axhline(0, label=NO_ERROR, **DOTTED)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("tokens of a sequence")


def plot_band(
    ax: Axes, x: pd.Series, errors: pd.DataFrame, *, color: str, label: str | None
) -> None:
    """Draw mean errors in their band, which the legend names; one becomes a dot."""
    alone = len(x) == 1
    ax.plot(x, errors.mean_error, "o" if alone else "-", color=color, label=label)
    ax.fill_between(
        x,
        errors.lower,
        errors.upper,
        color=color,
        alpha=0.25,
        linewidth=2 if alone else 0,
        label=BAND,
    )


def plot_map(ax: Axes, cells: pd.DataFrame) -> QuadMesh:
    """Shade cells by mean error: blue over-, brown underestimates, white is right.

    Cells of ten sequences or fewer stay blank.
    """
    from matplotlib.colors import AsinhNorm, LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator, SymmetricalLogLocator

    limit = colour_limit(cells[cells["count"] >= FEWEST])
    mesh = ax.pcolormesh(
        *shaded(cells),
        cmap=LinearSegmentedColormap.from_list(
            "error", ("#7f4a0c", "#ffffff", "#0b559f"), N=257
        ),
        norm=AsinhNorm(limit * LINEAR, -limit, limit),
        rasterized=True,
    )
    decades = SymmetricalLogLocator(base=10, linthresh=limit * LINEAR, subs=(1, 2, 5))
    errors = map(float, decades.tick_values(-limit, limit))
    bar = ax.figure.colorbar(
        mesh,
        cax=ax.inset_axes(BESIDE),
        extend="both",
        ticks=[x for x in errors if not x or limit * LINEAR <= abs(x) <= limit],
        format="{x:g}",
        label=ERROR + "\ngrey: at most 10 sequences",
    )
    bar.minorticks_off()
    ax.set_facecolor(BLANK)
    ax.set(xlabel=TRUTH, ylabel="perturbations")
    ax.yaxis.set_major_locator(
        MaxNLocator(integer=True, steps=(1, 2, 5, 10), min_n_ticks=1)
    )
    return mesh


def shaded(cells: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Return mean errors of cells as rows of equal perturbation; others are NaN.

    Returns:
        Edges of log p_L (C + 1,), edges of perturbations (R + 1,), errors (R, C).
    """
    if cells.empty:
        return np.array([-1.0, 0.0]), np.array([-0.5, 0.5]), pd.DataFrame([[np.nan]])
    width = cells.highest[0] - cells.lowest[0]
    cells = cells.assign(column=(cells.lowest / width).round().astype(int))
    errors = cells.mean_error.where(cells["count"] >= FEWEST)
    columns = np.arange(cells.column.min(), cells.column.max() + 1)
    rows = np.arange(cells.edits.min(), cells.edits.max() + 1)
    values = cells.assign(mean_error=errors).pivot(
        index="edits", columns="column", values="mean_error"
    )
    x = width * np.append(columns, columns[-1] + 1)
    y = np.append(rows, rows[-1] + 1) - 0.5
    return x, y, values.reindex(index=rows, columns=columns)


def colour_limit(cells: pd.DataFrame) -> float:
    """Return how far from 0 the colours reach: far enough for most of the sequences.

    The least absolute mean error that bounds those of cells with 98 % of the sequences;
    1 where that is 0 or there are no cells, so that there is a scale.
    """
    if cells.empty:
        return 1.0
    ordered = cells.assign(error=cells.mean_error.abs()).sort_values("error")
    running = ordered["count"].cumsum().to_numpy()
    index = int(np.searchsorted(running, MIDST * running[-1]))
    return float(ordered.error.iloc[index]) or 1.0


def legend(figure: Figure) -> None:
    """Put a legend below the panels, each label once, in the order drawn."""
    from matplotlib.patches import Patch

    entries = figures.labelled(figure)
    if entries.pop(BAND, None):  # after the curves, and of no curve's colour
        entries[BAND] = Patch(color="0.5", alpha=0.4, linewidth=0)
    figures.legend(figure, entries)
