"""Shared style of figures, and JSON of measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.distortion.statistics import ErrorBin, LengthError
from lm_latent_eval.files import write_text
from lm_latent_eval.ledger.settings import plain
from lm_latent_eval.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PAGE = 6.8
"""Width of a page of two columns, inches."""
COLUMN = 3.3
"""Width of one of its columns, inches."""
LENGTH_PANELS = 3
"""Panels of errors by length that share the width of a page."""
ERROR = "mean estimation error (nats)"
TRUTH = "true log p (nats)"
NO_ERROR = "no error (below: underestimated)"
BAND = "95 % interval of the mean"
DOTTED: dict[str, Any] = {"color": "0.2", "linewidth": 1, "linestyle": (0, (1, 1.3))}
"""The line where a model is right."""


def width_of(panels: int, most: int) -> float:
    """Return the width of panels, inches; more than share a page make it wider."""
    return COLUMN if panels == 1 else PAGE * max(1, panels / most)


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each model, by its turn.

    Raises:
        ValueError: If there are more models than colours.

    Example:
        >>> colours(["first", "second"])
        {'first': '#0072b2', 'second': '#d55e00'}
    """
    names = list(names)
    if len(names) > len(figures.COLOURS):
        raise ValueError(
            f"{len(names)} models share one figure, which has {len(figures.COLOURS)} "
            "colours; draw fewer in each of several figures"
        )
    return dict(zip(names, figures.COLOURS, strict=False))


def plot_band(
    ax: Axes,
    x: Sequence[float],
    errors: Sequence[ErrorBin | LengthError],
    *,
    color: str,
    label: str,
) -> None:
    """Draw mean errors in their band, which the legend names; one becomes a dot."""
    alone = len(x) == 1
    middle = [each.mean_error for each in errors]
    ax.plot(x, middle, "o" if alone else "-", color=color, label=label)
    ax.fill_between(
        x,
        [each.lower for each in errors],
        [each.upper for each in errors],
        color=color,
        alpha=0.25,
        linewidth=2 if alone else 0,
        label=BAND,
    )


def zero_line(ax: Axes, label: str | None = NO_ERROR) -> None:
    """Draw where the model is right on average."""
    ax.axhline(0, label=label, **DOTTED)


def legend(figure: Figure) -> None:
    """Name what is drawn below the panels, each label once, in the order drawn."""
    from matplotlib.patches import Patch

    entries = figures.labelled(figure)
    if entries.pop(BAND, None):  # after the curves, and of no curve's colour
        entries[BAND] = Patch(color="0.5", alpha=0.4, linewidth=0)
    figures.legend(figure, entries)


def write_json(stem: Path, found: Mapping[str, Any]) -> None:
    """Write measurements, dataclasses among them, into ``STEM.json``.

    What is infinite or no number is written as a string: JSON has neither.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(dict(found)), default=_plain, indent=1, allow_nan=False)
    write_text(stem.with_name(f"{stem.name}.json"), text + "\n")


def _plain(measured: Any) -> Any:
    return plain(asdict(measured))
