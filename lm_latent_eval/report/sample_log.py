"""Sample logs of lm-eval: the score of each text, answer or question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lm_latent_eval.files import regular
from lm_latent_eval.options import whole
from lm_latent_eval.report.units import Fields, as_fields, finite
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import checked_answer
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.values import parse

Sample = dict[str, Any]
T = TypeVar("T")


def read_answers(path: Path) -> tuple[list[Answer], Fields]:
    """Read the answers in a sample log, and the fields of its documents.

    Raises:
        ValueError: If a line is no sample, or its answers are no log-likelihoods; it
            names the line and the field.
    """
    samples = _by_document(path, lambda sample: ([*_answers(sample)], _fields(sample)))
    answers = [answer for several, _ in samples.values() for answer in several]
    return answers, {index: fields for index, (_, fields) in samples.items()}


def read_scores(path: Path, metric: str) -> list[dict[str, Any]]:
    """Read a metric's score of each document and each repeat of it, as rows of units.

    Raises:
        ValueError: If a line is no sample, or the metric is no number in it.
    """

    def scores(sample: Sample) -> list[dict[str, Any]]:
        if metric not in sample:
            names = sorted(
                name
                for name, value in sample.items()
                if type(value) in (int, float, bool) and name != "doc_id"
            )
            raise ValueError(
                f"{metric}: there is none; --metric NAME takes one of "
                f"{', '.join(names) or 'those that the task computes a document'}"
            )
        repeats = sample.get("scores_per_repeat")
        several = repeats.get(metric) if isinstance(repeats, dict) else None
        values = several if isinstance(several, list) else [sample[metric]]
        digest = sample.get("doc_hash")
        return [
            {
                "unit": str(sample["doc_id"]),
                "score": finite(metric, value),
                "repeat": repeat,
                "digest": f"lm_eval {digest}" if isinstance(digest, str) else "",
                "fields": _fields(sample),
            }
            for repeat, value in enumerate(values)
        ]

    return [row for rows in _by_document(path, scores).values() for row in rows]


def read_fields(path: Path) -> Fields:
    return _by_document(path, _fields)


def _fields(sample: Sample) -> dict[str, str]:
    return as_fields(sample.get("doc"))


def _by_document(path: Path, make: Callable[[Sample], T]) -> dict[int, T]:
    """Read samples of a log by document, the first filter alone; errors name a line."""
    documents: dict[int, T] = {}
    first: Any = None
    for number, line in numbered_lines(regular(path)):
        try:
            sample = parse(line, infinities=True)  # other programs write metrics
            if not isinstance(sample, dict):
                raise ValueError("it is no object")
            first = sample if first is None else first
            if sample.get("filter") != first.get("filter"):
                continue
            index = sample.get("doc_id")
            if type(index) is not int:
                raise ValueError(f"doc_id: expected a whole number, not {index!a:.40}")
            if index in documents:
                raise ValueError(f"doc_id: {index} stands twice")
            documents[index] = make(sample)
        except ValueError as err:
            raise ValueError(f"{path}, line {number}: {err}") from err
    return documents


def _answers(sample: Sample) -> Iterator[Answer]:
    options, given = sample.get("arguments"), sample.get("resps")
    if not isinstance(options, dict) or not options:
        raise ValueError(f"arguments: expected an object, not {options!a:.40}")
    if not isinstance(given, list) or len(given) != len(options):
        raise ValueError(f"resps: expected a list of {len(options)}, not {given!a:.40}")
    accuracy = sample.get("acc")
    for option, (arguments, answers) in enumerate(
        zip(options.values(), given, strict=True)
    ):
        strings = [*arguments.values()] if isinstance(arguments, dict) else []
        if strings and not isinstance(strings[-1], str):
            raise ValueError("arguments: of generated texts, which have no likelihood")
        if not strings or not all(isinstance(each, str) for each in strings):
            raise ValueError(f"arguments: expected strings, not {arguments!a:.40}")
        log_p, greedy = _answer(answers)
        answer = Answer.exact(log_p, strings[-1], "".join(strings[:-1]))
        yield checked_answer(
            replace(
                answer,
                index=sample["doc_id"],
                option=option,
                words=_count(sample, "word_perplexity", answer.words),
                bytes=_count(sample, "bits_per_byte", answer.bytes),
                is_greedy=greedy,
                accuracy=None if accuracy is None else finite("acc", accuracy),
            )
        )


def _answer(answers: Any) -> tuple[float, bool | None]:
    """Return a log-likelihood in nats, and whether the text was the most probable."""
    first = answers[0] if isinstance(answers, list) and answers else None
    given = first if isinstance(first, list) else answers
    if not isinstance(given, list) or not 1 <= len(given) <= 2:
        raise ValueError(f"resps: expected a log-likelihood, not {answers!a:.40}")
    log_p, greedy = (*given, None)[:2]
    values = {"True": True, "False": False, True: True, False: False, None: None}
    if not isinstance(greedy, str | bool | None) or greedy not in values:
        raise ValueError(f"resps: expected True or False, not {greedy!a:.40}")
    return finite("resps", log_p), values[greedy]


def _count(sample: Sample, metric: str, otherwise: int) -> int:
    """Return the denominator of a rate, such as the text's words."""
    term = sample.get(metric)
    if not isinstance(term, list) or len(term) != 2:
        return otherwise
    return whole(metric, term[1], 0)
