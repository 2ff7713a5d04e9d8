"""Thoughts in a file: other answers are scored from it without drawing again.

A Parquet file, a question a row; its metadata say how the thoughts were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from lm_latent_eval import parquet
from lm_latent_eval.scoring.records import task_of
from lm_latent_eval.wrappers.cot.marks import Ending
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts

Texts = Callable[[Sequence[int]], str]
METADATA = b"lm_latent_eval_thoughts"
_NUMBERS = pa.list_(pa.float64())
SCHEMA = pa.schema(
    {
        "document": pa.int64(),
        "name": pa.string(),
        "question": pa.string(),
        "hints": pa.list_(pa.string()),
        "answers": pa.list_(pa.string()),
        "right": _NUMBERS,
        "tokens": pa.list_(pa.list_(pa.int32())),
        "thoughts": pa.list_(pa.string()),
        "endings": pa.list_(pa.string()),
        "log_p": _NUMBERS,
        "log_q": _NUMBERS,
        "log_p_answers": pa.list_(_NUMBERS),
        "greedy": pa.list_(pa.bool_()),
    }
)


@dataclass(frozen=True)
class Kept:
    """A question of a task, with its thoughts."""

    document: int
    """Its place in the task."""
    thoughts: Thoughts
    right: tuple[float, ...] | None
    """What each answer scores by the task: 1 if right, else 0; None where there is no
    choice."""


@dataclass(frozen=True)
class ThoughtFile:
    """What a run thought about one task."""

    settings: dict[str, Any]
    """What the numbers depend on, ``task`` among it."""
    questions: list[Kept]
    finished: bool = True


def write(
    path: Path, settings: dict[str, Any], questions: Sequence[Kept], texts: Texts
) -> None:
    """Write thoughts, whole or not at all.

    Args:
        path: A Parquet file.
        settings: What the numbers depend on, ``task`` among it.
        questions: What to keep.
        texts: Writes tokens as strings.
    """
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for kept in questions:
        thoughts = [texts(thought.tokens) for thought in kept.thoughts.drawn]
        for name, value in {**row_of(kept), "thoughts": thoughts}.items():
            columns[name].append(value)
    parquet.write(path, pa.table(columns, schema=SCHEMA), METADATA, settings)


def read(path: Path) -> ThoughtFile:
    """Read thoughts back.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is something else.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    file = parquet.RowFile(path, "file of thoughts")
    settings = file.said(METADATA)
    questions = []
    # Those of 0.2 say nothing of their columns.
    for place, row in enumerate(file.rows(SCHEMA, digested=False), start=1):
        try:
            task_of(settings)
            questions.append(kept_of(row))
        except ValueError as err:
            raise ValueError(f"{path}, row {place}: {err}") from err
    return ThoughtFile(settings, questions)


def row_of(kept: Kept) -> dict[str, Any]:
    """Return the columns of a question, but for the strings of its thoughts."""
    found = kept.thoughts
    return {
        "document": kept.document,
        "name": found.name,
        "question": found.question,
        "hints": list(found.hints),
        "answers": list(found.answers),
        "right": kept.right,
        "tokens": [thought.tokens for thought in found.drawn],
        "endings": [str(thought.ending) for thought in found.drawn],
        "log_p": found.log_p.tolist(),
        "log_q": found.log_q.tolist(),
        "log_p_answers": found.log_p_answers.tolist(),
        "greedy": list(found.greedy),
    }


def kept_of(row: dict[str, Any]) -> Kept:
    """Return a question from its columns.

    Raises:
        ValueError: If one is missing, or holds something else than its kind.
    """
    for field in SCHEMA:
        value = row.get(field.name)
        if field.name == "thoughts" or (field.name == "right" and value is None):
            continue
        if not _fits(value, field.type):
            raise ValueError(f"{field.name} is {value!a:.40}")

    def tensor(name: str, *shape: int) -> torch.Tensor:
        try:
            # "-inf" too
            values = torch.from_numpy(np.array(row[name], dtype=np.float64))
        except ValueError as err:
            raise ValueError(f"{name} is of rows of several lengths") from err
        if values.shape != shape or (values.isnan() | values.isposinf()).any():
            raise ValueError(
                f"{name} has not {' times '.join(map(str, shape))} log-probabilities"
            )
        return values

    answers, right = tuple(row["answers"]), row.get("right")
    try:
        pairs = zip(row["tokens"], row["endings"], strict=True)
        drawn = tuple(Thought(tuple(tokens), Ending(end)) for tokens, end in pairs)
    except ValueError as err:
        raise ValueError(f"tokens and endings are of no thoughts ({err})") from err
    if not drawn:
        raise ValueError("there is no thought")
    for name in ("greedy", "right"):
        if row.get(name) is not None and len(row[name]) != len(answers):
            raise ValueError(f"{name} is not of {len(answers)} answers")
    log_q = tensor("log_q", len(drawn))
    if log_q.isinf().any():
        raise ValueError("log_q is -inf of a thought that was drawn")
    thoughts = Thoughts(
        row["name"],
        row["question"],
        tuple(row["hints"]),
        answers,
        drawn,
        tensor("log_p", len(drawn)),
        log_q,
        tensor("log_p_answers", len(answers), len(drawn)),
        tuple(row["greedy"]),
    )
    return Kept(row["document"], thoughts, None if right is None else tuple(right))


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value is of a column's type, infinities as JSON has them."""
    if pa.types.is_list(kind):
        of = kind.value_type
        return isinstance(value, list | tuple) and all(
            _fits(each, of) for each in value
        )
    if pa.types.is_floating(kind):
        return value in ("inf", "-inf") or (
            type(value) in (int, float) and not math.isnan(value)
        )
    if pa.types.is_integer(kind):
        return type(value) is int and 0 <= value < 2 ** (kind.bit_width - 1)
    return type(value) is (bool if pa.types.is_boolean(kind) else str)
