"""How often a text has something new: productivity of its n-grams (figure 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from lm_latent_eval.distortion.report.productivity import draw_productivity
from lm_latent_eval.distortion.report.writing import write_json
from lm_latent_eval.distortion.statistics import ProductivityCurve
from lm_latent_eval.report.tabular import Cell, Table
from lm_latent_eval.text.words import split

WHOLE = "whole texts"


def novelty(
    texts: Callable[[], Iterator[str]], orders: Sequence[int], stem: Path
) -> Table:
    """Measure the n-grams of words within texts, and whole texts.

    Args:
        texts: Opens the texts anew, once an order: nothing but counts is kept.
        orders: The n of n-grams.
        stem: Of the files ``STEM.json``, ``.png``, ``.svg`` and ``.pdf``.

    Returns:
        A table of the whole text's productivity.

    Raises:
        ValueError: If an n is below 1, or no text is as long.
    """
    curves = {WHOLE: ProductivityCurve.of(texts())}
    for order in orders:
        if order < 1:
            raise ValueError(f"an n-gram has at least 1 word; got n = {order}")
        grams = (gram for text in texts() for gram in _grams(text, order))
        try:
            curves[f"{order}-grams"] = ProductivityCurve.of(grams)
        except ValueError as err:
            raise ValueError(f"{order}-grams of words: {err}") from err
    draw_productivity(stem, {n: c for n, c in curves.items() if n != WHOLE} or curves)
    write_json(stem, curves)
    rows: list[list[Cell]] = [
        [
            name,
            curve.sample_sizes[-1],
            curve.num_types[-1],
            curve.num_hapax[-1],
            curve.productivity[-1],
            curve.stderr[-1],
        ]
        for name, curve in curves.items()
    ]
    new = "probability that the next is new"
    return Table(["of", "N", "types", "once", new, "±"], rows)


def _grams(text: str, order: int) -> Iterator[tuple[str, ...]]:
    words = split(text)
    return zip(*(islice(words, first, None) for first in range(order)), strict=False)
