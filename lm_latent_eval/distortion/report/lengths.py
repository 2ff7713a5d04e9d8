"""Mean error by length: figure 12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.distortion.report.style import (
    ERROR,
    legend,
    plot_band,
    width_of,
    zero_line,
)
from lm_latent_eval.distortion.statistics import LengthErrors
from lm_latent_eval.report.figures import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 3
"""Panels that share the width of a page."""


def draw_lengths(
    path: Path, panels: Sequence[tuple[str, LengthErrors]], *, title: str | None = None
) -> None:
    """Draw expected and observed error by length (figure 12).

    Args:
        path: Of the files, without their endings.
        panels: Models and their errors, from left to right.
        title: Above the panels.

    Raises:
        ModuleNotFoundError: If matplotlib is missing.
        ValueError: If there are no panels.
    """
    if not panels:
        raise ValueError("a figure of lengths needs the errors of a model; got none")
    width = width_of(len(panels), MOST)
    with page(path, width=width, height=2.7, title=title) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (name, errors) in zip(axes, panels, strict=True):
            plot_lengths(ax, errors)
            ax.set_title(name)
        axes[0].set_ylabel(ERROR)
        legend(figure)


def plot_lengths(ax: Axes, errors: LengthErrors) -> None:
    """Draw the mean error of each length, and what its number of tokens explains."""
    lengths = [each.num_tokens for each in errors.lengths]
    plot_band(
        ax,
        lengths,
        [each.mean_error for each in errors.lengths],
        [each.lower for each in errors.lengths],
        [each.upper for each in errors.lengths],
        color="#0072b2",
        label="observed",
    )
    ax.plot(
        lengths,
        [each.expected for each in errors.lengths],
        "-" if len(lengths) > 1 else "D",
        color="black",
        label="expected (length × mean error a token)",
    )
    zero_line(ax)
    ax.set_xlabel("tokens of a sequence")
