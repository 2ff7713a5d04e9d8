"""Scores of single questions, and the sample logs of lm-eval that hold them.

Log-likelihoods of texts, with bounds and errors of draws, are a ``Record``; everything
else that a run says of single questions is ``Scores``. A sample log says what a model
that is not ours gave each text or answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lm_latent_eval.files import regular
from lm_latent_eval.options import whole
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import Document, Record, checked_answer
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.values import parse


@dataclass(frozen=True)
class Score:
    """Score of one answer to a question."""

    question: str
    """Key that pairs it with the same question of another run."""
    value: float
    repeat: int = 0
    """Which of several answers to the question it is, from 0."""
    digest: str = ""
    """Of what was asked: where two runs have one, both are the same."""
    text: str = ""
    """The question, where it is known."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the question: a passage, a source."""
    is_sure: bool = True
    """Whether draws of latents cannot change it."""
    is_tied: bool = False
    """Whether rounding alone chose the answer."""


@dataclass(frozen=True)
class Scores:
    """Scores of a run in one task."""

    task: str
    metric: str
    settings: dict[str, Any]
    """Facts about the run: ``model`` at least."""
    rows: Sequence[Score]
    lower_is_better: bool = False
    finished: bool = True


Run = Record | Scores


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


Sample = dict[str, Any]
T = TypeVar("T")


def read_answers(path: Path) -> list[Answer]:
    """Read the answers in a sample log.

    Raises:
        ValueError: If a line is no sample, or its answers are no log-likelihoods; it
            names the line and the field.
    """
    found = _by_document(path, lambda sample: [*_answers(sample)])
    return [answer for answers in found.values() for answer in answers]


def read_scores(path: Path, metric: str) -> list[Score]:
    """Read what a metric gave each document, and each repeat of it.

    Raises:
        ValueError: If a line is no sample, or the metric is no number in it.
    """

    def scores(sample: Sample) -> list[Score]:
        if metric not in sample:
            there = sorted(
                name
                for name, value in sample.items()
                if type(value) in (int, float, bool) and name != "doc_id"
            )
            raise ValueError(
                f"{metric}: there is none; --metric NAME takes one of "
                f"{', '.join(there) or 'those that the task computes a document'}"
            )
        repeats = sample.get("scores_per_repeat")
        several = repeats.get(metric) if isinstance(repeats, dict) else None
        values = several if isinstance(several, list) else [sample[metric]]
        about, digest = _about(sample), sample.get("doc_hash")
        return [
            Score(
                str(sample["doc_id"]),
                number(metric, value),
                repeat,
                digest=f"lm_eval {digest}" if isinstance(digest, str) else "",
                text=about.text,
                fields=about.fields,
            )
            for repeat, value in enumerate(values)
        ]

    return [score for some in _by_document(path, scores).values() for score in some]


def read_documents(path: Path) -> dict[int, Document]:
    """Read the documents of a sample log."""
    return _by_document(path, _about)


def _by_document(path: Path, make: Callable[[Sample], T]) -> dict[int, T]:
    """Read samples of a log by document, the first filter alone; errors name a line."""
    found: dict[int, T] = {}
    first: Any = None
    for place, line in numbered_lines(regular(path)):
        try:
            sample = parse(line, infinities=True)  # other programs write metrics
            if not isinstance(sample, dict):
                raise ValueError("it is no object")
            first = sample if first is None else first
            if sample.get("filter") != first.get("filter"):
                continue
            document = sample.get("doc_id")
            if type(document) is not int:
                raise ValueError(
                    f"doc_id: expected a whole number, not {document!a:.40}"
                )
            if document in found:
                raise ValueError(f"doc_id: {document} stands twice")
            found[document] = make(sample)
        except ValueError as err:
            raise ValueError(f"{path}, line {place}: {err}") from err
    return found


def _about(sample: Sample) -> Document:
    asked = sample.get("arguments")
    requests = [*asked.values()] if isinstance(asked, dict) else asked
    first = requests[0] if isinstance(requests, list) and requests else None
    strings = [*first.values()] if isinstance(first, dict) else first
    words = [each for each in strings or () if isinstance(each, str)]
    if len(words) > 1 and len(requests or ()) > 1:  # a question, whose options differ
        words = words[:1]
    return Document("".join(words), as_fields(sample.get("doc")))


def _answers(sample: Sample) -> Iterator[Answer]:
    """Yield the answers to a document's options."""
    asked, given = sample.get("arguments"), sample.get("resps")
    if not isinstance(asked, dict) or not asked:
        raise ValueError(f"arguments: expected an object, not {asked!a:.40}")
    if not isinstance(given, list) or len(given) != len(asked):
        raise ValueError(f"resps: expected a list of {len(asked)}, not {given!a:.40}")
    accuracy = sample.get("acc")
    if accuracy is not None:
        accuracy = number("acc", accuracy)
    for option, (strings, answers) in enumerate(
        zip(asked.values(), given, strict=True)
    ):
        context, text = _strings(strings)
        log_p, greedy = _answer(answers)
        answer = Answer.exact(log_p, text, context)
        yield checked_answer(
            replace(
                answer,
                index=sample["doc_id"],
                option=option,
                words=_count(sample, "word_perplexity", answer.words),
                bytes=_count(sample, "bits_per_byte", answer.bytes),
                is_greedy=greedy,
                accuracy=accuracy,
            )
        )


def _strings(arguments: Any) -> tuple[str, str]:
    """Return a context and what continues it."""
    strings = [*arguments.values()] if isinstance(arguments, dict) else []
    if strings and not isinstance(strings[-1], str):
        raise ValueError("arguments: of generated texts, which have no likelihood")
    if not strings or not all(isinstance(each, str) for each in strings):
        raise ValueError(f"arguments: expected strings, not {arguments!a:.40}")
    return "".join(strings[:-1]), strings[-1]


def _answer(answers: Any) -> tuple[float, bool | None]:
    """Return a log-likelihood in nats, and whether the text was the most probable."""
    first = answers[0] if isinstance(answers, list) and answers else None
    given = first if isinstance(first, list) else answers
    if not isinstance(given, list) or not 1 <= len(given) <= 2:
        raise ValueError(f"resps: expected a log-likelihood, not {answers!a:.40}")
    greedy = {"True": True, "False": False, True: True, False: False}
    said = given[1] if len(given) > 1 else None
    if isinstance(said, str | bool | None) and (said is None or said in greedy):
        return number("resps", given[0]), None if said is None else greedy[said]
    raise ValueError(f"resps: expected True or False, not {said!a:.40}")


def _count(sample: Sample, metric: str, otherwise: int) -> int:
    """Return the denominator of a rate, such as the text's words."""
    term = sample.get(metric)
    if not isinstance(term, list) or len(term) != 2:
        return otherwise
    return whole(metric, term[1], 0)
