"""Studies as tables in the shape of Logan et al. (2020), with its claims looked up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm_latent_eval.durable import write_text
from lm_latent_eval.report.importance.claims import claims
from lm_latent_eval.report.importance.columns import Column, Curve, read_columns
from lm_latent_eval.studies.importance.totals import FEWEST_REPLICATES

TABLES_FILE = "tables.md"


def report(studies: Sequence[Path], output: Path) -> str:
    """Write tables and figures of studies side by side; return the tables.

    Args:
        studies: Folders of studies, finished or not.
        output: A folder for ``tables.md`` and the figures as PNG and SVG.

    Raises:
        ValueError: If a folder is not of a study, or none has a setting that is done.
        ModuleNotFoundError: If matplotlib is missing.
    """
    from lm_latent_eval.report.importance.figures import draw

    columns = [column for study in studies for column in read_columns(study)]
    if not columns:
        raise ValueError("no setting of these studies is done yet: nothing to report")
    text = tables(columns)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / TABLES_FILE, text)
    draw(columns, output)
    return text


def tables(columns: Sequence[Column]) -> str:
    """Return tables 1 and 2 of the paper, the spread of table 1, and the claims."""
    samples = sorted({column.num_samples for column in columns})
    replicates = sorted({int(column.settings["replicate"]) for column in columns})
    studies = {id(column.rows): column for column in columns}
    spreads = list(_spreads(columns))
    sections = [
        "\n".join(f"- {_what(column)}" for column in studies.values()),
        f"Token perplexity from {_numbers(samples)} samples a text (stochastic "
        "upper bounds), as the paper's table 1:",
        _table(columns, list(_perplexities(columns))),
        f"The instance level from {_numbers(replicates)} samples: perplexity of the "
        "mean log-likelihood of replicates, and where 95 % of fresh estimates lie:"
        if any(any(cells) for _, cells in spreads)
        else "The spread of estimates is not shown: it takes at least "
        f"{FEWEST_REPLICATES} replicates, {FEWEST_REPLICATES} times as many samples.",
        _table(columns, spreads) if any(any(cells) for _, cells in spreads) else "",
        "Beam marginalization (strict upper bounds), as the paper's table 2:",
        _table(columns, list(_beams(columns))),
        "The paper's claims on these numbers:",
        "\n".join(f"- {claim}" for claim in claims(columns)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _what(column: Column) -> str:
    """Say what a study's numbers depend on."""
    settings, last = column.settings, column.rows[-1]
    unknown = settings["unk"] or "as the checkpoint does by default"
    return (
        f"{settings['model']}, checkpoint {settings['checkpoint']}: {last['texts']:,} "
        f"texts or sentences, {last['tokens']:,} predicted tokens (text "
        f"{settings['texts']}), {column.num_samples:,} samples each, unknown words "
        f"{unknown}, seed {settings['seed']}, lm_latent_eval "
        f"{settings['lm_latent_eval']}"
    )


Cells = tuple[str, list[str]]


def _perplexities(columns: Sequence[Column]) -> Iterator[Cells]:
    for level in ("corpus", "instance"):
        yield f"**{level} level**", ["" for _ in columns]
        for name, curves in _curves(columns):
            yield (
                name,
                [
                    _number(column.last(curve, level)) if curve else ""
                    for column, curve in zip(columns, curves, strict=True)
                ],
            )


def _spreads(columns: Sequence[Column]) -> Iterator[Cells]:
    for name, curves in _curves(columns):
        yield (
            name,
            [
                _spread(column, curve) if curve else ""
                for column, curve in zip(columns, curves, strict=True)
            ],
        )


def _spread(column: Column, curve: Curve) -> str:
    for row in column.curve(curve):
        if row["num_samples"] == column.settings["replicate"] and "low" in row:
            mean = float(row["perplexity_of_mean_log_likelihood"])
            low, high = float(row["low"]), float(row["high"])
            return f"{_number(mean)} ({_number(low)} to {_number(high)})"
    return ""


def _curves(columns: Sequence[Column]) -> Iterator[tuple[str, list[Curve | None]]]:
    """Yield the name of each line of a table, and each column's curve if it has one."""

    def done(column: Column, curve: Curve) -> Curve | None:
        return curve if curve in column.curves else None

    for t in sorted({t for c in columns for t in c.settings["temperatures"]}):
        yield f"τ = {t:g}", [done(column, (column.proposal, t)) for column in columns]
    for name in dict.fromkeys(n for c in columns for n in c.settings["others"]):
        yield name, [done(column, (name, 1.0)) for column in columns]


def _beams(columns: Sequence[Column]) -> Iterator[Cells]:
    for width in sorted({row["num_samples"] for c in columns for row in c.beams()}):
        found = [
            [r["perplexity"] for r in column.beams() if r["num_samples"] == width]
            for column in columns
        ]
        yield f"k = {width}", [_number(one[0]) if one else "" for one in found]


def _table(columns: Sequence[Column], lines: list[Cells]) -> str:
    head = ["", *(column.title for column in columns)]
    rows = [head, ["---"] * len(head), *([name, *cells] for name, cells in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _number(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def _numbers(values: Sequence[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)
