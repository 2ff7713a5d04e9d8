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
ENTRY = 1.75
"""Inches that an entry of the legend takes."""
NARROW = 1.6
"""Ratio of an axis' ends below which it is marked as if it were linear."""
TICKS = (
    (8, (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)),
    (60, (1, 2, 5)),
    (1000, (1, 3)),
    (np.inf, (1,)),
)
"""Up to which ratio of an axis' ends it is marked at which leading digits."""
COLOURS = ("#332288", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
"""Of temperatures in their order; both can be told apart by the colour-blind."""
DASHES = ((0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
GREYS = ("0.15", "0.4", "0.6")
"""Of proposals that are not tempered, in the order of their names."""
BAND = "95 % of fresh estimates"
SHOWN = 0.99
"""Share of the estimates that figure 4 shows: few outliers shall not squeeze it."""


def draw(columns: Sequence[Column], output: Path) -> None:
    """Draw every figure that the columns have numbers for, as PNG, SVG and PDF.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    matplotlib = require("matplotlib", extra="plots")
    matplotlib.use("agg")
    style = {
        "font.size": 9,
        "lines.markersize": 3.5,
        "svg.hashsalt": "lm-latent-eval",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # whole fonts, which journals ask for
    }
    with matplotlib.rc_context(style):
        _figure(columns, output / "figure_2", _few_samples)
        _figure(columns, output / "figure_3", _all_samples)
        _figure(columns, output / "figure_4", _density)


def _figure(
    columns: Sequence[Column],
    path: Path,
    panel: Callable[[Any, Column, dict[Curve, dict[str, Any]]], None],
) -> None:
    pyplot = require("matplotlib.pyplot", extra="plots")
    width = PANEL[0] * len(columns)
    looks = _looks(columns)
    entries = len({look["label"] for found in looks for look in found.values()}) + 1
    ncols = max(int(width / ENTRY), 1)
    height = PANEL[1] + 0.2 * -(-entries // ncols)
    figure, axes = pyplot.subplots(
        1, len(columns), figsize=(width, height), squeeze=False, layout="constrained"
    )
    for ax, column, look in zip(axes[0], columns, looks, strict=True):
        panel(ax, column, look)
        ax.set_title(column.title)
        ax.spines[["top", "right"]].set_visible(False)
    named: dict[str, Any] = {}
    for ax in axes[0]:
        handles, labels = ax.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if band := named.pop(BAND, None):
        named[BAND] = band  # behind the curves
    if named:
        figure.legend(
            named.values(),
            named.keys(),
            loc="outside lower center",
            ncols=ncols,
            frameon=False,
        )
    dates: dict[str, dict[str, None]] = {
        "png": {},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }
    for kind, extra in dates.items():
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150, metadata=extra)
    pyplot.close(figure)


def _looks(columns: Sequence[Column]) -> list[dict[Curve, dict[str, Any]]]:
    """Return how each column's curves look: a name looks the same in every panel."""
    temperatures = sorted({t for c in columns for t in c.settings["temperatures"]})
    others = sorted({name for c in columns for name in c.settings["others"]})

    def look(column: Column, curve: Curve) -> dict[str, Any]:
        name, temperature = curve
        if name != column.proposal:
            place = others.index(name)
            return {
                "color": GREYS[place // len(DASHES) % len(GREYS)],
                "linestyle": DASHES[place % len(DASHES)],
                "label": f"{name}, τ = 1",
            }
        place = temperatures.index(temperature)
        return {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKS[place % len(MARKS)],
            "label": f"τ = {temperature:g}",
        }

    return [{curve: look(c, curve) for curve in c.curves} for c in columns]


# -- perplexity over the number of samples -----------------------------------------


def _few_samples(ax: Any, column: Column, looks: dict[Curve, dict[str, Any]]) -> None:
    _curves(ax, column, looks, min(FEW, column.num_samples))


def _all_samples(ax: Any, column: Column, looks: dict[Curve, dict[str, Any]]) -> None:
    _curves(ax, column, looks, column.num_samples)
    _logarithmic(ax.xaxis, ax.set_xscale)


def _curves(
    ax: Any, column: Column, looks: dict[Curve, dict[str, Any]], most: int
) -> None:
    for curve, look in looks.items():
        rows = [row for row in column.curve(curve) if row["num_samples"] <= most]
        sizes = [row["num_samples"] for row in rows]
        ax.plot(sizes, _values(rows, "perplexity"), **look)
        banded = [row for row in rows if "low" in row]
        ax.fill_between(
            [row["num_samples"] for row in banded],
            _values(banded, "low"),
            _values(banded, "high"),
            color=look["color"],
            alpha=0.2,
            linewidth=0,
        )
    ax.fill_between([], [], [], color="0.5", alpha=0.3, linewidth=0, label=BAND)
    ax.set_xlabel("samples a text (K)")
    ax.set_ylabel("token perplexity (instance level)")
    _logarithmic(ax.yaxis, ax.set_yscale)


# -- how estimates are distributed -------------------------------------------------


def _density(ax: Any, column: Column, looks: dict[Curve, dict[str, Any]]) -> None:
    """Draw a ridge a curve, each around its own median, which its name tells.

    Perplexities differ by far more between curves than within one: on a common axis
    every density is a spike.
    """
    size = int(column.settings["replicate"])
    names: list[str] = []
    farthest = 0.0
    for curve, look in looks.items():
        found = [row for row in column.curve(curve) if row["num_samples"] == size]
        if not found or not found[0].get("predicted"):
            continue
        values = np.log(_values(found, "predicted")[0])
        values = values[np.isfinite(values)]
        if len(values) < 2 or values.std() == 0:
            continue
        median, place = np.median(values), len(names)
        names.append(f"{look['label']}: {np.exp(median):,.4g}")
        away = np.quantile(abs(values - median), SHOWN)
        farthest = max(farthest, float(away))
        grid = np.linspace(-1.6 * away, 1.6 * away, 300)
        height = kernel_density(values - median, grid)
        height *= 0.85 / height.max()
        ax.fill_between(
            100 * np.expm1(grid),
            -place,
            height - place,
            color=look["color"],
            alpha=0.35,
            linewidth=0,
        )
        ax.plot(100 * np.expm1(grid), height - place, color=look["color"])
        single = np.log(_values(found, "replicates")[0]) - median
        ax.plot(100 * np.expm1(single), 0 * single - place, "|", color=look["color"])
    ax.set_yticks(-np.arange(len(names)), names, fontsize=8)
    if farthest:
        ax.set_xlim(-100 * np.expm1(1.6 * farthest), 100 * np.expm1(1.6 * farthest))
    ax.set_xlabel(f"token perplexity\nfrom {size} samples,\n% from its median")


def kernel_density(values: Any, grid: Any) -> Any:
    """Return the density of values (N,) at points (G,), by Gaussian kernels.

    The width is Silverman's: 0.9 sd N^(-1/5).
    """
    width = 0.9 * values.std() * len(values) ** -0.2
    z = (grid[:, None] - values) / width
    return np.exp(-(z**2) / 2).mean(1) / (width * np.sqrt(2 * np.pi))


# -- shared ------------------------------------------------------------------------


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
