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
from lm_latent_eval.harness.answers import recorded, score_of
from lm_latent_eval.harness.tasks import announce


def halves(texts: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give each document's first half, by words between white space, and the whole.

    Example:
        >>> [part["text"] for part in halves(["a b  c", "d"])]
        ['a', 'a b  c']
    """
    for text in texts:
        words = text.split()
        if len(words) < 2:
            continue  # nothing is given
        first = text
        for _ in range(len(words) - len(words) // 2):
            first = first.rstrip().rpartition(words.pop())[0]
        yield {"text": first.rstrip(), "part": "given"}
        yield {"text": text, "part": "whole"}


class Half(tuple[Any, ...]):
    """What a text adds, as JSON for ``--log_samples``: its part, nats and tokens."""

    estimate: Estimate

    @classmethod
    def of(cls, part: str, estimate: Estimate) -> Half:
        """Take a text's part."""
        half = cls([part, estimate.log_evidence, estimate.num_tokens])
        half.estimate = estimate
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
    score = score_of(results[0])
    estimate = recorded(score, "latent_document_completion").estimate
    return {name: Half.of(doc["part"], estimate) for name in COMPLETION_METRICS}


def completed_tokens(items: Sequence[Half]) -> int:
    """Count the tokens of the second halves."""
    return sum(item.sign * item.estimate.num_tokens for item in items)


def completion_perplexity(items: Sequence[Half]) -> float | str:
    """Perplexity per token of the second halves."""
    if not (tokens := completed_tokens(items)):
        return "N/A"
    nats = math.fsum(item.sign * item.estimate.log_evidence for item in items)
    return math.exp(-nats / tokens)


def completion_perplexity_draws_error(items: Sequence[Half]) -> float | str:
    """Error of it from the draws, as they tell it."""
    value, tokens = completion_perplexity(items), completed_tokens(items)
    error = math.hypot(*(item.estimate.draws_stderr for item in items))
    if isinstance(value, str) or math.isinf(error):
        return "N/A"
    return value * error / tokens


def completion_perplexity_stderr(items: Sequence[Half]) -> str:
    """None: that of a quotient whose draws nothing has checked is not known."""
    return "N/A"


COMPLETION_METRICS: dict[str, Callable[[Sequence[Half]], float | str]] = {
    function.__name__: function
    for function in (
        completion_perplexity,
        completion_perplexity_stderr,
        completion_perplexity_draws_error,
        completed_tokens,
    )
}
"""Name in a task's ``metric_list`` -> aggregation."""

announce(COMPLETION_METRICS)
