"""Potential productivity by sample size: figure 13."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.distortion.report.style import COLUMN, legend, shades
from lm_latent_eval.distortion.statistics import ProductivityCurve
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_productivity(
    path: Path, curves: Mapping[str, ProductivityCurve], *, title: str | None = None
) -> None:
    """Draw the probability that the next event is new (figure 13).

    Args:
        path: Of the files, without their endings.
        curves: By what is counted (1-grams, 2-grams, ..., sequences), from dark to
            light.
        title: Above the panel.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
    """
    with page(path, width=COLUMN, height=2.8, title=title) as figure:
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
