"""Tables for programs and papers: CSV, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

FORMATS = ("text", "csv", "latex")
_ESCAPED = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def rendered(rows: Sequence[dict[str, Any]], kind: str) -> str:
    r"""Return a table of rows that have the same columns.

    Args:
        rows: Column -> value; numbers are written in full for programs, and with four
            digits for papers; None is an empty cell.
        kind: ``csv`` or ``latex``.

    Example:
        >>> print(rendered([{"model": "my_lm", "bits": 0.123456}], "csv"))
        model,bits
        my_lm,0.123456
        >>> print(rendered([{"model": "my_lm", "bits": 0.123456}], "latex"))
        \begin{tabular}{lr}
        \toprule
        model & bits \\
        \midrule
        my\_lm & 0.1235 \\
        \bottomrule
        \end{tabular}
    """
    return _csv(rows) if kind == "csv" else _latex(rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue().rstrip("\n")


def _latex(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(rows[0])
    numeric = [any(isinstance(row[c], float | int) for row in rows) for c in columns]
    lines = [
        rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in numeric)}}}",
        r"\toprule",
        rf"{' & '.join(map(_cell, columns))} \\",
        r"\midrule",
        *(rf"{' & '.join(_cell(row[c]) for c in columns)} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.translate(_ESCAPED)


__all__ = ["FORMATS", "rendered"]
