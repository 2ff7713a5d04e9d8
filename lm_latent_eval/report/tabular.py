"""Tables for readers, programs and papers: Markdown, CSV, and LaTeX with booktabs.

Words may come from files, and say what they like: each form has its way to write them
so that they are shown, and neither obeyed nor taken for another cell.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lm_latent_eval.files import write_text

FORMATS = ("text", "csv", "latex")
ENDINGS = {"csv": ".csv", "latex": ".tex"}
"""Of the files that a table is kept in."""
_ESCAPED = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "τ": r"$\tau$",
        "∞": r"$\infty$",
        "−": r"$-$",
        "…": r"\ldots{}",
    }
)


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


@dataclass(frozen=True)
class Interval:
    """A number with the ends of its interval; three columns of a CSV."""

    value: float
    lower: float
    upper: float


Cell = str | int | float | Interval | None
"""None is an empty cell, as is a NaN; an Interval has a column to itself."""


LARGE = 1e6
"""From here on numbers are written as powers of ten."""
ROUNDING, SMALL = 1e-9, 5e-5
"""Below the second, four decimals are zeros; below the first, so is the number."""


def four_digits(value: float) -> str:
    """Write a number as readers can use it.

    Example:
        >>> four_digits(0.123456), four_digits(12345.678)
        ('0.1235', '12,345.7')
    """
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def four_decimals(value: float) -> str:
    """Write a number with four decimals, a large or small one as a power of ten.

    Example:
        >>> four_decimals(3.87572), four_decimals(1.234567e46)
        ('3.8757', '1.2346e+46')
        >>> four_decimals(3.583e-6), four_decimals(-1e-9)
        ('3.6e-06', '0.0000')
    """
    if ROUNDING < abs(value) < SMALL:
        return f"{value:.1e}"
    return f"{value:.4e}" if LARGE <= abs(value) < math.inf else f"{value:z.4f}"


def alike(values: Sequence[float]) -> Callable[[float], str]:
    """Return a common format of the numbers of a column.

    All with as many decimals as give the largest four digits, or all as powers of ten
    where it is too large or the smallest would be next to nothing.

    Example:
        >>> shown = alike([3.8757, 512.25, 0.1])
        >>> shown(3.8757), shown(512.25), shown(0.1)
        ('3.9', '512.2', '0.1')
        >>> shown = alike([0.0001125, 1.806e7])
        >>> shown(0.0001125), shown(1.806e7)
        ('1.125e-04', '1.806e+07')
    """
    sizes = [abs(v) for v in values if v and math.isfinite(v)]
    most, least = max(sizes, default=1.0), min(sizes, default=1.0)
    if most >= LARGE or most > LARGE * least:
        return lambda value: f"{value:.3e}" if value else "0"
    decimals = max(0, 3 - math.floor(math.log10(most)))
    return lambda value: f"{value:.{decimals}f}" if value else "0"


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


@dataclass(frozen=True)
class Table:
    r"""Rows under one head, written in full for programs and rounded for readers.

    Attributes:
        head: A name for each column; none occurs twice.
        rows: The cells.
        notes: What a reader has to know besides; in the text alone.
        number: How floats are written for readers.

    Example:
        >>> table = Table(["model", "bits"], [["my_lm", -0.123456]])
        >>> print(rendered(table, "text"))
        | model | bits |
        | --- | ---: |
        | my_lm | -0.1235 |
        >>> print(rendered(table, "csv"))
        model,bits
        my_lm,-0.123456
        >>> print(rendered(table, "latex"))
        \begin{tabular}{lr}
        \toprule
        model & bits \\
        \midrule
        my\_lm & $-0.1235$ \\
        \bottomrule
        \end{tabular}
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    number: Callable[[float], str] = four_digits

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> Self:
        """Make a table of rows that name their columns; what a row lacks is empty.

        Raises:
            ValueError: If there are no rows.
        """
        if not rows:
            raise ValueError("there are no numbers for a table")
        head = [*dict.fromkeys(name for row in rows for name in row)]
        return cls(head, [[row.get(name) for name in head] for row in rows])

    def column(self, place: int) -> list[Cell]:
        """Return the cells of a column."""
        return [row[place] for row in self.rows]

    def is_numeric(self, place: int) -> bool:
        """Whether a column is set flush right: it has numbers and no words."""
        cells = [cell for cell in self.column(place) if cell is not None]
        return bool(cells) and all(isinstance(c, int | float) for c in cells)

    def plain(self, value: Any) -> str:
        """Write a number for a reader."""
        if isinstance(value, float) and math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return self.number(value) if isinstance(value, float) else f"{value:,}"


def rendered(table: Table, kind: str) -> str:
    """Return a table as ``text`` (Markdown, with its notes), ``csv`` or ``latex``."""
    return {"text": _markdown, "csv": _csv, "latex": _latex}[kind](table)


def write(table: Table, stem: Path) -> None:
    """Keep a table beside a figure: ``STEM.csv`` and ``STEM.tex``."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind, ending in ENDINGS.items():
        path = stem.with_name(stem.name + ending)
        write_text(path, rendered(table, kind) + "\n")


def together(tables: Mapping[str, Table], kind: str) -> str:
    """Return several tables one after the other, each below its name."""
    comment = {"csv": "#", "latex": "%", "text": ""}[kind]
    shown = markdown if kind == "text" else one_line
    named = (
        f"{comment} {shown(name)}".lstrip() + f"\n{rendered(table, kind)}"
        for name, table in tables.items()
    )
    return "\n\n".join(named)


# -- for readers --------------------------------------------------------------------


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return rows as lines of a terminal, in columns as wide as their widest cell.

    Args:
        rows: Their cells; the last one of a row that is shorter than others may be of
            any width.
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
        first, *others = zip(row, widths, strict=False)
        cells = [f"{first[0]:<{first[1]}}", *(f"{c:{side}{w}}" for c, w in others)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _markdown(table: Table) -> str:
    numeric, number = map(table.is_numeric, range(len(table.head))), table.plain
    rule = ["---:" if each else "---" for each in numeric]
    cells = [
        [*map(markdown, table.head)],
        rule,
        *([_shown(c, markdown, number) for c in r] for r in table.rows),
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return "\n\n".join([lines, *table.notes])


def _is_empty(cell: Cell) -> bool:
    number = cell.value if isinstance(cell, Interval) else cell
    return number is None or (isinstance(number, float) and math.isnan(number))


def _shown(
    cell: Cell, words: Callable[[str], str], number: Callable[[Any], str]
) -> str:
    """Write a cell for a reader."""
    if _is_empty(cell):
        return ""
    if isinstance(cell, Interval):
        ends = (cell.value, cell.lower, cell.upper)
        value, lower, upper = (_shown(each, words, number) for each in ends)
        return f"{value} ({lower} to {upper})"
    return words(cell) if isinstance(cell, str) else number(cell)


# -- for programs -------------------------------------------------------------------


def _csv(table: Table) -> str:
    written = io.StringIO()
    columns: list[list[Cell]] = []
    for place, name in enumerate(table.head):
        ends = [c if isinstance(c, Interval) else None for c in table.column(place)]
        cells = [None if _is_empty(c) else c for c in table.column(place)]
        columns.append(
            [name, *(c.value if isinstance(c, Interval) else c for c in cells)]
        )
        if any(ends):
            for end in ("lower", "upper"):
                some = [None if _is_empty(e) else getattr(e, end) for e in ends]
                columns.append([f"{name}, {end}", *some])
    writer = csv.writer(written, lineterminator="\n")
    writer.writerows([map(_inert, row) for row in zip(*columns, strict=True)])
    return written.getvalue().rstrip("\n")


def _inert(cell: Cell) -> Cell:
    """Return a cell that no spreadsheet evaluates: an apostrophe makes it text."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


# -- for papers ---------------------------------------------------------------------


def _latex(table: Table) -> str:
    def number(value: float) -> str:
        plain = table.plain(value)
        if power := re.fullmatch(r"(.+)e([+-]\d+)", plain):
            return rf"${power[1]} \times 10^{{{int(power[2])}}}$"
        plain = plain.replace("∞", r"\infty")
        return f"${plain}$" if plain[:1] in ("-", "\\") else plain

    columns = "".join(
        "r" if table.is_numeric(place) else "l" for place in range(len(table.head))
    )
    rows = ([_shown(c, _letters, number) for c in row] for row in table.rows)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{' & '.join(map(_letters, table.head))} \\",
        r"\midrule",
        *(rf"{' & '.join(cells)} \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _letters(text: str) -> str:
    return one_line(text).translate(_ESCAPED)
