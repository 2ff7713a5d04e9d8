"""Ridge plots of estimates from a fixed number of samples: figure 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from lm_latent_eval.study.report.columns import Curve, StudyColumn, values_of

RIDGE, TICK = "density of fresh estimates", "replicates drawn"
SHOWN = 0.99
"""Share of the estimates that figure 4 shows: few outliers shall not squeeze it."""
POINTS = 90
"""Of a ridge's outline."""
UNLIKE = 12
"""Ratio of the widest ridge to the narrowest from which on the axis is logarithmic."""

Looks = dict[Curve, dict[str, Any]]


def ridges(ax: Any, column: StudyColumn, looks: Looks) -> None:
    """Draw a ridge a curve, each around its own median, which stands beside its name.

    Perplexities differ by far more between curves than within one: on a common axis
    every density is a spike.
    """
    size = int(column.settings["replicate"])
    names: list[str] = []
    reach: list[float] = []
    for curve, look in looks.items():
        found = [row for row in column.curve(curve) if row["num_samples"] == size]
        if not found or not found[0].get("predicted"):
            continue
        values = np.log(values_of(found, "predicted")[0])
        values = values[np.isfinite(values)]
        if len(values) < 2 or values.std() == 0:
            continue
        median = np.median(values)
        single = np.log(values_of(found, "replicates")[0]) - median
        reach.append(1.6 * float(np.quantile(abs(values - median), SHOWN)))
        _ridge(ax, values - median, single, -len(names), look["color"], reach[-1])
        names.append(f"{look['label']}: {np.exp(median):,.4g}")
    ax.fill([], [], facecolor="0.8", edgecolor="0.3", label=RIDGE)
    ax.plot([], [], "|", color="0.3", markersize=6, label=TICK)
    ax.set_yticks(-np.arange(len(names)), names, fontsize=7)
    ax.set_ylim(-len(names) + 0.7, 1)
    ax.set_xlabel(
        f"token perplexity from {size} samples:\n% from the median on the left"
    )
    if reach:
        _percent(ax, min(reach), max(reach))


def _percent(ax: Any, least: float, most: float) -> None:
    """Scale an axis in % so that the narrowest ridge and the widest can be seen.

    Args:
        ax: With ridges.
        least: How far the narrowest reaches, as a difference of logarithms.
        most: How far the widest does.
    """
    from matplotlib.ticker import StrMethodFormatter, SymmetricalLogLocator

    if most / least > UNLIKE:
        linear = 100 * np.expm1(least)
        ax.set_xscale("asinh", linear_width=linear)
        ax.xaxis.set_major_locator(
            SymmetricalLogLocator(base=10, linthresh=10 ** np.ceil(np.log10(linear)))
        )
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.set_xlim(100 * np.expm1(-most), 100 * np.expm1(most))


def _ridge(
    ax: Any, values: Any, single: Any, base: int, color: str, away: float
) -> None:
    """Draw a density over its base, and what was drawn as ticks on it.

    Args:
        ax: To draw into.
        values: Logarithms of estimates less their median.
        single: The same of replicates.
        base: Where on the vertical axis.
        color: Of it.
        away: How far from the median the density is drawn.
    """
    from matplotlib.colors import to_rgba

    grid = values.std() * np.sinh(
        np.linspace(-1, 1, POINTS) * np.arcsinh(away / values.std())
    )
    height = kernel_density(values, grid)
    height *= 0.85 / height.max()
    ax.fill(
        100 * np.expm1([-away, *grid, away]),
        base + np.array([0, *height, 0]),
        facecolor=to_rgba(color, 0.35),
        edgecolor=color,
    )
    ax.plot(100 * np.expm1(single), 0 * single + base, "|", color=color)


def kernel_density(values: Any, grid: Any) -> Any:
    """Return the density of values (N,) at points (G,), by Gaussian kernels.

    The width is Silverman's: 0.9 sd N^(-1/5).
    """
    from scipy.stats import gaussian_kde

    width = 0.9 * values.std() * len(values) ** -0.2
    return gaussian_kde(values, width / values.std(ddof=1))(grid)
