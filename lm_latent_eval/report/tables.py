"""Tables and numbers for readers: decimals by errors; Markdown and CSV.

Words may come from files, and say what they like: each form has its way to write them
so that they are shown, and neither obeyed nor taken for another cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

FORMATS = ("text", "csv")
LARGE = 1e6
"""Numbers from here on are written as powers of ten."""
ROUNDING, SMALL = 1e-9, 5e-5
"""Below the second, four decimals are zeros; below the first, so is the number."""
MOST_DECIMALS = 9
"""Smaller errors are written as powers of ten."""
_MARKDOWN = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "\\`*[]|"},
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
    }
)
"""Emphasis, links, pictures, cells and HTML; an underscore within a word is none."""
_FORMULA = re.compile(r"\s*[=@+-](?!\s*$)(?![\d.]+$)")
"""First characters of cells that spreadsheets evaluate; signed numbers are not."""
_NUMBER = re.compile(r"[-+]?([\d,]*\.?\d+(e[-+]?\d+)?|inf|∞)|nan|N/A|")

Errors = Mapping[str, Sequence[str]]
"""Column -> the columns with errors of its numbers."""


# -- numbers -------------------------------------------------------------------------


def decimals(*errors: float | None) -> int | None:
    """Return the decimals at which the smallest error has two digits.

    None if no error is known, or all are 0.

    Example:
        >>> decimals(0.1956), decimals(0.1956, 0.00013), decimals(250.0), decimals(0.0)
        (2, 5, 0, None)
    """
    finite = [e for e in errors if e is not None and 0 < e < math.inf]
    if not finite:
        return None
    # An error that rounds up, 0.0999 to 0.10, has its digits one place earlier.
    power = int(f"{min(finite):.1e}".partition("e")[2])
    return min(max(1 - power, 0), MOST_DECIMALS)


def shown(value: float, *errors: float | None, sign: str = "") -> str:
    """Write a number with the decimals of its smallest known error; four without one.

    Example:
        >>> shown(4.9019, 0.1956), shown(2769.4, 310.0), shown(3.87572)
        ('4.90', '2769', '3.8757')
        >>> shown(1.234567e46), shown(3.583e-6), shown(-1e-9), shown(math.inf)
        ('1.2346e+46', '3.6e-06', '0.0000', '∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    places = decimals(*errors)
    if abs(value) >= LARGE:
        return f"{value:{sign}.4e}"
    if places is None:
        if ROUNDING < abs(value) < SMALL:
            return f"{value:{sign}.1e}"
        places = 4
    return f"{value:{sign}z.{places}f}"


def error(value: float | None) -> str:
    """Write an error with two digits; ``N/A`` where it is not known.

    Example:
        >>> error(0.19561), error(0.00013), error(312.4), error(1.23e-12), error(0.0)
        ('0.20', '0.00013', '312', '1.2e-12', '0')
        >>> error(None)
        'N/A'
    """
    if value is None or math.isnan(value):
        return "N/A"
    if not value or value >= 10.0 ** (1 - MOST_DECIMALS):
        return shown(value, value) if value else "0"
    return f"{value:.1e}"


def with_error(value: float, stderr: float | None, sign: str = "") -> str:
    """Write a number with its error, at the same decimals.

    Example:
        >>> with_error(4.9019, 0.1956), with_error(0.25, None, "+")
        ('4.90 ± 0.20', '+0.2500 ± N/A')
    """
    return f"{shown(value, stderr, sign=sign)} ± {error(stderr)}"


# -- words ---------------------------------------------------------------------------


def one_line(text: str) -> str:
    r"""Return words without line ends and control characters.

    Example:
        >>> one_line("a task\n# of two lines")
        'a task # of two lines'
    """
    return "".join(c if c.isprintable() else " " for c in text)


def markdown(text: str) -> str:
    r"""Escape words for Markdown.

    Example:
        >>> print(markdown("<b>a|b</b>"))
        &lt;b&gt;a\|b&lt;/b&gt;
    """
    return one_line(text).translate(_MARKDOWN)


# -- tables --------------------------------------------------------------------------


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of rows that name their columns; what a row lacks is empty.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError("there are no numbers for a table")
    table = pd.DataFrame([*rows], dtype=object)
    return table.where(table.notna(), None)


def filled(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of rows, without the columns in which no row has anything."""
    table = frame(rows)
    return table.loc[:, ~table.isin((None, "", "N/A")).all()]


def rendered(table: pd.DataFrame, kind: str, errors: Errors | None = None) -> str:
    r"""Return a table as ``text`` (Markdown) or ``csv``.

    Args:
        table: Numbers and words.
        kind: The format; numbers of ``csv`` have all their digits.
        errors: Columns with errors, by which numbers of others are rounded.

    Example:
        >>> table = pd.DataFrame({"model": ["my_lm"], "bits": [-0.1234], "±": [0.02]})
        >>> print(rendered(table, "text", {"bits": ["±"]}))
        | model   |   bits |     ± |
        |:--------|-------:|------:|
        | my_lm   | -0.123 | 0.020 |
        >>> print(rendered(table, "csv"))
        model,bits,±
        my_lm,-0.1234,0.02
    """
    if kind == "csv":
        cells = {_inert(name): [*map(_inert, table[name])] for name in table.columns}
        plain = pd.DataFrame(cells, dtype=object)  # whole numbers stay whole
        return str(plain.to_csv(index=False, lineterminator="\n")).rstrip("\n")
    flush = ["right" if _is_numeric(table[name]) else "left" for name in table.columns]
    words = readable(table, errors or {})
    escaped = words.map(markdown).rename(columns=markdown)
    return str(escaped.to_markdown(index=False, colalign=flush, disable_numparse=True))


def readable(table: pd.DataFrame, errors: Errors) -> pd.DataFrame:
    """Return a table's cells as words: numbers with the decimals of their errors."""
    of_errors = {name for names in errors.values() for name in names}

    def cell(name: str, row: Mapping[str, Any]) -> str:
        value = row[name]
        if pd.isna(value):
            return ""
        if not isinstance(value, float):
            return f"{value:,}" if type(value) is int else str(value)
        if name in of_errors:
            return error(value)
        return shown(value, *(row[each] for each in errors.get(name, ())))

    rows = [{name: cell(name, row) for name in row} for row in table.to_dict("records")]
    return pd.DataFrame(rows, columns=table.columns, dtype=object)


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return rows as lines of a terminal, in columns as wide as their widest cell.

    Args:
        rows: Cells of each row; the last one of a row that is shorter than others may
            be of any width.
        right: Whether the cells but the first are flush right.

    Example:
        >>> aligned([["", "bits", "±"], ["mine", "1.25", "0.5"]], right=True)
        ['        bits    ±', '  mine  1.25  0.5']
    """
    most = max(map(len, rows))
    full = [row for row in rows if len(row) == most]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        side = ">" if right and len(row) == most else "<"
        cells = [
            f"{cell:{side}{width}}" for cell, width in zip(row, widths, strict=False)
        ]
        cells[0] = row[0].ljust(widths[0])
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def aligned_rows(
    rows: Sequence[Mapping[str, Any]], errors: Errors | None = None
) -> list[str]:
    """Return rows that name their columns as lines of a terminal, below a head."""
    table = readable(filled(rows), errors or {})
    return aligned([[*table.columns], *table.to_numpy().tolist()])


def _is_numeric(column: pd.Series) -> bool:
    cells = [*map(str, column.dropna())]
    return bool(cells) and all(map(_NUMBER.fullmatch, cells))


def _inert(cell: Any) -> Any:
    """Return a cell that no spreadsheet evaluates: an apostrophe makes it text."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
