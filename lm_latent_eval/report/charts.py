"""Charts of a report: matplotlib's figures, which it writes as SVG into the page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.registry import require
from lm_latent_eval.report import figures
from lm_latent_eval.report.figures import COLOURS, MARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

INK = "#777777"
"""Colour of lines, which shows on white and on black."""
STYLE = {
    **figures.STYLE,
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 10),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 10),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "lines.linewidth": 1.5,
    "lines.markersize": 6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
WIDTH = 4.6
"""Inches: what is as narrow can be read on a telephone, too."""

Band = tuple[str, float, tuple[float, float], float | None]
"""Name, value, interval, and what the value is at most, if that is known."""


@contextmanager
def _axes(height: float = 3.2, width: float = WIDTH) -> Iterator[tuple[Figure, Axes]]:
    matplotlib = require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def svg(figure: Figure) -> str:
    """Return a figure as an element of a page."""
    matplotlib, written = require("matplotlib", extra="report"), io.StringIO()
    with matplotlib.rc_context(STYLE):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    text = written.getvalue()
    return text[text.index("<svg") :]


def save(figure: Figure, stem: Path) -> None:
    """Write a figure for a paper: ``STEM.png``, ``.svg`` and ``.pdf``."""
    matplotlib = require("matplotlib", extra="report")
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "path"}):
        figures.save(figure, stem)


def intervals(bands: Sequence[Band], label: str, names: Sequence[str] = ()) -> Figure:
    """Draw named numbers with their intervals.

    Args:
        bands: The numbers.
        label: Label of the axis.
        names: All models, whose looks are by their turn; without any, what is drawn
            are differences, and where there is none is marked.
    """
    with _axes(0.9 + 0.35 * len(bands)) as (figure, axes):
        if not names:
            axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        for row, (name, value, ends, most) in enumerate(bands):
            colour, mark = _looks(name, names)
            axes.hlines(row, *ends, color=colour, linewidth=3, alpha=0.5)
            axes.plot(value, row, mark, color=colour)
            if most is not None:
                axes.plot(most, row, "|", color=INK, markersize=14)
        axes.set_yticks(range(len(bands)), [name for name, *_ in bands])
        axes.set_ylim(len(bands) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=6)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.set_xlabel(label)
    return figure


def surprisal(words: DataFrame) -> Figure:
    """Draw the surprisal of the words of a text, in bits, with 95 % intervals.

    Args:
        words: The rows of one text of a table of ``scoring.inside.surprisal``. A word
            whose error is not known has an open mark.
    """
    places, width = range(len(words)), max(WIDTH, 0.45 * len(words))
    errors = words.error_bits.astype(float)
    known = errors.notna()
    with _axes(3.2, width) as (figure, axes):
        bits = words.surprisal_bits.astype(float)
        axes.plot(places, bits, color=COLOURS[0], linewidth=0.8)
        axes.errorbar(
            places, bits, 1.96 * errors.fillna(0.0), fmt="none", ecolor=COLOURS[0]
        )
        for shown, inside in ((known, COLOURS[0]), (~known, "none")):
            axes.scatter(
                *([n for n in places if shown.iloc[n]], bits[shown]),
                edgecolor=COLOURS[0],
                facecolor=inside,
                zorder=3,
            )
        axes.set_xticks(
            places, [*map(figures.drawable, words.word)], rotation=45, ha="right"
        )
        axes.set_ylim(bottom=min(0.0, float(bits.min())))
        axes.set_ylabel("surprisal, bits")
    return figure


def _looks(name: str, names: Sequence[str]) -> tuple[str, str]:
    if name not in names:
        return INK, MARKS[0]
    index = names.index(name)
    return COLOURS[index % len(COLOURS)], MARKS[index % len(MARKS)]
