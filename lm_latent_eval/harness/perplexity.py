r"""Tasks of perplexity: each document's answer, paired with its counts.

``tasks/perplexity`` names them; their metrics are those of ``scoring.metrics``. Of
document completion, the second half of a document given the first,

.. math:: \log\hat p(x_2 \mid x_1) = \log\hat p(x_1 x_2) - \log\hat p(x_1)

both are whole texts, from draws of their own; a task asks for one after the other. A
quotient of two estimates bounds nothing.

Source: Wallach et al. (2009), section 2, "document completion".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch

from lm_latent_eval.estimators import CorpusRate
from lm_latent_eval.harness.answers import (
    MissedFloat,
    ScoredFloat,
    recorded,
    score_of,
)
from lm_latent_eval.harness.running import RATES
from lm_latent_eval.harness.tasks import (
    Aggregation,
    WholeTextTask,
    register_metrics,
)
from lm_latent_eval.ledger.settings import plain
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import METRICS, UNKNOWN
from lm_latent_eval.text.files import digest

DIGITS = 2.0**53
"""Largest whole number that float64 tells from the next one."""


class Term(tuple[Any, ...]):
    """A text's part of a metric, as JSON for ``--log_samples``.

    Of a rate, as in the tasks of lm-eval, two numbers of which the corpus sums both:
    nats and their denominator. Of a half of a document which one it is, with nats and
    tokens. A list would be several results of one document to lm-eval 0.5.
    """

    answer: Answer | None = None
    """Answer; None of a text that has no number."""
    document: int
    """Number of a half's document."""

    @classmethod
    def of(cls, metric: str, answer: Answer) -> Term:
        """Take a document's part in a metric."""
        unit = METRICS[metric].unit
        nats = plain(answer.estimate.log_evidence)
        term = cls((nats, getattr(answer, unit)) if unit else ())
        term.answer = answer
        return term


Terms: TypeAlias = dict[str, Term]
"""Metric -> a document's term."""


@dataclass(frozen=True)
class OfTexts:
    """Aggregation of a corpus's terms to a metric, which says how many it leaves out.

    lm-eval prints every digit before the point, of which a large number has few that
    mean anything: such a number is written as a power of ten.
    """

    name: str

    def __call__(self, terms: Sequence[Term]) -> float | str:
        """Compute the metric of the texts that have a number."""
        answers = [term.answer for term in terms if term.answer is not None]
        is_error = self.name.endswith("_stderr")  # in its place is a float or "N/A"
        if len(answers) == len(terms):
            value = METRICS[self.name](answers)
            if not isinstance(value, float) or value <= DIGITS:
                return value
            return UNKNOWN if is_error else f"{value:.4e}"
        if is_error or not answers:
            return UNKNOWN
        value = METRICS[self.name](answers)
        return of_some(value, len(answers), len(terms), "texts")


def of_some(value: float | str, count: int, of: int, what: str) -> float | str:
    """Add to a number how many documents it covers, if not all.

    Example:
        >>> of_some(2.5, 3, 3, "texts"), of_some(2.5, 2, 3, "texts")
        (2.5, '2.5000 (2 of 3 texts)')
    """
    if count == of or value == UNKNOWN:
        return value
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"{shown} ({count} of {of} {what})"


class PerplexityTask(WholeTextTask):
    """Whole texts by metrics of a corpus: those of a summary, or those of its file."""

    table: ClassVar[Mapping[str, Aggregation]] = {n: OfTexts(n) for n in METRICS}
    listed: ClassVar[Sequence[str]] = [n for n, m in METRICS.items() if m.in_summary]
    better: ClassVar = {n for n, m in METRICS.items() if m.higher_is_better}

    @classmethod
    def terms(cls, doc: dict[str, Any], results: Sequence[Any]) -> Terms:
        """Return a document's terms of every metric that its answer has.

        Raises:
            ValueError: If the answer is about another text: lm-eval's request cache
                knows tasks by name only.
        """
        text, score = doc["text"], score_of(results[0])
        if isinstance(score, MissedFloat):
            return {name: Term() for name in METRICS}
        if not isinstance(score, ScoredFloat):
            # Nothing says how many tokens a plain float is of, nor which bound it is.
            exact = _terms(Answer.exact(score, text))
            return {n: term for n, term in exact.items() if n.startswith((*RATES,))}
        if score.answer.text != digest(text):
            raise ValueError(
                f"the answer is not about this text ({text[:40]!r}...): the requests "
                "come from a cache of another file; run with --cache_requests refresh"
            )
        return _terms(score.answer)

    def process_results(
        self, doc: dict[str, Any], results: Sequence[Any]
    ) -> dict[str, Term]:
        """Give the task's metrics the same document."""
        terms = self.terms(doc, results)
        return {
            name: term for name, term in terms.items() if name in self.aggregation()
        }


def _terms(answer: Answer) -> Terms:
    return {name: Term.of(name, answer) for name in METRICS}


class FullPerplexityTask(PerplexityTask):
    """Whole texts by every metric."""

    listed: ClassVar = [*METRICS]


class KnownWordsTask(PerplexityTask):
    """Whole texts by metrics per token alone, of models that leave unknown words out.

    Rates per word and byte mean nothing there.
    """

    table: ClassVar = {n: OfTexts(n) for n in METRICS if not n.startswith((*RATES,))}

    @classmethod
    def terms(cls, doc: dict[str, Any], results: Sequence[Any]) -> Terms:
        """Return a document's terms.

        Raises:
            ValueError: If the model is none of ours.
        """
        score = score_of(results[0])
        if not isinstance(score, MissedFloat):
            recorded(score, "latent_topic_perplexity")
        return super().terms(doc, results)


# -- document completion --------------------------------------------------------------


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


Signed: TypeAlias = list[tuple[int, Answer]]
"""Signs and answers of halves: log p of what is given is subtracted."""


def _tokens(halves: Signed) -> int:
    return sum(sign * answer.tokens for sign, answer in halves)


def _perplexity(halves: Signed) -> float | str:
    if not (tokens := _tokens(halves)):
        return UNKNOWN
    nats = math.fsum(sign * answer.estimate.log_evidence for sign, answer in halves)
    return math.exp(-nats / tokens)


def _draws_error(halves: Signed) -> float | str:
    """Return the draws' error of the perplexity; a difference errs as a sum does."""
    value = _perplexity(halves)
    if isinstance(value, str):
        return value
    answers = [answer for _, answer in halves]
    rate = CorpusRate.nats(
        [answer.estimate for answer in answers],
        torch.ones(len(answers), dtype=torch.long),
        [answer.stream for answer in answers],
    )
    error = value * rate.draws_stderr * len(answers) / _tokens(halves)
    return UNKNOWN if math.isinf(error) else error


COMPLETION: dict[str, Callable[[Signed], float | str]] = {
    "completion_perplexity": _perplexity,
    "completion_perplexity_draws_error": _draws_error,
    "completed_tokens": _tokens,
}
"""Metrics of second halves, per token."""


@dataclass(frozen=True)
class OfHalves:
    """Aggregation over the documents whose halves both have a number."""

    name: str

    def __call__(self, terms: Sequence[Term]) -> float | str:
        documents: dict[int, Signed] = {}
        for term in terms:
            parts = documents.setdefault(term.document, [])
            if term.answer is not None:
                parts.append((1 if term[0] == "whole" else -1, term.answer))
        complete = [parts for parts in documents.values() if len(parts) == 2]
        value = COMPLETION[self.name]([part for parts in complete for part in parts])
        return of_some(value, len(complete), len(documents), "documents")


class CompletionTask(PerplexityTask):
    """Second halves of documents given the first."""

    table: ClassVar = {name: OfHalves(name) for name in COMPLETION}
    listed: ClassVar = [*COMPLETION]
    better: ClassVar = {"completed_tokens"}

    @classmethod
    def terms(cls, doc: dict[str, Any], results: Sequence[Any]) -> Terms:
        """Give every metric the same half of a document.

        Raises:
            ValueError: If the model is none of ours: nothing says how many tokens it
                predicted.
        """
        score, term = score_of(results[0]), Term([doc["part"]])
        if not isinstance(score, MissedFloat):
            answer = recorded(score, "latent_document_completion")
            estimate = answer.estimate
            nats = plain(estimate.log_evidence)
            term = Term([doc["part"], nats, estimate.num_tokens])
            term.answer = answer
        term.document = doc["document"]
        return dict.fromkeys(cls.table, term)


register_metrics([*METRICS, *COMPLETION])
