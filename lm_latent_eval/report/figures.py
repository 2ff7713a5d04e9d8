"""Figures: one style, the page they are drawn on, their legend, and their files.

Files are PNG to look at, SVG for pages and PDF for papers. They depend on what is drawn
alone: they hold no date and no random name. Fonts are in them (as outlines in an SVG,
whole in a PDF), so they look the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.registry import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESOLUTION = 220
"""Resolution of the PNG, dots an inch."""
EMBEDDED = 150
"""Resolution of the pixels in SVG and PDF, dots an inch."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Told apart by the colour-blind, on white and on black."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[str, Any] = {
    "svg.hashsalt": "lm-latent-eval",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, Type 3
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.titlesize": 9,
    "legend.columnspacing": 1.4,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    "text.parse_math": False,  # a dollar in a sequence or a name is a dollar
}
"""Settings of matplotlib that figures are drawn with."""
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
ENDINGS = tuple(_UNDATED)
_POINTS = 7
"""Size of the text in legends."""


@contextmanager
def page(path: Path, *, width: float, height: float) -> Iterator[Figure]:
    """Give a figure to draw on; then write it as PNG, SVG and PDF.

    Nothing is written if the drawing fails, and nothing stays open.

    Args:
        path: Files without their endings; the folder is made if need be.
        width: Inches.
        height: Inches.

    Raises:
        ModuleNotFoundError: If matplotlib is missing; says how to install it.
    """
    matplotlib = require("matplotlib", extra="plots")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for text in figure.findobj(Text):
            text.set_text(drawable(text.get_text()))
        save(figure, path)


def drawable(text: str) -> str:
    """Escape characters that the font of figures lacks."""
    has = _code_points()
    return "".join(
        c if ord(c) in has else c.encode("ascii", "backslashreplace").decode()
        for c in text
    )


@cache
def _code_points() -> frozenset[int]:
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return frozenset(font.get_charmap())


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as ``STEM.png``, ``STEM.svg`` and ``STEM.pdf``.

    Args:
        figure: Drawn under ``STYLE``.
        stem: The files without their endings; the folder is made if need be.
    """
    # Every drawing moves the layout a little: one is for all files.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind, metadata in _UNDATED.items():
        figure.savefig(
            stem.with_name(f"{stem.name}.{kind}"),
            dpi=RESOLUTION if kind == "png" else EMBEDDED,
            metadata=metadata,
        )


def labelled(figure: Figure) -> dict[str, Any]:
    """Return artists by their label, each label once, in the order drawn."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def legend(figure: Figure, entries: Mapping[str, Any]) -> None:
    """Put a legend below the panels, in as few rows as there is room for.

    Args:
        figure: With everything drawn.
        entries: Artists by their label; none is no legend.
    """
    for rows in range(1, len(entries) + 1):
        shown = figure.legend(
            list(entries.values()),
            [*map(drawable, entries)],
            loc="outside lower center",
            ncols=-(-len(entries) // rows),
            fontsize=_POINTS,
            frameon=False,
        )
        fits = shown.get_window_extent().width <= figure.bbox.width
        if fits or rows == len(entries):
            break
        shown.remove()
