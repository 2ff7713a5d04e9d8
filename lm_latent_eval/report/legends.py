"""The legend of a figure, below its panels and on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = 0.43
"""Inches that an entry takes besides its words, in text of 7 points."""
CHARACTER = 0.055
"""Inches of one character of that text."""
POINTS = 7


def labelled(figure: Figure) -> dict[str, Any]:
    """Return what is drawn by its label, each label once, in the order drawn."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def place(
    figure: Figure, entries: Mapping[str, Any], *, points: float = POINTS
) -> None:
    """Put a legend below the panels, in as few rows as there is room for.

    Args:
        figure: With everything drawn.
        entries: What is drawn, by its label; none is no legend.
        points: Size of the text.
    """
    if not entries:
        return
    room = figure.get_figwidth() * POINTS / points
    ncols = _balanced(len(entries), _ncols(list(entries), room))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=ncols,
        fontsize=points,
        frameon=False,
    )


def _ncols(labels: Sequence[str], room: float) -> int:
    """Return in how many columns labels fit, as a legend fills them, by rough width."""
    widths = [KEY + CHARACTER * len(label) for label in labels]
    fitting = (
        ncols
        for ncols in range(len(labels), 1, -1)
        if sum(max(column) for column in np.array_split(widths, ncols)) <= room
    )
    return next(fitting, 1)


def _balanced(number: int, most: int) -> int:
    """Return the fewest columns that make as many rows as the most columns do.

    Example:
        >>> _balanced(9, 5), _balanced(8, 7)
        (5, 4)
    """
    rows = -(-number // most)
    return -(-number // rows)
