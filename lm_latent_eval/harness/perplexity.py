r"""Metrics of the perplexity tasks: each document's answer, paired with its counts.

``tasks/perplexity`` names them. Of document completion, the second half of a document
given the first,

.. math:: \log\hat p(x_2 \mid x_1) = \log\hat p(x_1 x_2) - \log\hat p(x_1)

both are whole texts, from draws of their own; a task asks for one after the other. A
quotient of two estimates bounds nothing.

Source: Wallach et al. (2009), section 2, "document completion".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lm_latent_eval.estimators import CorpusRate
from lm_latent_eval.harness.answers import (
    MissedFloat,
    ScoredFloat,
    recorded,
    score_of,
)
from lm_latent_eval.harness.running import RATES
from lm_latent_eval.harness.tasks import announce
from lm_latent_eval.ledger.settings import plain
from lm_latent_eval.scoring import metrics
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.text.files import digest

UNITS = RATES | {
    "token_perplexity": "tokens",
    "certified_token_perplexity": "tokens",
}
"""Denominators of rates."""


class Term(tuple[Any, ...]):
    """A text's part of a metric, as JSON for ``--log_samples``.

    Of a rate, as in the tasks of lm-eval, two numbers of which the corpus sums both:
    nats and what they are divided by. Of a half of a document which one it is, with
    nats and tokens. A list would be several results of one document to lm-eval 0.5.
    """

    answer: Answer | None = None
    """None of a text that has no number."""
    document: int
    """Of a half."""

    @classmethod
    def of(cls, metric: str, answer: Answer) -> Term:
        """Take a document's part in a metric."""
        unit = UNITS.get(metric.removesuffix("_stderr"))
        nats = plain(answer.estimate.log_evidence)
        term = cls((nats, getattr(answer, unit)) if unit else ())
        term.answer = answer
        return term


SUMMARY = (
    *("token_perplexity", "token_perplexity_stderr"),
    *("token_perplexity_monte_carlo_error", "certified_token_perplexity"),
    *("bits_per_byte", "bits_per_byte_stderr"),
    *("corpus_token_perplexity", "corpus_token_perplexity_stderr"),
)
"""Metrics of most tasks: five rows of lm-eval's table."""


def process_text(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, Term]:
    """Give the metrics of ``SUMMARY`` the same document; for ``process_results``.

    Raises:
        ValueError: As ``process_every_metric`` does.
    """
    terms = process_every_metric(doc, results)
    return {name: term for name, term in terms.items() if name in SUMMARY}


def process_every_metric(
    doc: dict[str, Any], results: Sequence[Any]
) -> dict[str, Term]:
    """Give every metric of ``METRICS`` the same document; for ``process_results``.

    Answers of models that are not ours are plain floats: nothing says how many tokens
    they are of, nor what bound they are. They have rates per word and byte alone.

    Raises:
        ValueError: If the answer is about another text: lm-eval's request cache knows
            tasks by name only.
    """
    text, answer = doc["text"], score_of(results[0])
    if isinstance(answer, MissedFloat):
        return {name: Term() for name in METRICS}
    if not isinstance(answer, ScoredFloat):
        return _of_strings(_terms(Answer.exact(answer, text)), True)
    if answer.answer.text != digest(text):
        raise ValueError(
            f"the answer is not about this text ({text[:40]!r}...): the requests come "
            "from a cache of another file; run with --cache_requests refresh"
        )
    return _terms(answer.answer)


def process_known_words(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, Term]:
    """Give the metrics per token alone the same document; for ``process_results``.

    Of a model that leaves unknown words out, rates per word and byte mean nothing.

    Raises:
        ValueError: If the model is none of ours, or the answer is about another text.
    """
    if not isinstance(score_of(results[0]), MissedFloat):
        recorded(score_of(results[0]), "latent_topic_perplexity")
    return _of_strings(process_text(doc, results), False)


def _of_strings(terms: dict[str, Term], wanted: bool) -> dict[str, Term]:
    """Keep the rates per word and byte, or the others."""
    return {n: t for n, t in terms.items() if n.startswith((*RATES,)) is wanted}


def _terms(answer: Answer) -> dict[str, Term]:
    return {name: Term.of(name, answer) for name in METRICS}


def _of_terms(
    name: str, metric: metrics.Metric
) -> Callable[[Sequence[Term]], float | str]:
    """Return an aggregation that reports texts left out.

    lm-eval prints every digit before the point, of which a large number has few that
    mean anything: such a one is written as a power of ten.
    """

    def aggregated(terms: Sequence[Term]) -> float | str:
        answers = [term.answer for term in terms if term.answer is not None]
        if len(answers) == len(terms):
            value = metric(answers)
            if not isinstance(value, float) or value <= DIGITS:
                return value
            # Where an error belongs, lm-eval prints a float or "N/A".
            is_error = name.endswith("_stderr")
            return metrics.UNKNOWN if is_error else f"{value:.4e}"
        if name.endswith("_stderr") or not answers:
            return metrics.UNKNOWN
        return of_some(metric(answers), len(answers), len(terms), "texts")

    return aggregated


def of_some(value: float | str, count: int, of: int, what: str) -> float | str:
    """Add to a number how many documents it covers, if not all.

    Example:
        >>> of_some(2.5, 3, 3, "texts"), of_some(2.5, 2, 3, "texts")
        (2.5, '2.5000 (2 of 3 texts)')
    """
    if count == of or value == metrics.UNKNOWN:
        return value
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"{shown} ({count} of {of} {what})"


DIGITS = 2.0**53
"""Largest whole number that float64 tells from the next one."""
METRICS = {name: _of_terms(name, metric) for name, metric in metrics.METRICS.items()}
"""Name in a task's ``metric_list`` -> aggregation."""

announce(METRICS)


def halves(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give each document's first half, by words between white space, and the whole.

    Example:
        >>> [(part["document"], part["text"]) for part in halves(["a b  c", "d"])]
        [(0, 'a'), (0, 'a b  c')]
    """
    for document, text in enumerate(texts):
        words = text.split()
        if len(words) < 2:
            continue  # nothing is given
        first = text
        for _ in range(len(words) - len(words) // 2):
            first = first.rstrip().rpartition(words.pop())[0]
        yield {"document": document, "text": first.rstrip(), "part": "given"}
        yield {"document": document, "text": text, "part": "whole"}


def process_half(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, Term]:
    """Give every metric the same text; for ``process_results``.

    Raises:
        ValueError: If the model is none of ours: nothing says how many tokens it
            predicted.
    """
    score, term = score_of(results[0]), Term([doc["part"]])
    if not isinstance(score, MissedFloat):
        answer = recorded(score, "latent_document_completion")
        estimate = answer.estimate
        term = Term([doc["part"], plain(estimate.log_evidence), estimate.num_tokens])
        term.answer = answer
    term.document = doc["document"]
    return dict.fromkeys(COMPLETION_METRICS, term)


Terms = list[tuple[int, Answer]]
"""Signs and answers of halves."""


def _tokens(terms: Terms) -> int:
    """Count the tokens of the second halves."""
    return sum(sign * answer.tokens for sign, answer in terms)


def _perplexity(terms: Terms) -> float | str:
    """Perplexity per token of the second halves."""
    if not (tokens := _tokens(terms)):
        return "N/A"
    nats = math.fsum(sign * answer.estimate.log_evidence for sign, answer in terms)
    return math.exp(-nats / tokens)


def _draws_error(terms: Terms) -> float | str:
    """Error of that perplexity by the draws; a difference has that of a sum."""
    value = _perplexity(terms)
    if isinstance(value, str):
        return value
    answers = [answer for _, answer in terms]
    rate = CorpusRate.nats(
        [answer.estimate for answer in answers],
        torch.ones(len(answers), dtype=torch.long),
        [answer.stream for answer in answers],
    )
    error = value * rate.draws_stderr * len(answers) / _tokens(terms)
    return "N/A" if math.isinf(error) else error


def _of_documents(
    metric: Callable[[Terms], float | str],
) -> Callable[[Sequence[Term]], float | str]:
    """Return an aggregation over the documents whose halves both have a number."""

    def aggregated(items: Sequence[Term]) -> float | str:
        documents: dict[int, Terms] = {}
        for item in items:
            terms = documents.setdefault(item.document, [])
            if item.answer is not None:  # log p of what is given is subtracted
                sign = 1 if item[0] == "whole" else -1
                terms.append((sign, item.answer))
        whole = [terms for terms in documents.values() if len(terms) == 2]
        value = metric([term for terms in whole for term in terms])
        return of_some(value, len(whole), len(documents), "documents")

    return aggregated


COMPLETION_METRICS: dict[str, Callable[[Sequence[Term]], float | str]] = {
    name: _of_documents(metric)
    for name, metric in {
        "completion_perplexity": _perplexity,
        "completion_perplexity_draws_error": _draws_error,
        "completed_tokens": _tokens,
    }.items()
}
"""Name in a task's ``metric_list`` -> aggregation."""

announce(COMPLETION_METRICS)
