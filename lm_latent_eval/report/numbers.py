"""The numbers of a record in every unit, each with its errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lm_latent_eval.estimators import Bound, CorpusRate
from lm_latent_eval.scoring.metrics import METRICS, UNKNOWN
from lm_latent_eval.scoring.records import Record, Row

CORPUS_LEVEL = ("corpus_token_perplexity", "effective_samples_corpus")
"""Metrics that take log-weights."""
NO_WEIGHTS = "no log-weights in the record: run with --model_args log_weights=true"


@dataclass(frozen=True)
class Number:
    """A metric's value with its errors; each is None where it is not known."""

    value: float | str
    """Or why there is none."""
    stderr: float | None = None
    """Over texts or questions, the draws' part included."""
    monte_carlo_stderr: float | None = None
    """Of these texts: from draws of the latents, and what they may have missed."""
    draws_stderr: float | None = None
    """The same as the draws tell it, who know nothing of what they miss."""


@dataclass(frozen=True)
class Unit:
    """What a rate is per, and what becomes of nats a unit."""

    name: str
    value: Callable[[float], float]
    slope: Callable[[float], float]
    """Its derivative, which errors are multiplied by."""


RATES = {
    "bits_per_byte": Unit(
        "bytes", lambda r: r / math.log(2), lambda r: 1 / math.log(2)
    ),
    "byte_perplexity": Unit("bytes", math.exp, math.exp),
    "word_perplexity": Unit("words", math.exp, math.exp),
    "token_perplexity": Unit("tokens", math.exp, math.exp),
}


def numbers(record: Record) -> dict[str, Number]:
    """Return the numbers of a task: rates and diagnostics, or an accuracy."""
    if any(row.is_greedy is not None for row in record.rows):
        return _accuracy(record.rows)
    foreign = "strings_scored" in record.settings
    found = {}
    for name in METRICS:
        if name.endswith("_stderr") or (foreign and "token" in name):
            continue
        found[name] = _number(name, record.rows)
    return found


def _number(name: str, rows: Sequence[Row]) -> Number:
    if name in CORPUS_LEVEL and _lacks_weights(rows):
        return Number(NO_WEIGHTS)
    items = [row.scored for row in rows]
    value = METRICS[name](items)
    if isinstance(value, str):
        return Number(value)
    if unit := RATES.get(name):
        counts = torch.tensor([getattr(row, unit.name) for row in rows])
        streams = [row.stream or f"text {n}" for n, row in enumerate(rows)]
        estimates = [item.estimate for item in items]
        found = CorpusRate.nats(estimates, counts, streams)
        slope = unit.slope(found.value)
        errors = (found.stderr, found.monte_carlo_stderr, found.draws_stderr)
        return Number(value, *(None if e is None else slope * e for e in errors))
    of_error = METRICS.get(f"{name}_stderr")
    error = of_error(items) if of_error else UNKNOWN
    return Number(value, None if isinstance(error, str) else error)


def _lacks_weights(rows: Sequence[Row]) -> bool:
    """Whether there were log-weights that the record does not hold."""
    drawn = [row for row in rows if row.bound == Bound.STOCHASTIC_LOWER]
    return not all(row.log_weights for row in drawn)


def _accuracy(rows: Sequence[Row]) -> dict[str, Number]:
    right = {r.document: r.accuracy for r in rows if r.accuracy is not None}
    if not right:
        return {}
    values = torch.tensor([*right.values()], dtype=torch.float64)
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
    return {"acc": Number(values.mean().item(), error)}


def rows(record: Record) -> list[dict[str, Any]]:
    """Return the numbers of a record as the rows of a table; those that there are."""
    return [
        {
            "task": record.task,
            "metric": name,
            "value": number.value,
            "± over texts": number.stderr,
            "± Monte Carlo": number.monte_carlo_stderr,
            "± as draws tell": number.draws_stderr,
        }
        for name, number in numbers(record).items()
        if not isinstance(number.value, str)
    ]


def table(record: Record) -> str:
    """Return the numbers of a record for a terminal."""
    documents = len({row.document for row in record.rows})
    how = ("estimator", "num_samples", "proposal", "temperature", "seed", "unk")
    settings = record.settings
    named = [f"{k}={settings[k]}" for k in how if settings.get(k) not in (None, "")]
    head = f"{record.task}: {documents:,} documents, {settings.get('model')}"
    lines = [
        head + " (not finished)" * (not record.finished),
        f"  checkpoint {settings.get('checkpoint')} {' '.join(named)}",
        f"  {'':35}{'':>12}{'± over texts':>16}{'± Monte Carlo':>16}"
        f"{'± as draws tell':>17}",
    ]
    for name, number in numbers(record).items():
        if isinstance(number.value, str):
            lines.append(f"  {name:35}{number.value}")
            continue
        errors = (number.stderr, number.monte_carlo_stderr, number.draws_stderr)
        cells = "".join(
            f"{'N/A' if error is None else f'{error:.4f}':>16}" for error in errors
        )
        shown = cells if name in RATES or number.stderr is not None else ""
        lines.append(f"  {name:35}{number.value:12.4f}{shown}")
    return "\n".join(lines)


__all__ = ["Number", "numbers", "rows", "table"]
