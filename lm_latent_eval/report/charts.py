"""The charts of a report, as SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.registry import require
from lm_latent_eval.report import figures
from lm_latent_eval.report.figures import COLOURS, MARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORDS = ("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")
STYLE = {
    **figures.STYLE,
    **dict.fromkeys((*_WORDS, "font.size"), 10),
    "lines.linewidth": 1.5,
    "lines.markersize": 6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
NARROW = 4.6
"""Inches of a chart that is to be read on a telephone, as well."""
INK = "#010203"
"""Colour that stands for the text's, dark or light."""

NOISE = 1e-3
"""Share of a number that a curve's axis spans at least: less is no trend."""

Interval = tuple[float, float]
Series = Sequence[tuple[float, float]]


class Chart:
    """One set of axes, and its SVG for the page once it is drawn."""

    def __init__(self, figure: Figure) -> None:
        """Put axes on a figure."""
        self.figure, self.axes = figure, figure.add_subplot()
        self.svg = ""

    def save(self, stem: Path) -> None:
        """Write it for a paper: ``STEM.png``, ``.svg`` and ``.pdf``."""
        matplotlib = require("matplotlib", extra="report")
        with matplotlib.rc_context({**STYLE, "svg.fonttype": "path"}):
            figures.save(self.figure, stem)


@contextmanager
def chart(height: float = 3.2, width: float = 7.0) -> Iterator[Chart]:
    """Yield axes to draw on; what is drawn is in ``svg`` afterwards.

    Args:
        height: Inches.
        width: Inches; what is narrow can be read on a telephone, too.

    Raises:
        ModuleNotFoundError: If matplotlib is missing; says how to install it.
    """
    matplotlib = require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    named = ("text.color", "axes.edgecolor", "axes.labelcolor")
    ink = dict.fromkeys((*named, "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({**STYLE, **ink}):
        figure = Figure(figsize=(width, height), layout="constrained")
        drawn = Chart(figure)
        yield drawn
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    drawn.svg = _inline(written.getvalue(), width)


def _inline(svg: str, width: float) -> str:
    """Make a file a part of a page: no prologue, no fixed size, the page's ink."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    most = f'style="max-width: {100 * width:.0f}px"'
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf"\1 {most}", svg, count=1)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # names that all charts have
    return svg.replace(INK, "currentColor")


def intervals(
    rows: Sequence[tuple[str, float, Interval, float | None]],
    label: str,
    names: Sequence[str] = (),
) -> Chart:
    """Draw named numbers with their intervals.

    Args:
        rows: Name, value, interval, and what it is at most, if that is known.
        label: Of the axis.
        names: All models, whose looks are by their turn; without any, what is drawn
            are differences, and where there is none is marked.
    """
    with chart(0.9 + 0.35 * len(rows), NARROW) as drawn:
        axes = drawn.axes
        if not names:
            axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        for place, (name, value, (low, high), most) in enumerate(rows):
            colour, mark = _looks(name, names)
            axes.plot([low, high], [place, place], color=colour, linewidth=3, alpha=0.5)
            axes.plot(value, place, mark, color=colour)
            if most is not None:
                axes.plot(most, place, "|", color=INK, markersize=14)
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=6)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.set_xlabel(label)
    return drawn


def lines(series: Mapping[str, Series], names: Sequence[str], x: str, y: str) -> Chart:
    """Draw a curve a model, over a logarithmic axis."""
    with chart() as drawn:
        for name, points in series.items():
            colour, mark = _looks(name, names)
            drawn.axes.plot(
                *zip(*points, strict=True), color=colour, marker=mark, label=name
            )
        _finish(drawn.axes, x, y, logarithmic="x")
        low, high = drawn.axes.get_ylim()
        least = NOISE * max(abs(low), abs(high))
        if high - low < least:
            middle = (low + high) / 2
            drawn.axes.set_ylim(middle - least / 2, middle + least / 2)
    return drawn


def points(
    series: Mapping[str, Series], names: Sequence[str], x: str, y: str, *, least: float
) -> Chart:
    """Draw a cloud of points a model, over logarithmic axes.

    Args:
        series: Model -> points.
        names: All models.
        x: Label of the axis.
        y: Label of the axis.
        least: What the points' y cannot be below.
    """
    with chart() as drawn:
        for name, some in series.items():
            colour, mark = _looks(name, names)
            across, up = zip(*some, strict=True)
            drawn.axes.scatter(
                across,
                up,
                color=colour,
                marker=mark,
                s=14,
                alpha=0.6,
                linewidths=0,
                label=name,
            )
        drawn.axes.set_ylim(least * 0.95, drawn.axes.get_ylim()[1] * 1.1)
        _finish(drawn.axes, x, y, logarithmic="xy")
    return drawn


def shares(
    series: Mapping[str, Sequence[float]],
    names: Sequence[str],
    x: str,
    y: str,
    *,
    mark: float,
) -> Chart:
    """Draw which share of values is above each value, and mark one."""
    with chart() as drawn:
        for name, values in series.items():
            ordered = sorted(values)
            above = [1.0, *(1 - n / len(ordered) for n in range(1, len(ordered) + 1))]
            drawn.axes.step(
                [ordered[0], *ordered],
                above,
                where="post",
                color=_looks(name, names)[0],
                label=name,
            )
        drawn.axes.axvline(mark, color=INK, linewidth=0.8, linestyle=":")
        drawn.axes.set_ylim(0, 1.02)
        _finish(drawn.axes, x, y)
    return drawn


def _looks(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the colour and mark of a model, the same in every chart."""
    if name not in names:
        return INK, MARKS[0]
    place = names.index(name)
    return COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]


def _finish(axes: Axes, x: str, y: str, logarithmic: str = "") -> None:
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    for axis in {*"xy"} - {*logarithmic}:
        axes.ticklabel_format(axis=axis, useOffset=False)
    for axis in logarithmic:
        getattr(axes, f"set_{axis}scale")("log")
        scale = getattr(axes, f"{axis}axis")
        scale.set_major_formatter(StrMethodFormatter("{x:,g}"))
        low, high = scale.get_view_interval()
        few = high < 10 * low  # perhaps no power of ten among them
        scale.set_minor_formatter(
            StrMethodFormatter("{x:,g}") if few else NullFormatter()
        )
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    # Above the axes and flush with them: nothing drawn is behind it.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), borderaxespad=0, ncols=3)
