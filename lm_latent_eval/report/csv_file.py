"""Scores of several models in one table of comma-separated values, a column a model.

With a column ``bytes`` scores are log-likelihoods of texts in nats; else they are what
questions earned, and the caller says which direction is better.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lm_latent_eval.options import whole
from lm_latent_eval.report.units import Run, answered, number, of_answers
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record, checked_answer
from lm_latent_eval.text.files import digest, numbered_lines

ABOUT = ("id", "task", "cluster", "repeat", "bytes", "words", "text")
"""Columns that have a meaning of their own; further ones are fields of the units."""
TASK = "scores"
"""Name of the task where there is no column of tasks."""
MOST_SIDES = 26
BETTER = ("higher", "lower")


@dataclass(frozen=True)
class Declared:
    """What the caller says of a table."""

    columns: tuple[str, ...] = ()
    """Columns of models; none: not declared."""
    better: str | None = None
    """Which scores of questions are better, ``higher`` or ``lower``."""


def read_table(path: Path, declared: Declared) -> dict[str, list[Run]]:
    """Read the sides of a table: name -> its runs, a task each.

    Raises:
        ValueError: If columns or direction are not declared, there are fewer than two
            or too many, or a cell is no number.
    """
    head, *rows = _cells(path) or [[]]
    names = _columns(path, head, declared)
    table = _checked(path, head, rows)
    likelihoods = "bytes" in head
    known = [name for name in head if name not in names]
    fields = [
        {name: cell for name, cell in row.items() if cell}
        for row in table[known].to_dict("records")
    ]
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in names}
    places: dict[str, list[int]] = {}
    for place, row in enumerate(table.to_dict("records")):
        task = row.get("task", TASK)
        places.setdefault(task, []).append(place)
        try:
            for name in names:
                value = number(name, row[name])
                made = (
                    _likelihood(place, value, row)
                    if likelihoods
                    else answered(
                        row.get("id", str(place + 2)),
                        value,
                        repeat=whole("repeat", row.get("repeat", 0), 0),
                        fields=fields[place],
                    )
                )
                found[name].setdefault(task, []).append(made)
        except ValueError as err:
            raise ValueError(f"{path}, row {place + 2}: {err}") from err

    def run(name: str, task: str) -> Run:
        settings: dict[str, Any] = {"model": name, "estimator": "exact"}
        rows = found[name][task]
        if not likelihoods:
            lower = declared.better == "lower"
            return Run(task, "score", settings, of_answers(rows), lower_is_better=lower)
        settings |= {"strings_scored": True, "unk": "spelled"}
        made = Run.of(Record(task, settings, rows), dict(enumerate(fields)))
        if "id" in head:
            made.units["name"] = table["id"].iloc[places[task]].to_list()
        return made

    return {name: [run(name, task) for task in places] for name in names}


def _columns(path: Path, head: list[str], declared: Declared) -> tuple[str, ...]:
    """Return the columns of models.

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
    if not declared.columns:
        needed.append(f"which columns are models (--columns {','.join(others)[:200]})")
    if "bytes" not in head and declared.better is None:
        needed.append("which scores are better (--better higher, or lower)")
    if needed and len(others) > 1:
        raise ValueError(f"{path}: say {' and '.join(needed)}")
    missing = [name for name in declared.columns if name not in others]
    if missing or len({*head}) < len(head) or len({*declared.columns}) < 2:
        raise ValueError(
            f"{path}: expected a head of different names with a column for each of two "
            f"models or more, besides {', '.join(ABOUT)}; "
            + (
                f"it has no {missing[0]}"
                if missing
                else f"it has {', '.join(head)[:200] or 'none'}"
            )
        )
    if len(declared.columns) > MOST_SIDES:
        raise ValueError(
            f"{path}: {len(declared.columns)} columns of models: at most {MOST_SIDES}"
        )
    return declared.columns


def _checked(path: Path, head: list[str], rows: list[list[str]]) -> pd.DataFrame:
    """Return the cells as a table.

    Raises:
        ValueError: If there are none, or a row has more or fewer than the head.
    """
    if not rows:
        raise ValueError(f"{path} has a head and no rows")
    for place, cells in enumerate(rows, start=2):
        if len(cells) != len(head):
            raise ValueError(
                f"{path}, row {place}: {len(cells)} cells below a head of {len(head)}"
            )
    return pd.DataFrame(rows, columns=head)


def _cells(path: Path) -> list[list[str]]:
    """Read the rows of a table that are not blank."""
    text = "\n".join(line for _, line in numbered_lines(path, blank=True))
    default = csv.field_size_limit(len(text) + 1)
    try:
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as err:
        raise ValueError(
            f"{path} is no table of comma-separated values ({err})"
        ) from err
    finally:
        csv.field_size_limit(default)


def _likelihood(place: int, log_p: float, row: dict[str, str]) -> Answer:
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
            index=place,
            text=digest(row.get("id", str(place + 2))),
            bytes=bytes_,
            words=words,
        )
    )
