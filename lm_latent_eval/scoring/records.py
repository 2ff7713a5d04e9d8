"""The record of a run: one row an answer, sufficient to recompute every metric.

A finished record is a Parquet file, whose metadata say how it was made. While a run
goes on its rows are in a journal, so that one which is killed leaves what it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa

from lm_latent_eval import parquet
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.ledger.journal import UNFINISHED, Journal, Row, read_run
from lm_latent_eval.ledger.settings import check_format
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.text.files import digest

METADATA = b"lm_latent_eval"
FORMAT = 4
NO_END = "pieces of its own tokenizer; no end of a text is charged"
"""Unit of causal networks of transformers."""
TASK = "estimate"
"""Task of files of estimates, whose rows name none."""
WITHOUT_NUMBER = "texts_without_number"
"""Key of settings for the names of texts that the record lacks."""

TYPES = {
    "document": pa.int64(),
    "option": pa.int64(),
    "text": pa.string(),
    "words": pa.int64(),
    "bytes": pa.int64(),
    "tokens": pa.int64(),
    "log_likelihood": pa.float64(),
    "bound": pa.string(),
    "estimator": pa.string(),
    "stderr": pa.float64(),
    "draws_stderr": pa.float64(),
    "draws_degrees": pa.float64(),
    "upper": pa.float64(),
    "at_least": pa.float64(),
    "at_most": pa.float64(),
    "effective_sample_size": pa.float64(),
    "pareto_k": pa.float64(),
    "histories": pa.int64(),
    "sentences": pa.int64(),
    "stream": pa.string(),
    "unknown_words_not_spelled": pa.int64(),
    "gaps_not_charged": pa.int64(),
    "unknown_words_left_out": pa.int64(),
    "is_greedy": pa.bool_(),
    "accuracy": pa.float64(),
    "tied": pa.bool_(),
    "canonical": pa.float64(),
    "log_weights": pa.list_(pa.float64()),
}
"""Columns of a record."""
SCHEMA = pa.schema(list(TYPES.items()))
_COLUMN = {
    "index": "document",
    "num_tokens": "tokens",
    "log_evidence": "log_likelihood",
    "unspelled": "unknown_words_not_spelled",
    "num_samples": "histories",  # held; K is in the settings
    "respaced": "gaps_not_charged",
    "left_out": "unknown_words_left_out",
}
"""Columns that are named otherwise than the fields of ``Answer`` and ``Estimate``."""
_MAY_BE_EMPTY = {
    _COLUMN.get(name, name)
    for kind in (Estimate, Answer)
    for name, hint in get_type_hints(kind).items()
    if type(None) in get_args(hint)
}
_ONLY_WHERE_KNOWN = ("at_least", "at_most", "log_weights")
"""Columns that a record lacks if none of its answers has them."""
_KINDS = {pa.int64(): int, pa.float64(): float, pa.string(): str, pa.bool_(): bool}
_INFINITE = ("inf", "-inf")
"""Strings of ``plain`` for numbers that JSON lacks."""
_MAY_BE_INFINITE = (
    "stderr",
    "draws_stderr",
    "draws_degrees",
    "upper",
    "at_least",
    "at_most",
    "pareto_k",
    "log_weights",
)
_LARGEST = 2**50
"""Upper limit of finite numbers of a text: that of a petabyte."""


def row_of(answer: Answer) -> Row:
    """Describe an answer by the columns of a record."""
    values = {**vars(answer.estimate), **vars(answer)}
    row = {_COLUMN.get(name, name): value for name, value in values.items()}
    return {name: row[name] for name in TYPES} | {"bound": str(row["bound"])}


def answer_of(row: dict[str, Any]) -> Answer:
    """Read a row back.

    Raises:
        ValueError: If a column is missing or of another kind, or the values make no
            estimate.
    """

    def read(kind: type, *but: str) -> dict[str, Any]:
        names = [field.name for field in fields(kind) if field.name not in but]
        columns = ((name, _COLUMN.get(name, name)) for name in names)
        return {name: _checked(column, row) for name, column in columns}

    values = read(Estimate, "replicates")
    estimate = Estimate(**{**values, "bound": Bound(values["bound"])})
    return Answer(estimate=estimate, **read(Answer, "estimate"))


def checked_answer(answer: Answer) -> Answer:
    """Return another scorer's answer.

    Raises:
        ValueError: If a record cannot hold it.
    """
    answer_of(row_of(answer) | {"log_weights": []})
    return answer


def _checked(column: str, row: dict[str, Any]) -> Any:
    if column not in row:
        raise ValueError(f"there is no {column}")
    value = row[column]
    if value is None and column in _MAY_BE_EMPTY:
        return None
    if column == "log_weights" and isinstance(value, list):
        return tuple(_of_kind(column, log_w, float) for log_w in value)
    return _of_kind(column, value, _KINDS.get(TYPES[column]))


def _of_kind(column: str, value: Any, kind: type | None) -> Any:
    if kind is float and (type(value) is int or value in _INFINITE):
        value = _float(value)
    if type(value) is not kind or not _is_possible(column, value):
        raise ValueError(f"{column} is {value!a:.40}")
    return value


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a whole number
        return math.inf if value > 0 else -math.inf


def _is_possible(column: str, value: Any) -> bool:
    if isinstance(value, int):
        return 0 <= value <= _LARGEST
    if not isinstance(value, float) or column == "draws_degrees":
        return True
    if math.isinf(value):
        return column in _MAY_BE_INFINITE
    return abs(value) <= _LARGEST


@dataclass(frozen=True)
class Record:
    """Answers and settings of a run in one task."""

    task: str
    settings: dict[str, Any]
    """Settings and kinds of the numbers."""
    answers: Sequence[Answer]
    finished: bool = True

    @property
    def texts_digest(self) -> str:
        """Digest of all that was scored, in its order."""
        return _digest([answer.text for answer in self.answers])


def _digest(texts: Sequence[str]) -> str:
    return digest("\n".join(texts))


def write(path: Path, task: str, settings: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the record of a task, whole or not at all.

    Log-weights and intervals take columns if an answer has them.
    """
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    texts = _digest(table["text"].to_pylist())
    for name in _ONLY_WHERE_KNOWN:
        if not any(isinstance(row[name], float) or row[name] for row in rows):
            table = table.drop_columns(name)
    metadata = {"format": FORMAT, "task": task, "texts": texts, **settings}
    parquet.write(path, table, METADATA, metadata)


def read(path: Path) -> list[Record]:
    """Read a finished record, or those of all tasks of a run that was killed.

    Raises:
        ValueError: If the file is none, or another version's.
    """
    if path.name.endswith(UNFINISHED):
        return read_unfinished([path])
    file = parquet.RowFile(path, METADATA, "record of a run")
    settings = file.said()
    check_format(path, settings, FORMAT)
    try:
        task = task_of(settings)
    except ValueError as err:
        raise ValueError(f"{path} is no record of a run ({err})") from err
    del settings["task"]
    empty: Row = {"log_weights": [], "at_least": None, "at_most": None}
    rows = file.rows(SCHEMA, optional=_ONLY_WHERE_KNOWN)
    answers: dict[tuple[int, int], Answer] = {}
    for line, row in enumerate(rows, start=1):
        try:
            answer = answer_of({**empty, **row})
            if (answer.index, answer.option) in answers:
                raise ValueError("the same document and option as one before")
        except ValueError as err:
            raise ValueError(f"{path}, row {line}: {err}") from err
        answers[answer.index, answer.option] = answer
    finished = not settings.get(WITHOUT_NUMBER)
    return [Record(task, settings, [*answers.values()], finished)]


def task_of(row: dict[str, Any]) -> str:
    """Return the task that a row or the settings of a file name.

    Raises:
        ValueError: If they name none.
    """
    task = row.get("task")
    if not isinstance(task, str):
        raise ValueError(f"task is {task!a:.40}")
    return task


def read_unfinished(paths: Sequence[Path]) -> list[Record]:
    """Read the answers of an interrupted run, of all its processes, task by task.

    Raises:
        ValueError: If a file is none, or they are of several runs.
    """

    def read_row(row: Row) -> tuple[str, tuple[int, int], Answer]:
        answer = answer_of(row)
        return task_of({"task": TASK, **row}), (answer.index, answer.option), answer

    settings, tasks = read_run([_journal(path) for path in paths], read_row)
    return [Record(task, settings, answers, False) for task, answers in tasks.items()]


@contextmanager
def journal(
    path: Path, settings: dict[str, Any]
) -> Iterator[Callable[[str, Answer], None]]:
    """Yield a function that stores an answer of a task, without its log-weights.

    Args:
        path: The file; what an earlier run with the same settings left there stays.
        settings: What the numbers depend on.

    Raises:
        BusyError: If another run is writing it.
    """
    with _journal(path).going_on(settings, None) as rows:
        yield lambda task, answer: rows.add(
            {"task": task, **row_of(answer), "log_weights": []}
        )


def _journal(path: Path) -> Journal:
    return Journal(path, "record of a run", FORMAT)
