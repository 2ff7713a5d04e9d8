"""The record of a run: one row an answer, from which its numbers can be made again.

A finished record is a Parquet file, whose metadata say how it was made. While a run
goes on its rows are JSON lines, so that one which is killed leaves what it has.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm_latent_eval.durable import appending, replacing, whole_lines
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import Scored

METADATA = b"lm_latent_eval"
FORMAT = 1
UNFINISHED = ".partial.jsonl"
"""How the file of a run ends that goes on, or was killed."""

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
    "unseen": pa.float64(),
    "upper": pa.float64(),
    "effective_sample_size": pa.float64(),
    "pareto_k": pa.float64(),
    "num_samples": pa.int64(),
    "evaluations": pa.int64(),
    "sentences": pa.int64(),
    "log_sum_weights": pa.float64(),
    "log_sum_squared_weights": pa.float64(),
    "stream": pa.string(),
    "unknown_words_not_spelled": pa.int64(),
    "gaps_not_charged": pa.int64(),
    "is_greedy": pa.bool_(),
    "accuracy": pa.float64(),
    "canonical": pa.float64(),
    "log_weights": pa.list_(pa.float64()),
}
"""Columns of a record, named as ``Row`` names them."""
SCHEMA = pa.schema(list(TYPES.items()))


@dataclass(frozen=True)
class Row:
    """One answer: of a text, or of one option of a question."""

    document: int
    """Its place in the task."""
    text: str
    """Digest of what was scored, its context included."""
    words: int
    bytes: int
    tokens: int
    """Predicted ones."""
    log_likelihood: float
    """Estimated, nats."""
    bound: str
    """What the estimate is of log p: see ``Bound``."""
    estimator: str
    stderr: float | None
    """Monte Carlo error of ``log_likelihood``, nats, what draws may have missed
    included; None where it cannot be estimated."""
    draws_stderr: float
    """The same as the draws of its proposal tell it, nats; they cannot show what the
    proposal never visits."""
    effective_sample_size: float | None
    pareto_k: float | None
    num_samples: int
    """K."""
    evaluations: int
    """Of p(x, z), all sentences and pilots together."""
    sentences: int = 1
    unseen: float | None = None
    """Share of p(x) that the draws are likely to miss, by what a search found; None
    where nothing was searched for."""
    upper: float | None = None
    """What log p is at most, on average over draws, nats; with ``bounds=both``."""
    log_sum_weights: float | None = None
    """Log of the sum of K weights, nats; None for what has no weights of its own, as a
    beam or a product of sentences."""
    log_sum_squared_weights: float | None = None
    """The same of their squares: with the former and K, all that estimate, effective
    sample size and draws' error of an importance sample need."""
    stream: str = ""
    unknown_words_not_spelled: int = 0
    gaps_not_charged: int = 0
    option: int = 0
    """Which answer of a question it is."""
    is_greedy: bool | None = None
    accuracy: float | None = None
    """The task's own, of the whole question."""
    canonical: float | None = None
    """Log p of the tokenizer's own segmentation, nats, where all are summed over."""
    log_weights: tuple[float, ...] = field(default=(), repr=False)
    """In the order drawn, nats, if they were asked for."""

    @classmethod
    def of(
        cls,
        answer: Answer,
        scored: Scored,
        *,
        text: str,
        document: int,
        **more: Any,
    ) -> Row:
        """Describe an answer.

        Args:
            answer: What was found.
            scored: The same with its sizes.
            text: Digest of what was scored.
            document: Its place in the task.
            **more: Other fields.
        """
        estimate = scored.estimate
        return cls(
            document=document,
            text=text,
            words=scored.words,
            bytes=scored.bytes,
            tokens=estimate.num_tokens,
            log_likelihood=estimate.log_evidence,
            bound=str(estimate.bound),
            estimator=estimate.estimator,
            stderr=estimate.stderr,
            draws_stderr=estimate.draws_stderr,
            unseen=estimate.unseen,
            upper=estimate.upper,
            effective_sample_size=estimate.effective_sample_size,
            pareto_k=estimate.pareto_k,
            num_samples=estimate.num_samples,
            evaluations=answer.evaluations,
            sentences=answer.sentences,
            stream=scored.stream,
            unknown_words_not_spelled=scored.unspelled,
            gaps_not_charged=scored.respaced,
            canonical=answer.canonical,
            log_weights=estimate.log_weights,
            **_sums(estimate, answer.sentences),
            **more,
        )

    @property
    def scored(self) -> Scored:
        """What metrics are made of."""
        estimate = Estimate(
            log_evidence=self.log_likelihood,
            stderr=self.stderr,
            draws_stderr=self.draws_stderr,
            effective_sample_size=self.effective_sample_size,
            pareto_k=self.pareto_k,
            num_samples=self.num_samples,
            num_tokens=self.tokens,
            bound=Bound(self.bound),
            estimator=self.estimator,
            log_weights=self.log_weights,
            unseen=self.unseen,
            upper=self.upper,
        )
        return Scored(
            estimate,
            self.stream,
            self.unknown_words_not_spelled,
            self.gaps_not_charged,
            self.words,
            self.bytes,
        )

    @classmethod
    def read(cls, values: dict[str, Any]) -> Row:
        """Read a row of a file back.

        Raises:
            TypeError: If a field is missing, or there is one too many.
        """
        infinite = {k: float(v) for k, v in values.items() if v in ("inf", "-inf")}
        weights = tuple(map(float, values.get("log_weights") or ()))
        return cls(**{**values, **infinite, "log_weights": weights})


def _sums(estimate: Estimate, sentences: int) -> dict[str, Any]:
    """Return log sum w and log sum w^2 of one text's own weights."""
    if not estimate.log_weights or sentences > 1:
        return {}
    log_w = torch.tensor(estimate.log_weights, dtype=torch.float64)
    return {
        "log_sum_weights": log_w.logsumexp(0).item(),
        "log_sum_squared_weights": (2 * log_w).logsumexp(0).item(),
    }


@dataclass(frozen=True)
class Record:
    """What a run found in one task, and how."""

    task: str
    settings: dict[str, Any]
    """What the numbers depend on, and what they are."""
    rows: list[Row]
    finished: bool = True

    @property
    def texts_digest(self) -> str:
        """A digest of all that was scored, in its order."""
        texts = "\n".join(row.text for row in self.rows)
        return hashlib.sha256(texts.encode()).hexdigest()[:16]


def write(record: Record, path: Path) -> None:
    """Write a record, whole or not at all; log-weights where its rows have them."""
    settings = {
        "format": FORMAT,
        "task": record.task,
        "texts": record.texts_digest,
        **record.settings,
    }
    table = table_of(record.rows)
    if not any(row.log_weights for row in record.rows):
        table = table.drop_columns("log_weights")
    metadata = {METADATA: json.dumps(settings).encode()}
    with replacing(path) as partial:
        pq.write_table(table.replace_schema_metadata(metadata), partial)


def table_of(rows: list[Row]) -> pa.Table:
    """Put rows into columns."""
    columns = {name: [getattr(row, name) for row in rows] for name in TYPES}
    return pa.table(columns, schema=SCHEMA)


def read(path: Path) -> list[Record]:
    """Read a finished record, or those of all tasks of a run that was killed.

    Raises:
        ValueError: If the file is none.
    """
    try:
        if path.name.endswith(UNFINISHED):
            return _unfinished(path)
        table = pq.read_table(path)
        settings = json.loads((table.schema.metadata or {})[METADATA])
        rows = [Row.read(values) for values in table.to_pylist()]
        return [Record(settings.pop("task"), settings, rows)]
    except (pa.ArrowException, ValueError, KeyError, TypeError) as err:
        raise ValueError(f"{path} is no record of a run ({err!r:.200})") from err


def _unfinished(path: Path) -> list[Record]:
    lines, _ = whole_lines(path)
    settings, *answers = [json.loads(line) for line in lines.values()]
    tasks: dict[str, list[Row]] = {}
    for values in answers:
        tasks.setdefault(values.pop("task"), []).append(Row.read(values))
    for rows in tasks.values():  # as they were found, which is by length
        rows.sort(key=lambda row: (row.document, row.option))
    return [Record(task, settings, rows, False) for task, rows in tasks.items()]


@contextmanager
def journal(
    path: Path, settings: dict[str, Any]
) -> Iterator[Callable[[str, Row], None]]:
    """Yield what keeps a row of a task at once, without its log-weights.

    Args:
        path: A file that a crash does not spoil; one that an earlier run left goes.
        settings: What the numbers depend on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with appending(path) as append:

        def add(values: dict[str, Any]) -> None:
            line = json.dumps({name: plain(value) for name, value in values.items()})
            append(line.encode() + b"\n")

        add(settings)
        yield lambda task, row: add({"task": task, **_without_weights(row)})


def _without_weights(row: Row) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "log_weights"}


def plain(value: Any) -> Any:
    """Write infinities as strings: JSON has no number for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


__all__ = [
    "UNFINISHED",
    "Record",
    "Row",
    "journal",
    "plain",
    "read",
    "table_of",
    "write",
]
