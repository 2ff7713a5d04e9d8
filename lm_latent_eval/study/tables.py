"""Tables of a study, after Logan et al. (2020), with its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lm_latent_eval.report.tabular import (
    Cell,
    Interval,
    Table,
    markdown,
    rendered,
    write_page,
)
from lm_latent_eval.study.claims import Curve, StudyColumn, claims, read_columns
from lm_latent_eval.study.totals import FEWEST_REPLICATES

TITLE = "# How estimates depend on how they are made"
PERPLEXITIES, SPREAD, BEAMS = "table_1", "table_1_spread", "table_2"
"""Names of the tables' files, after the paper's tables."""


def write_report(studies: Sequence[Path], output: Path, kind: str = "text") -> str:
    """Write tables and figures of studies side by side; return the tables.

    Args:
        studies: Folders of studies, finished or not.
        output: A folder for ``tables.md``, each of its tables as CSV and LaTeX, and the
            figures as PNG, SVG and PDF.
        kind: What is returned: ``tables.md`` (``text``), or its tables as ``csv`` or
            ``latex``.

    Raises:
        ValueError: If a folder is not of a study, or none has a setting that is done.
        ModuleNotFoundError: If matplotlib is missing.
    """
    from lm_latent_eval.study.figures import draw_figures

    columns = [column for study in studies for column in read_columns(study)]
    if not columns:
        raise ValueError("no setting of these studies is done yet: nothing to report")
    found, text = tables(columns), f"{TITLE}\n\n{as_markdown(columns)}"
    shown = write_page(output, text, found, kind)
    draw_figures(columns, output)
    return shown


def as_markdown(columns: Sequence[StudyColumn]) -> str:
    """Return tables 1 and 2 of the paper, the spread of table 1, and the claims."""
    found = {name: rendered(t, "text") for name, t in tables(columns).items()}
    samples = sorted({column.num_samples for column in columns})
    replicates = sorted({int(column.settings["replicate"]) for column in columns})
    studies = {id(column.rows): column for column in columns}
    sections = [
        "\n".join(f"- {markdown(_what(column))}" for column in studies.values()),
        f"Token perplexity from {_numbers(samples)} samples a text (stochastic "
        "upper bounds), as the paper's table 1:",
        found[PERPLEXITIES],
        f"The instance level from {_numbers(replicates)} samples: perplexity of the "
        "mean log-likelihood of replicates, and where 95 % of fresh estimates lie:"
        if SPREAD in found
        else "The spread of estimates is not shown: it takes at least "
        f"{FEWEST_REPLICATES} replicates, {FEWEST_REPLICATES} times as many samples.",
        found.get(SPREAD, ""),
        "Beam marginalization (strict upper bounds), as the paper's table 2:"
        if BEAMS in found
        else "",
        found.get(BEAMS, ""),
        "The paper's claims on these numbers:",
        "\n".join(f"- {markdown(claim)}" for claim in claims(columns)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def tables(columns: Sequence[StudyColumn]) -> dict[str, Table]:
    """Return the tables with numbers, by the names of their files."""
    titles = _titles(columns)
    found = {
        PERPLEXITIES: Table(
            ["level", "draws", *titles], [*_perplexities(columns)], number=_number
        ),
        SPREAD: Table(["draws", *titles], [*_lines(columns, _spread)], number=_number),
        BEAMS: Table(["beam", *titles], [*_beams(columns)], number=_number),
    }
    return {
        name: table
        for name, table in found.items()
        if any(not isinstance(cell, str | None) for row in table.rows for cell in row)
    }


def _titles(columns: Sequence[StudyColumn]) -> list[str]:
    """Return a name for each column, numbered where a study is shown twice."""
    titles = [column.title for column in columns]
    return [
        f"{title} ({titles[: n + 1].count(title)})"
        if titles.count(title) > 1
        else title
        for n, title in enumerate(titles)
    ]


def _what(column: StudyColumn) -> str:
    """Describe the settings of a study."""
    settings, last = column.settings, column.rows[-1]
    unknown = settings["unk"] or "as the checkpoint does by default"
    return (
        f"{settings['model']}, checkpoint {settings['checkpoint']}: {last['texts']:,} "
        f"texts or sentences, {last['tokens']:,} predicted tokens (text "
        f"{settings['texts']}), {column.num_samples:,} samples each, unknown words "
        f"{unknown}, seed {settings['seed']}, lm_latent_eval "
        f"{settings['lm_latent_eval']}"
    )


def _perplexities(columns: Sequence[StudyColumn]) -> Iterator[list[Cell]]:
    for level in ("corpus", "instance"):
        for line in _lines(columns, partial(StudyColumn.last, level=level)):
            yield [level, *line]


def _spread(column: StudyColumn, curve: Curve) -> Interval | None:
    for row in column.curve(curve):
        if row["num_samples"] == column.settings["replicate"] and "low" in row:
            mean = float(row["perplexity_of_mean_log_likelihood"])
            return Interval(mean, float(row["low"]), float(row["high"]))
    return None


def _lines(
    columns: Sequence[StudyColumn], cell: Callable[[StudyColumn, Curve], Cell]
) -> Iterator[list[Cell]]:
    """Yield each line of a table, its name first; curves that lack are empty cells."""

    def known(column: StudyColumn, curve: Curve) -> Cell:
        return cell(column, curve) if curve in column.curves else None

    for t in sorted({t for c in columns for t in c.settings["temperatures"]}):
        yield [f"τ = {t:g}", *(known(each, (each.proposal, t)) for each in columns)]
    for name in dict.fromkeys(n for c in columns for n in c.settings["others"]):
        yield [name, *(known(each, (name, 1.0)) for each in columns)]


def _beams(columns: Sequence[StudyColumn]) -> Iterator[list[Cell]]:
    for width in sorted({row["num_samples"] for c in columns for row in c.beams()}):
        found = [
            [r["perplexity"] for r in column.beams() if r["num_samples"] == width]
            for column in columns
        ]
        yield [f"k = {width}", *(one[0] if one else None for one in found)]


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def _numbers(values: Sequence[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)
