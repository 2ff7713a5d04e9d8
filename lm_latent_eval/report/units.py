"""The table of units: scores of a run's texts or questions, whoever wrote them.

Every reader of results returns runs, and every command takes them. A run has one table,
in which a row is a text, or one answer to a question:

=================  ==================================================================
``unit``           name that pairs it with the same unit of another run: a text's
                   digest, with ``#1`` of its second copy; a question's name
``repeat``         index of the answer to the question
``score``          log p-hat of a text, nats; else what the answer earned
``error``          standard error of ``score``, draws and what they may have missed;
                   NaN where it is not known
``name``           what its owner calls it: an identity, the index of a document
``digest``         digest of the text or question; empty where it is not known
``fields``         facts of the data set: a passage, a source
``bytes, words``   size of the text (``tokens``, too)
=================  ==================================================================

Texts have besides the parts of their errors. Questions have ``is_sure``, whether other
draws of latents cannot change the score, and ``is_tied``, whether rounding alone chose
the answer.
"""

from __future__ import annotations

import math
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
QUESTION: dict[str, Any] = {
    "unit": "",
    "repeat": 0,
    "score": math.nan,
    "error": 0.0,
    "name": "",
    "digest": "",
    "fields": {},
    "is_sure": True,
    "is_tied": False,
}
"""Columns of answers to questions, with their defaults."""
TEXT = (
    *("unit", "repeat", "score", "error", "name", "digest", "fields"),
    *("bytes", "words", "tokens", "draws_stderr", "draws_degrees", "missed"),
    *("bound", "stream"),
)
"""Columns of texts."""
Fields = Mapping[int, Mapping[str, str]]
"""Index of a document -> its fields in the data set."""
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
        return self.metric == LOG_LIKELIHOOD

    @property
    def texts_digest(self) -> str:
        if self.answers:
            return digest("\n".join(answer.text for answer in self.answers))
        return digest("\n".join(self.units["unit"] + " " + self.units["digest"]))

    @classmethod
    def of(cls, record: Record, fields: Fields | None = None) -> Self:
        """Make the table of a record.

        Args:
            record: Answers of ours, or of another scorer.
            fields: Fields of documents, by the index of their answers.
        """
        answers, documents = record.answers, fields or {}
        is_of_questions = any(answer.is_greedy is not None for answer in answers)
        return cls(
            record.task,
            ACCURACY if is_of_questions else LOG_LIKELIHOOD,
            record.settings,
            of_answers(_questions(answers, documents))
            if is_of_questions
            else _texts(answers, documents),
            answers,
            finished=record.finished,
        )


def of_answers(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of answers to questions: ``unit`` and ``score`` at least."""
    full = [{**QUESTION, "name": row["unit"], **row} for row in rows]
    return pd.DataFrame(full, columns=[*QUESTION])


def finite(what: str, value: object) -> float:
    """Return a finite number of a file, true and false being 1 and 0.

    Raises:
        ValueError: If it is none.
    """
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what}: expected a number, not {value!a:.40}")
    return number


def as_fields(values: object) -> dict[str, str]:
    """Return the fields of an object that are words or whole numbers."""
    pairs = values.items() if isinstance(values, Mapping) else ()
    return {str(k): str(v) for k, v in pairs if isinstance(v, str | int)}


def _texts(answers: Sequence[Answer], fields: Fields) -> pd.DataFrame:
    rows = [
        {
            "unit": answer.text,
            "repeat": 0,
            "score": answer.estimate.log_evidence,
            "error": answer.estimate.stderr,
            "name": str(answer.index),
            "digest": answer.text,
            "fields": fields.get(answer.index, {}),
            "bytes": answer.bytes,
            "words": answer.words,
            "tokens": answer.tokens,
            "draws_stderr": answer.estimate.draws_stderr,
            "draws_degrees": answer.estimate.draws_degrees,
            "missed": answer.estimate.missed or 0.0,
            "bound": answer.estimate.bound,
            "stream": answer.stream,
        }
        for answer in answers
    ]
    units = pd.DataFrame(rows, columns=[*TEXT]).astype({"error": float, "unit": "str"})
    copies = units.groupby("unit").cumcount().astype(str)
    units["unit"] += ("#" + copies).where(copies != "0", "")
    return units


def _questions(answers: Sequence[Answer], fields: Fields) -> list[dict[str, Any]]:
    """Return a row a question; one that ties is right if every option is."""
    questions: dict[int, list[Answer]] = {}
    for answer in answers:
        if answer.accuracy is not None:
            questions.setdefault(answer.index, []).append(answer)
    rows = []
    for index, options in questions.items():
        credit = options[0].accuracy or 0.0
        is_tied = any(option.tied for option in options)
        best, *others = sorted(
            options, key=lambda option: -option.estimate.log_evidence
        )
        texts = [each.text for each in sorted(options, key=lambda each: each.option)]
        rows.append(
            {
                "unit": str(index),
                "score": float(credit >= 1 if is_tied else credit > 0.5),
                "digest": f"record {digest(' '.join(texts))}",
                "fields": fields.get(index, {}),
                "is_sure": all(_is_sure(best, other) for other in others),
                "is_tied": is_tied,
            }
        )
    return rows


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
