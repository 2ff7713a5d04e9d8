r"""Document completion: the second half of a document given the first.

.. math:: \log\hat p(x_2 \mid x_1) = \log\hat p(x_1 x_2) - \log\hat p(x_1)

Both are whole texts, from draws of their own; a task asks for one after the other. A
quotient of two estimates bounds nothing.

Source: Wallach et al. (2009), section 2, "document completion".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.harness.answers import MissedFloat, recorded, score_of
from lm_latent_eval.harness.metrics import of_some
from lm_latent_eval.harness.tasks import announce


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


class Half(tuple[Any, ...]):
    """What a text adds, as JSON for ``--log_samples``: its part, nats and tokens.

    Of a text that has no number, its part alone.
    """

    document: int
    estimate: Estimate | None

    @classmethod
    def of(cls, doc: dict[str, Any], estimate: Estimate | None) -> Half:
        """Take a text's part."""
        known = () if estimate is None else (estimate.log_evidence, estimate.num_tokens)
        half = cls([doc["part"], *known])
        half.document, half.estimate = doc["document"], estimate
        return half

    @property
    def sign(self) -> int:
        """What it is multiplied by: what is given is taken off."""
        return 1 if self[0] == "whole" else -1


def process_half(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, Half]:
    """Give every metric the same text; for ``process_results``.

    Raises:
        ValueError: If the model is none of ours: nothing says how many tokens it
            predicted.
    """
    score, estimate = score_of(results[0]), None
    if not isinstance(score, MissedFloat):
        estimate = recorded(score, "latent_document_completion").estimate
    return {name: Half.of(doc, estimate) for name in COMPLETION_METRICS}


Terms = list[tuple[int, Estimate]]
"""Signs and estimates of halves."""


def _tokens(terms: Terms) -> int:
    """Count the tokens of the second halves."""
    return sum(sign * estimate.num_tokens for sign, estimate in terms)


def _perplexity(terms: Terms) -> float | str:
    """Perplexity per token of the second halves."""
    if not (tokens := _tokens(terms)):
        return "N/A"
    nats = math.fsum(sign * estimate.log_evidence for sign, estimate in terms)
    return math.exp(-nats / tokens)


def _draws_error(terms: Terms) -> float | str:
    """Error of it from the draws, as they tell it."""
    value = _perplexity(terms)
    error = math.hypot(*(estimate.draws_stderr for _, estimate in terms))
    if isinstance(value, str) or math.isinf(error):
        return "N/A"
    return value * error / _tokens(terms)


def _stderr(terms: Terms) -> str:
    """None: that of a quotient whose draws nothing has checked is not known."""
    return "N/A"


def _of_documents(
    metric: Callable[[Terms], float | str],
) -> Callable[[Sequence[Half]], float | str]:
    """Return an aggregation over the documents whose halves both have a number."""

    def aggregated(items: Sequence[Half]) -> float | str:
        documents: dict[int, Terms] = {}
        for item in items:
            terms = documents.setdefault(item.document, [])
            if item.estimate is not None:
                terms.append((item.sign, item.estimate))
        whole = [terms for terms in documents.values() if len(terms) == 2]
        value = metric([term for terms in whole for term in terms])
        return of_some(value, len(whole), len(documents), "documents")

    return aggregated


COMPLETION_METRICS: dict[str, Callable[[Sequence[Half]], float | str]] = {
    name: _of_documents(metric)
    for name, metric in {
        "completion_perplexity": _perplexity,
        "completion_perplexity_stderr": _stderr,
        "completion_perplexity_draws_error": _draws_error,
        "completed_tokens": _tokens,
    }.items()
}
"""Name in a task's ``metric_list`` -> aggregation."""

announce(COMPLETION_METRICS)
