"""Figures of a study, after Logan et al. (2020).

Figures 2 and 3: perplexity over the number of samples, to 100 and to all, and below it
temperatures relative to 1. Figure 4: how estimates from one number of samples are
distributed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.report import figures
from lm_latent_eval.study.claims import Curve, StudyColumn, values_of
from lm_latent_eval.study.rows import Row

RIDGE, TICK = "density of fresh estimates", "replicates drawn"
SHOWN = 0.99
"""Share of the estimates that figure 4 shows: few outliers shall not squeeze it."""
POINTS = 90
"""Of a ridge's outline."""

Looks = dict[Curve, dict[str, Any]]


def ridges(ax: Any, column: StudyColumn, looks: Looks) -> None:
    """Draw a ridge a curve, each around its own median, which stands beside its name.

    Perplexities differ by far more between curves than within one: on a common axis
    every density is a spike. How wide a ridge is stands beside its name as well, since
    widths can differ a hundredfold.
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
        spread = 100 * values.std()
        names.append(f"{look['label']}: {np.exp(median):,.4g} ± {spread:.2g} %")
    ax.fill([], [], facecolor="0.8", edgecolor="0.3", label=RIDGE)
    ax.plot([], [], "|", color="0.3", markersize=6, label=TICK)
    ax.set_yticks(-np.arange(len(names)), names, fontsize=7)
    ax.set_ylim(-len(names) + 0.7, 1)
    ax.set_xlabel(
        f"token perplexity, {size} samples:\n% from the median on the left\n"
        "(± standard deviation)"
    )
    if reach:
        ax.set_xlim(100 * np.expm1([-max(reach), max(reach)]))


def _ridge(
    ax: Any, values: Any, single: Any, base: int, color: str, away: float
) -> None:
    """Draw a density over its base, and what was drawn as ticks on it.

    Values are logarithms less their median: the density's, which reaches so far away,
    and single ones of replicates.
    """
    from matplotlib.colors import to_rgba
    from scipy.stats import gaussian_kde

    grid = np.linspace(-away, away, POINTS)
    height = gaussian_kde(values)(grid) / np.exp(grid)  # a %, as the axis is
    height *= 0.85 / height.max()
    ax.fill(
        100 * np.expm1([-away, *grid, away]),
        base + np.array([0, *height, 0]),
        facecolor=to_rgba(color, 0.35),
        edgecolor=color,
    )
    ax.plot(100 * np.expm1(single), 0 * single + base, "|", color=color)


FEW = 100
"""Samples up to which figure 2 goes."""
PAGE = 7.2
"""Width of a page, inches; a figure of one panel takes half of it."""
HEIGHTS = {"curves": 2.6, "near": 1.5, "ridges": 3.0}
"""Of panels, inches."""
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
"""Of temperatures in their order, the darkest first; told apart by the colour-blind."""
DASHES = ((0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
GREYS = ("0.15", "0.4", "0.6")
"""Of proposals that are not tempered, in the order of their names."""
BAND = "95 % of fresh estimates"
BEHIND = (BAND, RIDGE, TICK)
"""Entries of the legend after the curves."""
Panels = dict[str, Callable[[Any, StudyColumn, Looks], None]]
"""Name of each panel, by which its height is known -> its function, from above."""


def draw_figures(columns: Sequence[StudyColumn], output: Path) -> None:
    """Draw every figure that the columns have numbers for, as PNG, SVG and PDF.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    for name, most in (("figure_2", FEW), ("figure_3", math.inf)):
        panels: Panels = {"curves": partial(_curves, most=most)}
        if any(map(_neighbours, columns)):
            panels["near"] = partial(_near, most=most)
        _figure(columns, output / name, panels)
    _figure(columns, output / "figure_4", {"ridges": ridges})


def _figure(columns: Sequence[StudyColumn], path: Path, panels: Panels) -> None:
    """Draw the panels of each column, one below the other."""
    most = 2 if "ridges" in panels else 3  # names of ridges take room
    across = 2 if len(columns) == 4 else min(most, len(columns))
    blocks = -(-len(columns) // across)
    heights = [HEIGHTS[name] for name in panels] * blocks
    width = PAGE / 2 if across == 1 else PAGE
    looks = _looks(columns)
    with figures.page(path, width=width, height=sum(heights) + 0.6) as figure:
        axes = figure.subplots(
            len(heights), across, squeeze=False, height_ratios=heights
        )
        for place, (column, look) in enumerate(zip(columns, looks, strict=True)):
            block, beside = divmod(place, across)
            for row, panel in enumerate(panels.values(), start=block * len(panels)):
                panel(axes[row, beside], column, look)
                if beside and len(panels) > 1:  # the first panel has the same label
                    axes[row, beside].set_ylabel("")
            axes[block * len(panels), beside].set_title(column.title)
        for ax in figure.axes:
            if not ax.has_data():
                ax.set_axis_off()
        entries = figures.labelled(figure)
        for label in BEHIND:
            if label in entries:
                entries[label] = entries.pop(label)
        figures.legend(figure, entries)


def _looks(columns: Sequence[StudyColumn]) -> list[Looks]:
    """Return how each column's curves look: a name looks the same in every panel."""
    temperatures = sorted({t for c in columns for t in c.settings["temperatures"]})
    others = sorted({name for c in columns for name in c.settings["others"]})

    def look(column: StudyColumn, curve: Curve) -> dict[str, Any]:
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
            "marker": figures.MARKS[place % len(figures.MARKS)],
            "label": f"τ = {temperature:g}",
        }

    return [{curve: look(c, curve) for curve in c.curves} for c in columns]


# -- perplexity over the number of samples -----------------------------------------


def _curves(ax: Any, column: StudyColumn, looks: Looks, most: float) -> None:
    for curve, look in looks.items():
        rows = _up_to(most, column.curve(curve))
        ax.plot(_sizes(rows), values_of(rows, "perplexity"), **look)
        _band(ax, rows, look["color"])
    ax.fill_between([], [], [], color="0.5", alpha=0.3, linewidth=0, label=BAND)
    ax.set_xlabel("samples a text (K)")
    ax.set_ylabel("token perplexity\n(instance level)")
    _logarithmic(ax.yaxis, ax.set_yscale)
    if most > FEW:
        _logarithmic(ax.xaxis, ax.set_xscale)


def _band(ax: Any, rows: list[Row], color: str, against: Any = None) -> float:
    """Draw where fresh estimates lie, in % of a number a row if there are numbers.

    Returns:
        How far from 0 they lie at most, at larger numbers of samples.
    """
    banded = [n for n, row in enumerate(rows) if "low" in row]
    some = [rows[n] for n in banded]
    ends = np.array([values_of(some, name) for name in ("low", "high")])
    if against is not None:
        ends = 100 * (ends / against[banded] - 1)
    ax.fill_between(_sizes(some), *ends, color=color, alpha=0.2, linewidth=0)
    return _farthest(ends)


def _farthest(values: Any) -> float:
    """Return the largest number of the later half, whatever its sign."""
    later = abs(values[..., -(values.shape[-1] // 2) :])
    return float(np.nanmax(later, initial=0.0))


# -- temperatures in % of the first -------------------------------------------------


def _near(ax: Any, column: StudyColumn, looks: Looks, most: float) -> None:
    """Draw temperatures in % of the first: those about 1 coincide on a wide axis.

    The axis reaches as far as 1 and the temperatures next to it do at larger numbers of
    samples; what lies farther away is in the panel above.
    """
    first = (column.proposal, 1.0)
    shown = [*_neighbours(column), first]
    if len(shown) == 1:
        return
    known = values_of(_up_to(most, column.curve(first)), "perplexity")
    farthest = 0.0
    for curve, look in looks.items():
        rows = _up_to(most, column.curve(curve))
        if curve[0] != column.proposal or len(rows) != len(known):
            continue
        away = 100 * (values_of(rows, "perplexity") / known - 1)
        ax.plot(_sizes(rows), away, **look)
        reach = max(_farthest(away), _band(ax, rows, look["color"], known))
        farthest = max(farthest, reach if curve in shown else 0.0)
    ax.set_ylim(-1.1 * (farthest or 1.0), 1.1 * (farthest or 1.0))
    ax.set_xlabel("samples a text (K)")
    ax.set_ylabel("% above τ = 1")
    if most > FEW:
        _logarithmic(ax.xaxis, ax.set_xscale)


def _neighbours(column: StudyColumn) -> list[Curve]:
    """Return the curves of the temperatures next to 1, if there is one of 1 as well."""
    tempered = sorted(t for name, t in column.curves if name == column.proposal)
    if 1.0 not in tempered:
        return []
    place = tempered.index(1.0)
    beside = tempered[max(0, place - 1) : place] + tempered[place + 1 : place + 2]
    return [(column.proposal, t) for t in beside]


# -- shared ------------------------------------------------------------------------


def _up_to(most: float, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["num_samples"] <= most]


def _sizes(rows: list[Row]) -> list[int]:
    return [row["num_samples"] for row in rows]


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
