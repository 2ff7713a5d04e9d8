"""The table of units: what a run found of each text or question, whoever wrote it.

Every reader of results returns runs, and every command takes them. A run has one table,
in which a row is a text, or one answer to a question:

=================  ==================================================================
``unit``           name that pairs it with the same unit of another run: a text's
                   digest, with ``#1`` of its second copy; a question's name
``repeat``         number of the answer to the question, from 0
``score``          log p-hat of a text, nats; else what the answer earned
``error``          standard error of ``score``, draws and what they may have missed;
                   NaN where it is not known
``bytes, words``   size of the text (``tokens``, too)
``name``           what its owner calls it: an identity, the number of a document
``digest``         digest of what was asked; empty where it is not known
``fields``         facts of the data set: a passage, a source
=================  ==================================================================

Texts have besides the parts of their errors (``PARTS``). Questions have ``is_sure``,
whether other draws of latents cannot change the score, and ``is_tied``, whether
rounding alone chose the answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pandas as pd
import torch

from lm_latent_eval.estimators import log_ratio_stderr
from lm_latent_eval.estimators.standard_errors import pooled_degrees, widened
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Record
from lm_latent_eval.text.files import digest

LOG_LIKELIHOOD = "log-likelihood"
"""Metric of whole texts."""
ACCURACY = "accuracy"
"""Metric of questions that log-likelihoods answer."""
COLUMNS = ("unit", "repeat", "score", "error", "name", "digest", "fields")
"""Columns of every table of units."""
PARTS = (
    *("bytes", "words", "tokens", "draws_stderr", "draws_degrees", "missed"),
    *("bound", "stream"),
)
"""Further columns of texts: their sizes, and the parts of their errors."""
Fields = Mapping[int, Mapping[str, str]]
"""What a data set says of documents, by their number."""
SIGMAS = 1.96
"""Standard errors between two options beyond which draws leave no doubt."""


@dataclass(frozen=True)
class Run:
    """A run's units in one task, and how they were scored."""

    task: str
    metric: str
    """``LOG_LIKELIHOOD``, ``ACCURACY``, or the name of another score."""
    settings: dict[str, Any]
    """Facts about the run: ``model`` at least."""
    units: pd.DataFrame
    """The table of units."""
    answers: Sequence[Answer] = field(default=(), repr=False)
    """Answers that the units were made of, in their order: of texts one a unit, of
    questions one an option; none of other programs' scores."""
    lower_is_better: bool = False
    finished: bool = True

    @property
    def is_of_texts(self) -> bool:
        """Whether units are texts with likelihoods, not questions."""
        return self.metric == LOG_LIKELIHOOD

    @property
    def texts_digest(self) -> str:
        """A digest of all that was scored, in its order."""
        if self.answers:
            return digest("\n".join(answer.text for answer in self.answers))
        return digest("\n".join(self.units["unit"] + " " + self.units["digest"]))

    @classmethod
    def of(cls, record: Record, fields: Fields | None = None) -> Self:
        """Make the table of a record.

        Args:
            record: Answers of ours, or of another scorer.
            fields: What a data set says of documents, by the index of their answers.
        """
        known = fields or {}
        asked = any(answer.is_greedy is not None for answer in record.answers)
        rows = _questions(record, known) if asked else _texts(record, known)
        return cls(
            record.task,
            ACCURACY if asked else LOG_LIKELIHOOD,
            record.settings,
            table(rows, *(("is_sure", "is_tied") if asked else PARTS)),
            record.answers,
            finished=record.finished,
        )


def table(rows: Sequence[Mapping[str, Any]], *more: str) -> pd.DataFrame:
    """Make a table of units, with further columns; it may be empty."""
    return pd.DataFrame([*rows], columns=[*COLUMNS, *more])


def answered(unit: str, value: float, **known: Any) -> dict[str, Any]:
    """Return the row of an answer to a question.

    Args:
        unit: The question's name.
        value: What the answer earned.
        **known: Further columns.
    """
    return {
        "unit": unit,
        "repeat": 0,
        "score": value,
        "error": 0.0,
        "name": unit,
        "digest": "",
        "fields": {},
        "is_sure": True,
        "is_tied": False,
        **known,
    }


def of_answers(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of answers to questions."""
    return table(rows, "is_sure", "is_tied")


def number(what: str, value: object) -> float:
    """Return a finite number of a file, true and false being 1 and 0.

    Raises:
        ValueError: If it is none.
    """
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what}: expected a number, not {value!a:.40}")
    return found


def as_fields(values: object) -> dict[str, str]:
    """Return the fields of an object that are words or whole numbers."""
    pairs = values.items() if isinstance(values, Mapping) else ()
    return {str(k): str(v) for k, v in pairs if isinstance(v, str | int)}


def _texts(record: Record, known: Fields) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    rows = []
    for answer in record.answers:
        found, copy = answer.estimate, seen[answer.text]
        seen[answer.text] += 1
        rows.append(
            {
                "unit": f"{answer.text}#{copy}" if copy else answer.text,
                "repeat": 0,
                "score": found.log_evidence,
                "error": math.nan if found.stderr is None else found.stderr,
                "name": str(answer.index),
                "digest": answer.text,
                "fields": known.get(answer.index, {}),
                "bytes": answer.bytes,
                "words": answer.words,
                "tokens": answer.tokens,
                "draws_stderr": found.draws_stderr,
                "draws_degrees": found.draws_degrees,
                "missed": found.missed or 0.0,
                "bound": found.bound,
                "stream": answer.stream,
            }
        )
    return rows


def _questions(record: Record, known: Fields) -> list[dict[str, Any]]:
    asked: dict[int, list[Answer]] = {}
    for answer in record.answers:
        asked.setdefault(answer.index, []).append(answer)
    return [
        _question(index, options, known.get(index, {}))
        for index, options in asked.items()
        if options[0].accuracy is not None
    ]


def _question(
    index: int, options: Sequence[Answer], known: Mapping[str, str]
) -> dict[str, Any]:
    """Return the row of a question; one that ties is right if every option is."""
    credit = options[0].accuracy or 0.0
    is_tied = any(option.tied for option in options)
    first, *others = sorted(
        options, key=lambda option: option.estimate.log_evidence, reverse=True
    )
    asked = sorted(options, key=lambda option: option.option)
    return answered(
        str(index),
        float(credit >= 1 if is_tied else credit > 0.5),
        digest=f"record {digest(' '.join(option.text for option in asked))}",
        fields=known,
        is_sure=all(_is_sure(first, other) for other in others),
        is_tied=is_tied,
    )


def _is_sure(one: Answer, other: Answer) -> bool:
    """Whether draws leave no doubt which of two options is the more probable one.

    Options of the same draws may err in opposite directions: their errors add up, where
    log-weights do not tell that of the difference.
    """
    first, second = one.estimate, other.estimate
    parts = [(each.draws_stderr, each.draws_degrees) for each in (first, second)]
    errors = [error for error, _ in parts]
    log_w = [torch.tensor(each.log_weights).double() for each in (first, second)]
    if one.stream != other.stream:
        error = math.hypot(*errors)
    elif len(log_w[0]) == len(log_w[1]) > 1:
        error = log_ratio_stderr(*log_w).item()
    else:
        error = sum(errors)
    gap = first.log_evidence - second.log_evidence
    return gap >= SIGMAS * widened(error, pooled_degrees(parts))
