"""Shares of an answer's probability by component, and the file of components.

The file has a Parquet row an answer. ``log_likelihood`` is that of the mixture,
``components`` name the variants of every factor, one component after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from lm_latent_eval import parquet
from lm_latent_eval.estimators import Choice
from lm_latent_eval.estimators.mixtures import log_mixture, shares
from lm_latent_eval.wrappers.mixtures.scorer import Parts

LISTED = 10
"""Variants, and questions, that results name; the file beside them has all."""
METADATA = b"lm_latent_eval_components"
_NUMBERS, _NAMES = pa.list_(pa.float64()), pa.list_(pa.string())
SCHEMA = pa.schema(
    {
        "document": pa.int64(),
        "option": pa.int64(),
        "text": pa.string(),
        "right": pa.float64(),
        "log_likelihood": pa.float64(),
        "at_least": pa.float64(),
        "at_most": pa.float64(),
        "factors": _NAMES,
        "components": pa.list_(_NAMES),
        "log_weights": _NUMBERS,
        "log_p": _NUMBERS,
    }
)


@dataclass(frozen=True)
class Option:
    """One answer to a question, with the components of its probability."""

    text: str
    parts: Parts
    at_least: float | None = None
    """Lower limit of log p, by draws, nats; see ``Estimate``."""
    at_most: float | None = None

    @property
    def log_p(self) -> float:
        """Of the mixture, nats."""
        return log_mixture(self.parts.log_weights, self.parts.log_p)

    def carriers(self) -> dict[str, dict[str, float]]:
        """Return the share of p that comes from each variant of every factor."""
        found: dict[str, defaultdict[str, float]] = {
            name: defaultdict(float) for name in self.parts.factors
        }
        part = shares(self.parts.log_weights, self.parts.log_p)
        for names, share in zip(self.parts.names, part, strict=True):
            for factor, variant in zip(self.parts.factors, names, strict=True):
                found[factor][variant] += share
        return {name: dict(each) for name, each in found.items()}


@dataclass(frozen=True)
class Question:
    """A document of a task with its options."""

    document: int
    options: Sequence[Option]
    right: tuple[float, ...] | None
    """Score of each option by the task; None where there is no choice."""

    @property
    def carried(self) -> Option:
        """The option that matters: the right one, else the most probable."""
        if self.right is not None:
            return self.options[self.right.index(max(self.right))]
        return max(self.options, key=lambda option: option.log_p)

    @property
    def same(self) -> bool:
        """Whether all options have the same components."""
        first = self.options[0].parts
        return all(
            (o.parts.factors, o.parts.names) == (first.factors, first.names)
            for o in self.options
        )

    def accuracies(self) -> Sequence[float] | None:
        """Return the score of each component's own choice.

        None where there is no choice, options differ in their components, or a
        component gives all of them a probability of zero.
        """
        if self.right is None or not self.same:
            return None
        log_p = np.array([option.parts.log_p for option in self.options])
        if np.isinf(log_p.max(0)).any():
            return None
        return [float(self.right[place]) for place in log_p.argmax(0)]

    def is_decided(self) -> bool | None:
        """Whether the most probable option is certain at 95 %; None: it is no draw."""
        parts = self.options[0].parts
        is_draw = parts.drawn and parts.exact
        if not self.same or len(self.options) < 2 or not is_draw:
            return None
        log_w = torch.tensor([[*o.parts.log_p] for o in self.options])
        return Choice.of(log_w.double()).decided is not None


def carriers(questions: Sequence[Question]) -> dict[str, Any]:
    """Return what carries a task's answers, for results, as JSON.

    Args:
        questions: Of the task, one at least.
    """
    parts = [q.carried.parts for q in questions]
    sizes = [len(each.log_p) for each in parts]
    factors = {name: None for each in parts for name in each.factors}
    decided = [d for q in questions if (d := q.is_decided()) is not None]
    return {
        "questions": len(questions),
        "components": [min(sizes), max(sizes)],
        "drawn": sum(each.drawn for each in parts),
        **({"decided": sum(decided), "draws_asked": len(decided)} if decided else {}),
        "factors": {name: _variants(questions, name) for name in factors},
        "carriers": [_carriers(q) for q in questions[:LISTED]],
    }


def _variants(questions: Sequence[Question], factor: str) -> list[dict[str, Any]]:
    """Return the share and accuracy of each variant, those that carry most first.

    Shares and weights are averages over the questions that have the variant; where
    components are drawn, over all, as one that was not drawn may be there.
    """
    share: defaultdict[str, list[float]] = defaultdict(list)
    weight: defaultdict[str, list[float]] = defaultdict(list)
    right: defaultdict[str, list[float]] = defaultdict(list)
    asked, drawn = 0, False
    for question in questions:
        carried = question.carried
        if factor not in carried.parts.factors:
            continue
        asked, drawn = asked + 1, drawn or carried.parts.drawn
        place = carried.parts.factors.index(factor)
        found = question.accuracies()
        total: defaultdict[str, float] = defaultdict(float)
        known: defaultdict[str, float] = defaultdict(float)
        rows = zip(carried.parts.names, carried.parts.log_weights, strict=True)
        for number, (names, log_weight) in enumerate(rows):
            total[names[place]] += math.exp(log_weight)
            if found is not None:
                known[names[place]] += math.exp(log_weight) * found[number]
        for name, part in carried.carriers()[factor].items():
            share[name].append(part)
            weight[name].append(total[name])
            if found is not None:
                right[name].append(known[name] / total[name])
    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "questions": len(share[name]),
            "weight": math.fsum(weight[name]) / (asked if drawn else len(weight[name])),
            "carries": math.fsum(share[name]) / (asked if drawn else len(share[name])),
            "accuracy": math.fsum(right[name]) / len(right[name])
            if right[name]
            else None,
        }
        for name in share
    ]
    listed.sort(key=lambda row: (-row["carries"] * row["questions"], row["name"]))
    return listed[:LISTED]


def _carriers(question: Question) -> dict[str, Any]:
    """Say which variants carry a question's answer, the first of each factor."""
    option = question.carried
    first = {
        factor: max(found.items(), key=lambda pair: (pair[1], pair[0]))
        for factor, found in option.carriers().items()
    }
    return {
        "document": question.document,
        "answer": option.text,
        "p": math.exp(option.log_p),
        "carried_by": {factor: list(pair) for factor, pair in first.items()},
    }


def write_components(
    path: Path, settings: dict[str, Any], questions: Sequence[Question]
) -> None:
    """Write the components of a task's answers, whole or not at all.

    Args:
        path: A Parquet file.
        settings: What the numbers depend on, ``task`` among it.
        questions: Of the task.
    """
    rows = [
        {
            "document": question.document,
            "option": number,
            "text": option.text,
            "right": None if question.right is None else question.right[number],
            "log_likelihood": option.log_p,
            "at_least": option.at_least,
            "at_most": option.at_most,
            "factors": option.parts.factors,
            "components": option.parts.names,
            "log_weights": option.parts.log_weights,
            "log_p": [*option.parts.log_p],
        }
        for question in questions
        for number, option in enumerate(question.options)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    parquet.write(path, table, METADATA, settings)
