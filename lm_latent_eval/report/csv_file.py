"""Scores of several models in one table of comma-separated values, a column a model.

With a column ``bytes`` scores are log-likelihoods of texts in nats; else they are what
questions earned, and the caller says which direction is better.
"""

from __future__ import annotations

import io
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lm_latent_eval.options import whole
from lm_latent_eval.report.units import Run, finite, of_answers
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record, checked_answer
from lm_latent_eval.text.files import digest, numbered_lines

ABOUT = ("id", "task", "cluster", "repeat", "bytes", "words", "text")
"""Columns that have a meaning of their own; further ones are fields of the units."""
TASK = "scores"
"""Name of the task where there is no column of tasks."""
MOST_SIDES = 26
"""Largest number of sides that are compared."""
BETTER = ("higher", "lower")
"""Directions of scores of questions."""


def read_table(
    path: Path, models: Sequence[str] = (), better: str | None = None
) -> dict[str, list[Run]]:
    """Read the sides of a table: name -> its runs, a task each.

    Args:
        path: The file.
        models: Columns of models.
        better: Direction of better scores of questions, ``higher`` or ``lower``.

    Raises:
        ValueError: If columns or direction are not declared, there are fewer than two
            or too many, or a cell is no number.
    """
    table = _cells(path)
    _check_columns(path, [*table.columns], models, better)
    tasks = table["task"] if "task" in table else pd.Series(TASK, table.index)
    sides = {name: list[Run]() for name in models}
    for task, rows in table.groupby(tasks, sort=False):
        for name in models:
            sides[name].append(_run(path, task, name, rows, models, better))
    return sides


def _run(
    path: Path,
    task: Hashable,
    name: str,
    table: pd.DataFrame,
    models: Sequence[str],
    better: str | None,
) -> Run:
    settings: dict[str, Any] = {"model": name, "estimator": "exact"}
    answers, rows = list[Answer](), list[dict[str, Any]]()
    about = table.drop(columns=[*models]).to_dict("records")
    for n, cell, row in zip(table.index, table[name], about, strict=True):
        try:
            score = finite(name, cell)
            if "bytes" in row:
                answers.append(_likelihood(n, score, row))
            repeat = whole("repeat", row.get("repeat", 0), 0)
        except ValueError as err:
            raise ValueError(f"{path}, row {n + 2}: {err}") from err
        fields = {column: cell for column, cell in row.items() if cell}
        unit = {"unit": row.get("id", str(n + 2)), "score": score}
        rows.append({**unit, "repeat": repeat, "fields": fields})
    if not answers:
        units, lower = of_answers(rows), better == "lower"
        return Run(str(task), "score", settings, units, lower_is_better=lower)
    settings |= {"strings_scored": True, "unk": "spelled"}
    fields_of = dict(zip(table.index, (row["fields"] for row in rows), strict=True))
    run = Run.of(Record(str(task), settings, answers), fields_of)
    if "id" in table:
        run.units["name"] = table["id"].to_list()
    return run


def _check_columns(
    path: Path, head: Sequence[str], models: Sequence[str], better: str | None
) -> None:
    """Check the columns of models.

    Raises:
        ValueError: If they or their direction are not declared, or not there.
    """
    for name in head:
        if name not in ABOUT and (like := name.strip().lower()) in ("", *ABOUT):
            raise ValueError(
                f"{path}: column {name!r}: "
                + (f"write it as {like}" if like else "give it a name")
            )
    others = [name for name in head if name not in ABOUT]
    needed = []
    if not models:
        needed.append(f"which columns are models (--columns {','.join(others)[:200]})")
    if "bytes" not in head and better is None:
        needed.append("which scores are better (--better higher, or lower)")
    if needed and len(others) > 1:
        raise ValueError(f"{path}: say {' and '.join(needed)}")
    missing = [name for name in models if name not in others]
    if missing or len({*head}) < len(head) or len({*models}) < 2:
        has = f"it has {', '.join(head)[:200] or 'none'}"
        raise ValueError(
            f"{path}: expected a head of different names with a column for each of two "
            f"models or more, besides {', '.join(ABOUT)}; "
            + (f"it has no {missing[0]}" if missing else has)
        )
    if len(models) > MOST_SIDES:
        raise ValueError(
            f"{path}: {len(models)} columns of models: at most {MOST_SIDES}"
        )


def _cells(path: Path) -> pd.DataFrame:
    """Read the cells of a table as strings; what a row lacks is empty.

    Raises:
        ValueError: If there are none, or a row has more than the head.
    """
    text = "\n".join(line for _, line in numbered_lines(path, blank=True))
    try:
        # The head as a row: pandas would rename columns that stand twice.
        cells = pd.read_csv(io.StringIO(text), header=None, dtype=str, na_filter=False)
    except ValueError as err:
        raise ValueError(
            f"{path} is no table of comma-separated values ({err})"
        ) from err
    if len(cells) < 2:
        raise ValueError(f"{path} has a head and no rows")
    table = cells[1:].reset_index(drop=True)
    return table.set_axis(cells.iloc[0].tolist(), axis="columns")


def _likelihood(n: int, log_p: float, row: dict[str, str]) -> Answer:
    if log_p > 0:
        raise ValueError(
            f"{log_p:g} is above 0, which no log-likelihood of a text is. Is this a "
            "loss? Then change its sign"
        )
    if row.get("words") == "" and not row.get("text"):
        raise ValueError("words is empty: give every text's, or no column of words")
    bytes_ = whole("bytes", row["bytes"], 0)
    answer = Answer.exact(log_p, row.get("text", ""))
    counted = answer.words if row.get("text") else 0
    words = whole("words", row.get("words") or counted, 0)
    return checked_answer(
        replace(
            answer,
            index=n,
            text=digest(row.get("id", str(n + 2))),
            bytes=bytes_,
            words=words,
        )
    )
