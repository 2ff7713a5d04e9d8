"""Shared style of figures, JSON of measurements, and token sequences as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.statistics import ErrorBin, LengthError
from lm_latent_eval.files import write_text
from lm_latent_eval.ledger.settings import plain
from lm_latent_eval.options import whole
from lm_latent_eval.report import figures
from lm_latent_eval.report.tabular import Table
from lm_latent_eval.wrappers.tokens.vocabulary import byte_level, bytes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase


PAGE = 6.8
"""Width of a page of two columns, inches."""
COLUMN = 3.3
"""Width of one of its columns, inches."""
MODELS = {
    "LSTM": "#d55e00",
    "GPT2-small": "#56b4e9",
    "GPT2-medium": "#0072b2",
    "GPT2-large": "#003b66",
}
"""Colours of a study's models, the same in every figure."""
LENGTH_PANELS = 3
"""Panels of errors by length that share the width of a page."""
LIGHTEST = 0.85
"""Where an ordered scale ends: viridis grows too pale for lines on white after it."""
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
    """Return a colour for each model: its own in a study, others by their turn.

    Raises:
        ValueError: If there are more models than colours.

    Example:
        >>> colours(["GPT2-medium", "mine"])
        {'GPT2-medium': '#0072b2', 'mine': '#d55e00'}
    """
    names = list(names)
    found = {name: MODELS[name] for name in names if name in MODELS}
    others = [name for name in names if name not in found]
    free = [colour for colour in figures.COLOURS if colour not in found.values()]
    if len(others) > len(free):
        raise ValueError(
            f"{len(names)} models share one figure, which has "
            f"{len(found) + len(free)} colours; draw fewer in each of several figures"
        )
    return found | dict(zip(others, free, strict=False))


def shades(count: int) -> list[str]:
    """Return colours of an ordered scale, from the darkest to the lightest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(LIGHTEST * i / max(1, count - 1))) for i in range(count)]


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


def readable(text: str) -> str:
    r"""Write characters that cannot be shown as Python writes them.

    Example:
        >>> readable("two\nlines")
        'two\\nlines'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    r"""Write a sequence of tokens; without a tokenizer, their numbers.

    Tokens of bytes need not make characters, least of all in perturbed sequences. What
    is left over is written as Python writes bytes, ``\xe2``, since a replacement
    character would say nothing.
    """
    ids = [*map(int, ids)]
    if tokenizer is None:
        return " ".join(map(str, ids))
    text = str(tokenizer.decode(ids))
    if REPLACEMENT in text:
        pieces = "".join(map(str, tokenizer.convert_ids_to_tokens(ids)))
        if found := bytes_of(pieces, byte_level()):
            text = found.decode(errors="backslashreplace")
    return readable(text)


REPLACEMENT = "\ufffd"


def sample_table(corpus: Corpus, num_sequences: int) -> Table:
    """Return the first sequences of a corpus as a table.

    Raises:
        ValueError: If the number is below 1.
    """
    indices = corpus.indices[: whole("num_sequences", num_sequences, 1)]
    found = corpus.read(indices)
    tokenizer = corpus.tokenizer()
    rows = []
    for ids, log_p in zip(found.sequences, found.log_p.tolist(), strict=True):
        ended = ids[-1] == corpus.end_id
        words = ids[:-1] if ended else ids
        text = shown(words, tokenizer) + ("" if ended else " …")
        rows.append([text, log_p])
    return Table(["x", "log p"], rows, number="{:.4f}".format)


def write_json(stem: Path, found: Mapping[str, Any]) -> None:
    """Write measurements, dataclasses among them, into ``STEM.json``.

    What is infinite or no number is written as a string: JSON has neither.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(dict(found)), default=_plain, indent=1, allow_nan=False)
    write_text(stem.with_name(f"{stem.name}.json"), text + "\n")


def _plain(measured: Any) -> Any:
    return plain(asdict(measured))
