"""Draws what ``benchmarks/estimators.py`` wrote: errors against costs.

    python benchmarks/estimators_figure.py --output FIGURE "NAME=one.json,more.json"

A column is a model, of one or more files; FIGURE is a path without ending.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from lm_latent_eval.report.figures import STYLE, save

MARKERS = {"auto": "*", "mixed": "o", "is": "s", "smc": "^", "beam": "v"}
COLOURS = {
    "adapted": "#0072b2",
    "smoothing": "#e69f00",
    "crf": "#e69f00",
    "peeking": "#d55e00",
    "nonpeeking": "#cc79a7",
    "prior": "#777777",
}
SMALLEST = 1e-3
"""Errors below it are drawn there, in nats: references are no better."""
COSTS = {
    "evaluations": "latents scored by p, a text",
    "seconds": "CPU seconds, all texts",
}


def rows(files: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of several files."""
    for name in files.split(","):
        yield from json.loads(Path(name).read_text())["rows"]


def draw(ax: Axes, found: list[dict[str, Any]], cost: str) -> None:
    """Draw a model's errors; lines join settings that differ in their samples."""
    groups: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for row in found:
        estimator, proposal, number = row["setting"].split(",")
        point = (int(number), row[cost], max(row["median"], SMALLEST))
        groups.setdefault((estimator, proposal), []).append(point)
    for (estimator, proposal), points in groups.items():
        _, x, y = zip(*sorted(points), strict=True)
        ax.plot(
            x,
            y,
            marker=MARKERS[estimator],
            markersize=9 if estimator == "auto" else 5,
            color=COLOURS[proposal],
            linewidth=0.8,
            alpha=0.85,
        )
    ax.set(xscale="log", yscale="log", xlabel=COSTS[cost])
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(alpha=0.25, which="major")


def legend(figure: Figure, proposals: list[str]) -> None:
    """Explain shapes and colours below the panels."""
    shapes = [
        Line2D([], [], marker=m, linestyle="", color="black", label=name)
        for name, m in MARKERS.items()
    ]
    colours = [
        Line2D([], [], color=COLOURS[name], linewidth=3, label=name)
        for name in proposals
    ]
    figure.legend(
        handles=[*shapes, *colours],
        loc="outside lower center",
        ncols=len(shapes) + len(colours),
        columnspacing=1.0,
        handlelength=1.2,
        frameon=False,
    )


def main() -> None:
    """Draw a column a model, a row a cost."""
    parser = argparse.ArgumentParser(description="Errors against costs.")
    parser.add_argument("models", nargs="+", help="NAME=FILE,FILE")
    parser.add_argument("--output", type=Path, required=True, help="without ending")
    args = parser.parse_args()
    models = dict(each.split("=", 1) for each in args.models)
    with matplotlib.rc_context({**STYLE, "font.size": 9}):
        figure = Figure(figsize=(3.1 * len(models), 6.2), layout="constrained")
        panels = figure.subplots(2, len(models), sharey="col", squeeze=False)
        seen: dict[str, None] = {}
        for column, (name, files) in enumerate(models.items()):
            found = list(rows(files))
            seen |= {row["setting"].split(",")[1]: None for row in found}
            for ax, cost in zip(panels[:, column], COSTS, strict=True):
                draw(ax, found, cost)
            panels[0, column].set_title(name)
        for ax in panels[:, 0]:
            ax.set_ylabel("median error, nats a text")
        legend(figure, [name for name in COLOURS if name in seen])
        save(figure, args.output)


if __name__ == "__main__":
    main()
