"""Answers that are numbers to the harness and carry their estimate to our metrics."""

from __future__ import annotations

import hashlib
from typing import Any

from lm_latent_eval.estimators import Estimate


class ScoredFloat(float):
    """A log-likelihood in nats with the estimate that it is and the draws it used.

    lm-eval treats it as a float; it survives its evaluator, its cache and its workers.
    """

    estimate: Estimate
    stream: str
    """Which random numbers were used: equal streams mean shared draws."""

    text: str
    """Digest of the scored text, so that an answer is not taken for another's."""

    def __new__(cls, estimate: Estimate, stream: str, text: str = "") -> ScoredFloat:
        """Wrap an estimate."""
        value = super().__new__(cls, estimate.log_evidence)
        value.estimate = estimate
        value.stream = stream
        value.text = text
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the estimate."""
        return ScoredFloat, (self.estimate, self.stream, self.text)


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
