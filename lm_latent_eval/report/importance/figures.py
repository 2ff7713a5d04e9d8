"""Studies as the figures of Logan et al. (2020), a panel a column.

Figures 2 and 3: perplexity over the number of samples, to 100 and to all. Figure 4: how
estimates from one number of samples are distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.extras import require
from lm_latent_eval.report.importance.columns import Column, Curve

FEW = 100
"""Samples up to which figure 2 goes."""
PANEL = (3.6, 3.2)
"""Inches."""
NARROW = 1.6
"""Ratio of an axis' ends below which it is marked as if it were linear."""
TICKS = (
    (8, (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)),
    (60, (1, 2, 5)),
    (1000, (1, 3)),
    (np.inf, (1,)),
)
"""Up to which ratio of an axis' ends it is marked at which leading digits."""
OTHERS = {"nonpeeking": (0, (5, 1.5)), "prior": (0, (1, 1.2))}
"""Dashes of proposals that are not tempered, the same in every panel."""
FURTHER = (0, (6, 1.5, 1, 1.5))
"""Dashes of those that some models have besides."""


def draw(columns: Sequence[Column], output: Path) -> None:
    """Draw every figure that the columns have numbers for, as PNG and SVG.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    matplotlib = require("matplotlib", extra="plots")
    matplotlib.use("agg")
    style = {"font.size": 9, "svg.hashsalt": "lm-latent-eval", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        _figure(columns, output / "figure_2", _few_samples)
        _figure(columns, output / "figure_3", _all_samples)
        _figure(columns, output / "figure_4", _density)


def _figure(
    columns: Sequence[Column], path: Path, panel: Callable[[Any, Column], None]
) -> None:
    pyplot = require("matplotlib.pyplot", extra="plots")
    size = (PANEL[0] * len(columns), PANEL[1] + 0.5)
    figure, axes = pyplot.subplots(1, len(columns), figsize=size, squeeze=False)
    for ax, column in zip(axes[0], columns, strict=True):
        panel(ax, column)
        ax.set_title(column.title)
        ax.spines[["top", "right"]].set_visible(False)
    entries: dict[str, Any] = {}
    for ax in axes[0]:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="lower center",
        ncols=min(len(entries), 3 * len(columns)),
        frameon=False,
    )
    for kind, extra in (("png", {}), ("svg", {"Date": None})):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150, metadata=extra)
    pyplot.close(figure)


# -- perplexity over the number of samples -----------------------------------------


def _few_samples(ax: Any, column: Column) -> None:
    _curves(ax, column, min(FEW, column.num_samples))


def _all_samples(ax: Any, column: Column) -> None:
    _curves(ax, column, column.num_samples)
    _logarithmic(ax.xaxis, ax.set_xscale)


def _curves(ax: Any, column: Column, most: int) -> None:
    for curve in column.curves:
        rows = [row for row in column.curve(curve) if row["num_samples"] <= most]
        sizes = [row["num_samples"] for row in rows]
        (line,) = ax.plot(sizes, _values(rows, "perplexity"), **_style(column, curve))
        banded = [row for row in rows if "low" in row]
        ax.fill_between(
            [row["num_samples"] for row in banded],
            _values(banded, "low"),
            _values(banded, "high"),
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    ax.set_xlabel("samples a text (K)")
    ax.set_ylabel("token perplexity (instance level)")
    _logarithmic(ax.yaxis, ax.set_yscale)


# -- how estimates are distributed -------------------------------------------------


def _density(ax: Any, column: Column) -> None:
    size = int(column.settings["replicate"])
    for curve in column.curves:
        found = [row for row in column.curve(curve) if row["num_samples"] == size]
        if not found or not found[0].get("predicted"):
            continue
        values = np.log(_values(found, "predicted")[0])
        values = values[np.isfinite(values)]
        if len(values) < 2 or values.std() == 0:
            continue
        grid = np.linspace(values.min(), values.max(), 200)
        grid = np.concatenate([grid[:1] * 2 - grid[20:0:-1], grid])
        grid = np.concatenate([grid, grid[-1] * 2 - grid[-2:-22:-1]])
        height = kernel_density(values, grid)
        style = _style(column, curve)
        ax.plot(np.exp(grid), height / height.max(), **style)
        single = _values(found, "replicates")[0]
        ax.plot(single, 0 * single, "|", color=style["color"], clip_on=False)
    ax.set_xlabel(f"token perplexity from {size} samples a text")
    ax.set_ylabel("density (largest = 1)")
    ax.set_ylim(bottom=0)
    _logarithmic(ax.xaxis, ax.set_xscale)


def kernel_density(values: Any, grid: Any) -> Any:
    """Return the density of values (N,) at points (G,), by Gaussian kernels.

    The width is Silverman's: 0.9 sd N^(-1/5).
    """
    width = 0.9 * values.std() * len(values) ** -0.2
    z = (grid[:, None] - values) / width
    return np.exp(-(z**2) / 2).mean(1) / (width * np.sqrt(2 * np.pi))


# -- shared ------------------------------------------------------------------------


def _style(column: Column, curve: Curve) -> dict[str, Any]:
    """Temperatures from dark to light, other proposals in grey dashes."""
    from matplotlib import colormaps

    name, temperature = curve
    if name != column.proposal:
        dashes = OTHERS.get(name, FURTHER)
        return {"color": "0.35", "linestyle": dashes, "label": f"{name}, τ = 1"}
    temperatures = sorted(column.settings["temperatures"])
    share = temperatures.index(temperature) / max(1, len(temperatures) - 1)
    return {
        "color": colormaps["viridis"](0.92 * share),
        "label": f"τ = {temperature:g}",
    }


def _values(rows: list[Any], name: str) -> Any:
    """Read numbers of rows; infinite ones are strings there, and gaps in a line."""
    values = np.array([row[name] for row in rows], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)


def _logarithmic(axis: Any, set_scale: Callable[[str], None]) -> None:
    from matplotlib.ticker import (
        LogLocator,
        MaxNLocator,
        NullFormatter,
        StrMethodFormatter,
    )

    set_scale("log")
    low, high = axis.get_view_interval()
    if high / low < NARROW:
        axis.set_major_locator(MaxNLocator(nbins=5))
    else:
        subs = next(subs for most, subs in TICKS if high / low < most)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())
