"""What task YAMLs take from here: each document's answer, paired with its counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_latent_eval.harness.answers import ScoredFloat
from lm_latent_eval.scoring.metrics import METRICS, Scored
from lm_latent_eval.text.digests import digest


def process_text(doc: dict[str, Any], results: Sequence[float]) -> dict[str, Scored]:
    """Give every metric of ``METRICS`` the same document; for ``process_results``.

    Answers of models that are not ours are plain floats, and taken to be exact.

    Raises:
        ValueError: If the answer is about another text: lm-eval's request cache knows
            tasks by name only.
    """
    text, answer = doc["text"], results[0]
    if not isinstance(answer, ScoredFloat):
        return dict.fromkeys(METRICS, Scored.exact(text, answer))
    if answer.text and answer.text != digest(text):
        raise ValueError(
            f"the answer is not about this text ({text[:40]!r}...): the requests come "
            "from a cache of another file; run with --cache_requests refresh"
        )
    return dict.fromkeys(METRICS, Scored.of(text, answer.answer))


__all__ = ["METRICS", "process_text"]
