"""Thoughts about a question, and the files that keep them.

A run keeps what it draws in a journal, so that one that is killed leaves it, and writes
a Parquet file at its end: a question a row, its metadata say how the thoughts were
drawn. Other answers are scored from either without drawing again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lm_latent_eval import parquet
from lm_latent_eval.estimators import Choice
from lm_latent_eval.ledger.journal import Journal, Row, read_run
from lm_latent_eval.scoring.records import task_of
from lm_latent_eval.wrappers.cot.prompts import Ending

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
FORMAT = 3


@dataclass(frozen=True)
class Thought:
    """One that was drawn."""

    tokens: tuple[int, ...]
    """As drawn, what ended it included."""
    ending: Ending


@dataclass(frozen=True)
class Thoughts:
    r"""K thoughts about one question, shared by its A answers.

    .. math:: w_k(a) = \frac{p(z_k \mid x)\, p(a \mid x, z_k)}{q(z_k \mid x)}

    All in nats, float64.
    """

    name: str
    """Of the question: what its random numbers follow from."""
    question: str
    """The string that it was asked with."""
    hints: tuple[str, ...]
    """The answers that prompts showed; none where all thoughts are the model's own."""
    answers: tuple[str, ...]
    drawn: tuple[Thought, ...]
    log_p: Tensor
    """log p(z_k | x), shape ``(K,)``."""
    log_q: Tensor
    """log q(z_k | x), shape ``(K,)``: of the whole mixture where there are hints."""
    log_p_answers: Tensor
    """log p(a | x, z_k), shape ``(A, K)``; ``-inf`` after a thought that is not
    closed."""
    greedy: tuple[bool, ...]
    """Whether each answer is the argmax of the estimated next-token marginals."""

    def joined(self, other: Thoughts) -> Thoughts:
        """Return these thoughts with the answers of both; ``other`` are the same."""
        return replace(
            self,
            answers=self.answers + other.answers,
            log_p_answers=torch.cat([self.log_p_answers, other.log_p_answers]),
            greedy=self.greedy + other.greedy,
        )

    def continued(self, later: Thoughts) -> Thoughts:
        """Return these thoughts and later ones about the same answers."""
        return replace(
            later,
            drawn=self.drawn + later.drawn,
            log_p=torch.cat([self.log_p, later.log_p]),
            log_q=torch.cat([self.log_q, later.log_q]),
            log_p_answers=torch.cat([self.log_p_answers, later.log_p_answers], -1),
        )

    def choice(self, most: float) -> Choice:
        """Return the most probable answer, and whether it is certain at 95 %.

        Args:
            most: What no weight is above.
        """
        return Choice.of(self.log_weights, most)

    @property
    def log_weights(self) -> Tensor:
        """Log w_k(a), shape ``(A, K)``."""
        return self.log_ratios + self.log_p_answers

    @property
    def log_ratios(self) -> Tensor:
        """Log p(z_k | x) - log q(z_k | x), shape ``(K,)``; 0 of the model's own."""
        return self.log_p - self.log_q

    @property
    def answered(self) -> Tensor:
        """Which thoughts an answer follows, shape ``(K,)``."""
        return (self.log_p_answers > -torch.inf).any(0)


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


def write_thoughts(
    path: Path, settings: dict[str, Any], questions: Sequence[Kept], texts: Texts
) -> None:
    """Write thoughts, whole or not at all.

    Args:
        path: A Parquet file.
        settings: What the numbers depend on, ``task`` among it.
        questions: What to keep.
        texts: Writes tokens as strings.
    """
    rows = []
    for kept in questions:
        thoughts = [texts(thought.tokens) for thought in kept.thoughts.drawn]
        rows.append({**row_of(kept), "thoughts": thoughts})
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    parquet.write(path, table, METADATA, settings)


def read_thoughts(path: Path) -> ThoughtFile:
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


@contextmanager
def journal(
    path: Path, settings: dict[str, Any]
) -> Iterator[Callable[[str, Kept], None]]:
    """Yield what keeps a question of a task at once.

    Args:
        path: The file; what an earlier run with the same settings left there stays.
        settings: What the numbers depend on.

    Raises:
        BusyError: If another run is writing it.
    """
    with _journal(path).going_on(settings, "the thoughts so far") as rows:
        yield lambda task, kept: rows.add({"task": task, **row_of(kept)})


def read_unfinished(paths: Sequence[Path]) -> list[ThoughtFile]:
    """Read what one run has thought so far, every process of it, a task each.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """

    def read_row(row: Row) -> tuple[str, tuple[int, str], Kept]:
        kept = kept_of(row)
        return task_of(row), (kept.document, kept.thoughts.question), kept

    settings, tasks = read_run([_journal(path) for path in paths], read_row)
    return [
        ThoughtFile({"task": task, **settings}, questions, finished=False)
        for task, questions in tasks.items()
    ]


def _journal(path: Path) -> Journal:
    return Journal(path, "record of thoughts", FORMAT)
