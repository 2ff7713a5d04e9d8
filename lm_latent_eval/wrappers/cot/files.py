"""Thoughts in a file: other answers are scored from it without drawing again.

A Parquet file, a question a row; its metadata say how the thoughts were drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm_latent_eval.durable import replacing
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
    metadata = {METADATA: json.dumps(settings).encode()}
    table = pa.table(columns, schema=SCHEMA.with_metadata(metadata))
    with replacing(path) as partial:
        pq.write_table(table, partial)


def read(path: Path) -> ThoughtFile:
    """Read thoughts back.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is something else.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        table = pq.read_table(path)
        settings = json.loads((table.schema.metadata or {})[METADATA])
        return ThoughtFile(settings, [kept_of(row) for row in table.to_pylist()])
    except (pa.ArrowException, ValueError, KeyError, TypeError) as err:
        raise ValueError(f"{path} holds no thoughts ({err!r:.200})") from err


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
        KeyError: If one is missing.
    """

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(row[name], dtype=np.float64))  # "-inf" too

    drawn = zip(row["tokens"], row["endings"], strict=True)
    thoughts = Thoughts(
        row["name"],
        row["question"],
        tuple(row["hints"]),
        tuple(row["answers"]),
        tuple(Thought(tuple(tokens), Ending(ending)) for tokens, ending in drawn),
        tensor("log_p"),
        tensor("log_q"),
        tensor("log_p_answers"),
        tuple(row["greedy"]),
    )
    right = row["right"]
    return Kept(row["document"], thoughts, None if right is None else tuple(right))
