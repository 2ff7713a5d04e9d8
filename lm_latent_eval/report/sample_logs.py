"""Sample logs of lm-eval: what a model that is not ours gave each text or answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_latent_eval.file_names import regular
from lm_latent_eval.plain_json import parse
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import checked_answer
from lm_latent_eval.text.files import numbered_lines

Sample = dict[str, Any]


def read(path: Path) -> list[Answer]:
    """Read the answers in a sample log.

    Raises:
        ValueError: If a line is no sample, or its answers are no log-likelihoods; it
            names the line and the field.
    """
    found: dict[tuple[int, int], Answer] = {}
    first: Any = None
    for number, line in numbered_lines(regular(path)):
        try:
            sample = parse(line, infinities=True)  # other programs write metrics
            if not isinstance(sample, dict):
                raise ValueError("it is no object")
            first = sample if first is None else first
            if sample.get("filter") != first.get("filter"):
                continue
            for answer in _answers(sample):
                place = answer.index, answer.option
                if place in found:
                    raise ValueError(f"doc_id: {answer.index} stands twice")
                found[place] = answer
        except ValueError as err:
            raise ValueError(f"{path}, line {number}: {err}") from err
    return [*found.values()]


def _answers(sample: Sample) -> Iterator[Answer]:
    """Yield what a document's options were given."""
    asked, given = sample.get("arguments"), sample.get("resps")
    if not isinstance(asked, dict) or not asked:
        raise ValueError(f"arguments: expected an object, not {asked!a:.40}")
    if not isinstance(given, list) or len(given) != len(asked):
        raise ValueError(f"resps: expected a list of {len(asked)}, not {given!a:.40}")
    document = sample.get("doc_id")
    if type(document) is not int:
        raise ValueError(f"doc_id: expected a whole number, not {document!a:.40}")
    accuracy = sample.get("acc")
    if accuracy is not None:
        accuracy = _number("acc", accuracy)
    for option, (strings, answers) in enumerate(
        zip(asked.values(), given, strict=True)
    ):
        context, text = _strings(strings)
        log_p, greedy = _answer(answers)
        answer = Answer.exact(log_p, text, context)
        yield checked_answer(
            replace(
                answer,
                index=document,
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
        return _number("resps", given[0]), None if said is None else greedy[said]
    raise ValueError(f"resps: expected True or False, not {said!a:.40}")


def _number(field: str, value: Any) -> float:
    """Return a finite number, which lm-eval may have written as a string."""
    number = math.nan
    if isinstance(value, str | int | float):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field}: expected a number, not {value!a:.40}")
    return number


def _count(sample: Sample, metric: str, otherwise: int) -> int:
    """Return what a task divides by: the text's words, say."""
    term = sample.get(metric)
    if not isinstance(term, list) or len(term) != 2:
        return otherwise
    return int(_number(metric, term[1]))
