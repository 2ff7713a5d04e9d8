"""Scores in a table of comma-separated values, a column a side."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_latent_eval.report.scores import Run, Score, Scores, number
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Document, Record, checked_answer
from lm_latent_eval.text.digests import digest
from lm_latent_eval.text.files import numbered_lines

ABOUT = ("id", "task", "cluster", "repeat", "bytes", "words", "text")
"""Columns that are no side."""
TASK = "scores"


def read(path: Path, cluster: str | None = None) -> dict[str, list[Run]]:
    """Read the sides of a table.

    Where there is a column ``bytes`` scores are log-likelihoods in nats, else what a
    question earned, the more the better.

    Args:
        path: The file, with a head.
        cluster: A column that is no side, either.

    Returns:
        Name -> scores, a task each.

    Raises:
        ValueError: If there are fewer than two columns of numbers, or a cell is none.
    """
    lines = [line for _, line in numbered_lines(path)]
    head, *rows = csv.reader(lines) if lines else [[]]
    names = [name for name in head if name not in (*ABOUT, cluster)]
    if len(names) < 2 or len({*head}) < len(head) or not rows:
        raise ValueError(
            f"{path}: expected a head of different names with a column for each of two "
            f"sides or more, besides {', '.join(ABOUT)}; it has "
            f"{', '.join(head) or 'none'}"
        )
    likelihoods = "bytes" in head
    found: dict[str, dict[str, list[Score]]] = {name: {} for name in names}
    answers: dict[str, dict[str, list[Answer]]] = {name: {} for name in names}
    documents: dict[str, dict[int, Document]] = {}
    for place, cells in enumerate(rows, start=2):
        try:
            if len(cells) != len(head):
                raise ValueError(f"{len(cells)} cells below a head of {len(head)}")
            row = dict(zip(head, cells, strict=True))
            task, text = row.get("task", TASK), row.get("text", "")
            fields = {k: v for k, v in row.items() if k not in names and v}
            about = documents.setdefault(task, {})
            about[place] = Document(text, fields)
            for name in names:
                value = number(name, row[name])
                if likelihoods:
                    answer = _likelihood(place, value, row)
                    answers[name].setdefault(task, []).append(answer)
                    continue
                score = Score(
                    row.get("id", str(place)),
                    value,
                    int(number("repeat", row.get("repeat", 0))),
                    text=text,
                    fields=fields,
                )
                found[name].setdefault(task, []).append(score)
        except ValueError as err:
            raise ValueError(f"{path}, row {place}: {err}") from err
    if likelihoods:
        strings = {"strings_scored": True, "unk": "spelled"}
        return {
            name: [
                Record(task, _said(name) | strings, some, documents=documents[task])
                for task, some in answers[name].items()
            ]
            for name in names
        }
    return {
        name: [Scores(t, "score", _said(name), rows) for t, rows in found[name].items()]
        for name in names
    }


def _said(name: str) -> dict[str, Any]:
    return {"model": name, "estimator": "exact"}


def _likelihood(place: int, log_p: float, row: dict[str, str]) -> Answer:
    bytes_ = int(number("bytes", row["bytes"]))
    words = int(number("words", row.get("words") or max(bytes_ // 6, 1)))
    answer = Answer.exact(log_p, row.get("text", ""))
    return checked_answer(
        replace(
            answer,
            index=place,
            text=digest(row.get("id", str(place))),
            bytes=bytes_,
            words=words,
        )
    )
