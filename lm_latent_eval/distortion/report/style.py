"""Shared style of the distortion figures: sizes, colours, bands, legend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lm_latent_eval.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = 6.8
"""Width of a page of two columns, inches."""
COLUMN = 3.3
"""Width of one of its columns, inches."""
MODELS = {
    "lstm": "#d55e00",
    "gpt2small": "#56b4e9",
    "gpt2medium": "#0072b2",
    "gpt2large": "#003b66",
    "gpt2": "#0072b2",
    "rnng": "#009e73",
}
"""Colours of models by how their names begin, the same in every figure."""
OTHERS = ("#cc79a7", "#e69f00", "#7f7f7f")
"""Colours of further models, in the order of their names."""
LIGHTEST = 0.85
"""Where an ordered scale ends: viridis grows too pale for lines on white after it."""
ERROR = "mean estimation error (nats)"
TRUTH = "true log p (nats)"
NO_ERROR = "no error (below: underestimated)"
BAND = "95 % interval of the mean"
DOTTED: dict[str, Any] = {"color": "0.2", "linewidth": 1, "linestyle": (0, (1, 1.3))}
"""The line where a model is right."""


def width_of(panels: int, most: int) -> float:
    """Return the width of panels side by side, inches.

    Args:
        panels: How many.
        most: That share a page's width; further ones make the figure wider.
    """
    return COLUMN if panels == 1 else PAGE * max(1, panels / most)


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each model: by its kind if known, else by its turn.

    A known kind has its colour in every figure; of several models of a kind the first
    has it. The colours can be told apart by the colour-blind.

    Raises:
        ValueError: If there are more models than colours.

    Example:
        >>> colours(["GPT2-medium", "mine"])
        {'GPT2-medium': '#0072b2', 'mine': '#cc79a7'}
    """
    names = list(names)
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub("[^a-z0-9]", "", name.lower())
        kind = next((kind for kind in MODELS if plain.startswith(kind)), None)
        if kind and MODELS[kind] not in found.values():
            found[name] = MODELS[kind]
    free = [c for c in (*OTHERS, *MODELS.values()) if c not in found.values()]
    left = iter(dict.fromkeys(free))
    for name in names:
        if name not in found and (colour := next(left, None)):
            found[name] = colour
    if len(found) < len(set(names)):
        raise ValueError(
            f"{len(set(names))} models share one figure, which has {len(found)} "
            "colours; draw fewer in each of several figures"
        )
    return {name: found[name] for name in names}


def shades(count: int) -> list[str]:
    """Return colours of an ordered scale, from the darkest to the lightest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(LIGHTEST * i / max(1, count - 1))) for i in range(count)]


def plot_band(
    ax: Axes,
    x: Sequence[float],
    middle: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    *,
    color: str,
    label: str | None = None,
) -> None:
    """Draw a line in its band, which the legend names; one point becomes a dot."""
    alone = len(x) == 1
    ax.plot(x, middle, "o" if alone else "-", color=color, label=label)
    width = 2 if alone else 0
    ax.fill_between(
        x, lower, upper, color=color, alpha=0.25, linewidth=width, label=BAND
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
