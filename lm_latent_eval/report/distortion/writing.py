"""Numbers as files and as tables: JSON for programs, Markdown for readers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from lm_latent_eval.durable import write_text
from lm_latent_eval.estimators import ErrorBin

Cell = str | int | float


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Write a table; numbers are rounded to what a reader can use.

    Example:
        >>> print(table(["model", "error"], [["LSTM", -1.23456], ["GPT2", 0.0]]))
        | model | error |
        | --- | ---: |
        | LSTM | -1.235 |
        | GPT2 | 0 |
    """
    numeric = [
        all(not isinstance(row[i], str) for row in rows) for i in range(len(head))
    ]
    rule = ["---:" if number else "---" for number in numeric]
    cells = [list(head), rule, *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def cell(value: Cell) -> str:
    """Write one cell."""
    if isinstance(value, str):
        return value.replace("|", "\\|")
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if math.isnan(value):
        return ""
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def readable(text: str) -> str:
    r"""Write characters that cannot be shown as Python writes them.

    Example:
        >>> readable("two\nlines")
        'two\\nlines'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def interval(value: float, lower: float, upper: float) -> str:
    """Write a number with its interval.

    Example:
        >>> interval(-1.23456, -1.3, -1.2)
        '-1.235 (-1.3 .. -1.2)'
    """
    return f"{cell(value)} ({cell(lower)} .. {cell(upper)})"


def write_json(stem: Path, found: Mapping[str, Any]) -> None:
    """Write measurements, dataclasses among them, into ``STEM.json``.

    What is infinite or no number is written as a string: JSON has neither.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(dict(found)), indent=1, allow_nan=False)
    write_text(stem.with_name(f"{stem.name}.json"), text + "\n")


def plain(value: Any) -> Any:
    """Return a measurement as JSON has it.

    Example:
        >>> plain({"mean": float("nan"), "counts": (1, 2)})
        {'mean': 'nan', 'counts': [1, 2]}
    """
    if isinstance(value, ErrorBin):
        return plain(asdict(value) | {"underestimates": value.underestimates})
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
