"""The numbers of a scored corpus as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_latent_eval.report.tabular import aligned, four_decimals
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import METRICS

WHICH = ("model", "checkpoint", "dtype")
"""Settings that say what was scored with, not how."""


def table(
    answers: Sequence[Answer], settings: Mapping[str, Any], *, of: int | None = None
) -> str:
    """Return every metric of a corpus with its error over texts, and how it came.

    Args:
        answers: The corpus, scored.
        settings: How it was scored: a scorer's ``fingerprint``.
        of: How many texts there are, where some may have no number; None: no more.
    """
    tokens = sum(answer.tokens for answer in answers)
    num_bytes = sum(answer.bytes for answer in answers)
    how = (
        f"{name}={value}"
        for name, value in settings.items()
        if value and name not in WHICH
    )
    cells = []
    for name, metric in METRICS.items():
        if name.endswith("_stderr"):
            continue
        error = METRICS.get(f"{name}_stderr")
        spread = f"± {_number(error(answers))}" if error else ""
        value = metric(answers)
        if isinstance(value, str):  # why there is none
            cells.append([name, f"{value} {spread}"])
        else:
            cells.append([name, four_decimals(value), spread])
    lines = [
        f"{_texts(len(answers), of)}, {tokens:,} predicted tokens, {num_bytes:,} bytes",
        " ".join(how),
        *(line.strip() for line in aligned(cells, right=True)),
    ]
    return "\n".join(lines)


def _texts(number: int, of: int | None) -> str:
    if of in (None, number):
        return f"{number:,} texts"
    return f"only {number:,} of {of:,} texts"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else four_decimals(value)
