"""Shares, accuracies and variances of a mixture's components, and their file.

The file has a Parquet row an answer. ``log_likelihood`` is that of the mixture,
``components`` name the variants of every factor, one component after the other, and
the variance of p over them stands beside what moves it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from lm_latent_eval import parquet
from lm_latent_eval.estimators import Choice
from lm_latent_eval.estimators.mixtures import log_mixture, shares, split_variance
from lm_latent_eval.wrappers.mixtures.scorer import Parts

Numbers = NDArray[np.float64]
LISTED = 10
"""Variants, and questions, that results name; the file beside them has all."""
TOGETHER = "together"
"""Name of the interaction of factors."""
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
        "variance_of": _NAMES,
        "variance": _NUMBERS,
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

    def variance(self) -> dict[str, float]:
        """Return how much of the variance of p over components each factor moves."""
        p = np.exp(np.array(self.parts.log_p))
        if self.parts.drawn:
            return {TOGETHER: float(p.var(ddof=1)) if len(p) > 1 else 0.0}
        return _split(self.parts, p)


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

    @cached_property
    def same(self) -> bool:
        """Whether all options have the same components."""
        first = self.options[0].parts
        return all(
            (o.parts.factors, o.parts.variants, o.parts.drawn)
            == (first.factors, first.variants, first.drawn)
            for o in self.options
        )

    def by_component(self) -> tuple[Numbers, Numbers] | None:
        """Return the right answer's share and the accuracy of every component.

        Both of shape (C,). None where there is no choice, or options differ in their
        components.
        """
        if self.right is None or not self.same:
            return None
        log_p = np.array([option.parts.log_p for option in self.options])
        most = log_p.max(0)
        if np.isinf(most).any():
            return None
        p = np.exp(log_p - most)
        right = np.array(self.right)
        chosen = right[log_p.argmax(0)]
        return (p * right[:, None]).sum(0) / p.sum(0), chosen

    def is_decided(self) -> bool | None:
        """Whether the most probable option is certain at 95 %; None: it is no draw."""
        parts = self.options[0].parts
        is_draw = parts.drawn and parts.exact
        if not self.same or len(self.options) < 2 or not is_draw:
            return None
        log_w = torch.tensor([[*o.parts.log_p] for o in self.options])
        return Choice.of(log_w.double()).decided is not None


def _split(parts: Parts, values: Numbers) -> dict[str, float]:
    """Split the variance of a number over all components, (C,)."""
    shape = [len(names) for names in parts.variants]
    weights = [np.exp(np.array(each)) for each in parts.log_variants]
    found = split_variance(values.reshape(shape), weights)
    return dict(zip([*parts.factors, TOGETHER], found, strict=True))


def worth(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the worth of a task's components for results, as JSON.

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
        "drawn": sum(bool(each.drawn) for each in parts),
        **({"decided": sum(decided), "draws_asked": len(decided)} if decided else {}),
        "factors": {name: _variants(questions, name) for name in factors},
        "variance": _variances(questions),
        "carriers": [_carriers(q) for q in questions[:LISTED]],
    }


def _variants(questions: Sequence[Question], factor: str) -> list[dict[str, Any]]:
    """Return what each variant is worth, those that carry most first.

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
        asked, drawn = asked + 1, drawn or bool(carried.parts.drawn)
        for name, part in carried.carriers()[factor].items():
            share[name].append(part)
        place = carried.parts.factors.index(factor)
        found = question.by_component()
        chosen = [None] * len(carried.parts.log_p) if found is None else found[1]
        total: defaultdict[str, float] = defaultdict(float)
        known: defaultdict[str, float] = defaultdict(float)
        rows = zip(carried.parts.names, carried.parts.log_weights, chosen, strict=True)
        for names, log_weight, acc in rows:
            total[names[place]] += math.exp(log_weight)
            if acc is not None:
                known[names[place]] += math.exp(log_weight) * float(acc)
        for name, one in total.items():
            weight[name].append(one)
            if found is not None:
                right[name].append(known[name] / one)
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


def _variances(questions: Sequence[Question]) -> dict[str, Any] | None:
    """Split the variance over questions and components, where all are summed.

    Returns:
        For the right answer's share of p and for accuracy: what questions move, on
        average over components, and what each factor moves, on average over questions.
        With it the standard deviation of a task's accuracy over each factor that is the
        same for all questions. None without choices, or where components were drawn.
    """
    known = [(q, found) for q in questions if (found := q.by_component()) is not None]
    if not known or any(q.carried.parts.drawn for q, _ in known):
        return None
    result: dict[str, Any] = {}
    for number, name in enumerate(("share", "accuracy")):
        means = []
        within: defaultdict[str, float] = defaultdict(float)
        for question, found in known:
            parts, values = question.carried.parts, found[number]
            means.append(float(np.exp(parts.log_weights) @ values))
            for part, variance in _split(parts, values).items():
                within[part] += variance / len(known)
        result[name] = {"questions": float(np.var(means)), **within}
    result["accuracy_moved_by"] = dict(_moved(known))
    return result


def _moved(
    known: Sequence[tuple[Question, tuple[Numbers, Numbers]]],
) -> Iterator[tuple[str, float]]:
    """Yield how far each factor moves a task's accuracy: a standard deviation."""
    first = known[0][0].carried.parts
    for place, factor in enumerate(first.factors):
        if any(
            len(q.carried.parts.factors) != len(first.factors)
            or q.carried.parts.variants[place] != first.variants[place]
            or q.carried.parts.log_variants[place] != first.log_variants[place]
            for q, _ in known
        ):
            continue  # what it can be depends on the question
        weights = np.exp(np.array(first.log_variants[place]))
        mean = np.zeros(len(weights))
        for question, (_, accuracy) in known:
            parts = question.carried.parts
            shape = [len(names) for names in parts.variants]
            joint = np.exp(np.array(parts.log_weights)).reshape(shape)
            moved = np.moveaxis(joint * accuracy.reshape(shape), place, 0)
            mean += moved.reshape(len(weights), -1).sum(1) / weights / len(known)
        spread = (weights * (mean - weights @ mean) ** 2).sum()
        yield factor, math.sqrt(spread)


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
    rows: list[dict[str, Any]] = []
    for question in questions:
        for number, option in enumerate(question.options):
            variance = option.variance()
            row = {
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
                "variance_of": [*variance],
                "variance": [*variance.values()],
            }
            rows.append(row)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    parquet.write(path, table, METADATA, settings)
