"""Corpus-level numbers for task YAMLs, from answers that carry their estimates.

``process_results`` gives each document's answer with its counts; one aggregation a
metric turns them into a number. Standard errors are Monte Carlo errors, by the delta
method: metrics named ``<metric>_stderr`` fill the harness's Stderr column. Answers of
models without latents are plain floats and have none.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lm_latent_eval.estimators import (
    Bound,
    Rate,
    bits_per_byte,
    certified_perplexity,
    corpus_effective_sample_size,
    corpus_perplexity,
    corpus_stderr,
    instance_perplexity,
    perplexity_per_unit,
    total_stderr,
)
from lm_latent_eval.harness.answers import ScoredFloat, digest

CONFIDENCE = 0.95


class Scored(NamedTuple):
    """A document's log-likelihood in nats, and how long it is."""

    log_likelihood: float
    words: int
    bytes: int


def score_document(text: str, log_likelihood: float) -> Scored:
    """Pair a document's answer with its words (between white space) and bytes."""
    return Scored(log_likelihood, max(len(text.split()), 1), len(text.encode()))


def process_text(doc: dict[str, Any], results: Sequence[float]) -> dict[str, Scored]:
    """Give every metric of ``METRICS`` the same document; for ``process_results``.

    Raises:
        ValueError: If the answer is about another text: lm-eval's request cache knows
            tasks by name only.
    """
    answered = getattr(results[0], "text", "")
    if answered and answered != digest(doc["text"]):
        raise ValueError(
            f"the answer is not about this text ({doc['text'][:40]!r}...): the "
            "requests come from a cache of another file; run with "
            "--cache_requests refresh"
        )
    scored = score_document(doc["text"], results[0])
    return dict.fromkeys(METRICS, scored)


# -- per word and byte ---------------------------------------------------------------


def word_rate(items: Sequence[Scored]) -> Rate:
    """Perplexity per word."""
    return perplexity_per_unit(*_totals(items), sum(i.words for i in items))


def byte_rate(items: Sequence[Scored]) -> Rate:
    """Perplexity per byte."""
    return perplexity_per_unit(*_totals(items), sum(i.bytes for i in items))


def bit_rate(items: Sequence[Scored]) -> Rate:
    """Bits per byte."""
    return bits_per_byte(*_totals(items), sum(i.bytes for i in items))


# -- importance-sampled perplexity, per predicted token ------------------------------


def token_perplexity(items: Sequence[Scored]) -> float:
    """Instance level: exp(-1/T sum_n log p-hat(x_n)), T predicted tokens."""
    return instance_perplexity(_log_likelihoods(items), _tokens(items))


def token_perplexity_stderr(items: Sequence[Scored]) -> float:
    """Monte Carlo standard error of ``token_perplexity``."""
    relative = total_stderr(_totals(items)[1]) / _tokens(items)
    return token_perplexity(items) * relative


def corpus_level_perplexity(items: Sequence[Scored]) -> float:
    """Corpus level: exp(-1/T log(1/K sum_k prod_n w_nk)).

    The same K for every document: of a run that chose K a document, the first draws of
    each as many as the least has.
    """
    log_w = _weights(items)
    if log_w is None:
        return token_perplexity(items)
    return corpus_perplexity(log_w, _tokens(items))


def corpus_level_perplexity_stderr(items: Sequence[Scored]) -> float:
    """Monte Carlo standard error of ``corpus_level_perplexity``."""
    log_w = _weights(items)
    if log_w is None:
        return 0.0
    error = corpus_stderr(log_w).item() / _tokens(items)
    return corpus_level_perplexity(items) * error


def certified(items: Sequence[Scored]) -> float:
    """What the token perplexity is at most, at 95 % confidence.

    Documents that share their draws (copies answered from a cache) pay for it. Where
    nothing is drawn (a beam, a model without latents) it is the perplexity itself.
    """
    streams = Counter(
        i.log_likelihood.stream
        for i in items
        if isinstance(i.log_likelihood, ScoredFloat)
        and i.log_likelihood.estimate.bound is Bound.STOCHASTIC_LOWER
    )
    if not streams:
        return token_perplexity(items)
    return certified_perplexity(
        _log_likelihoods(items),
        _tokens(items),
        CONFIDENCE,
        multiplicity=max(streams.values()),
    )


def median_effective_samples(items: Sequence[Scored]) -> float:
    """Median effective sample size of the documents."""
    return _over_samples(items, lambda e: e.effective_sample_size, statistics.median)


def least_effective_samples(items: Sequence[Scored]) -> float:
    """Smallest effective sample size of a document."""
    return _over_samples(items, lambda e: e.effective_sample_size, min)


def corpus_effective_samples(items: Sequence[Scored]) -> float:
    """Effective sample size of the corpus-level weights; 1 is as good as one draw."""
    log_w = _weights(items)
    return math.nan if log_w is None else corpus_effective_sample_size(log_w).item()


def share_unreliable(items: Sequence[Scored]) -> float:
    """Share of documents whose Pareto k is above 0.7: their error is not known."""
    return _over_samples(
        items,
        lambda e: None if e.pareto_k is None else float(e.pareto_k > 0.7),
        statistics.fmean,
    )


METRICS: dict[str, Callable[[Sequence[Scored]], float]] = {
    "word_perplexity": lambda items: word_rate(items).value,
    "word_perplexity_stderr": lambda items: word_rate(items).stderr,
    "byte_perplexity": lambda items: byte_rate(items).value,
    "byte_perplexity_stderr": lambda items: byte_rate(items).stderr,
    "bits_per_byte": lambda items: bit_rate(items).value,
    "bits_per_byte_stderr": lambda items: bit_rate(items).stderr,
    "token_perplexity": token_perplexity,
    "token_perplexity_stderr": token_perplexity_stderr,
    "corpus_token_perplexity": corpus_level_perplexity,
    "corpus_token_perplexity_stderr": corpus_level_perplexity_stderr,
    "certified_token_perplexity": certified,
    "effective_samples_median": median_effective_samples,
    "effective_samples_minimum": least_effective_samples,
    "effective_samples_corpus": corpus_effective_samples,
    "share_pareto_k_above_0.7": share_unreliable,
}
"""Name in a task's ``metric_list`` -> aggregation."""


def _log_likelihoods(items: Sequence[Scored]) -> torch.Tensor:
    return torch.tensor([i.log_likelihood for i in items], dtype=torch.float64)


def _totals(items: Sequence[Scored]) -> tuple[torch.Tensor, torch.Tensor]:
    errors = [
        i.log_likelihood.estimate.stderr
        if isinstance(i.log_likelihood, ScoredFloat)
        else 0.0
        for i in items
    ]
    return _log_likelihoods(items), torch.tensor(errors, dtype=torch.float64)


def _tokens(items: Sequence[Scored]) -> int:
    """Predicted tokens; words where a model does not say."""
    return sum(
        i.log_likelihood.estimate.num_tokens
        if isinstance(i.log_likelihood, ScoredFloat)
        else i.words
        for i in items
    )


def _weights(items: Sequence[Scored]) -> torch.Tensor | None:
    """Log-weights, (N, K); None if a document has none (no latents, or a beam)."""
    rows = [
        i.log_likelihood.estimate.log_weights
        if isinstance(i.log_likelihood, ScoredFloat)
        else ()
        for i in items
    ]
    least = min(map(len, rows), default=0)
    if least == 0:
        return None
    return torch.tensor([row[:least] for row in rows], dtype=torch.float64)


def _over_samples(
    items: Sequence[Scored],
    read: Callable[[Any], float | None],
    combine: Callable[[list[float]], float],
) -> float:
    values = [
        value
        for i in items
        if isinstance(i.log_likelihood, ScoredFloat)
        and (value := read(i.log_likelihood.estimate)) is not None
    ]
    return combine(values) if values else math.nan
