"""Importance-sampled perplexity as a metric function, with its diagnostics."""

from __future__ import annotations

import logging
import math
import statistics
from typing import Any

import torch

from lm_latent_eval.estimators import CorpusEstimate
from lm_latent_eval.estimators.diagnostics import RELIABLE_PARETO_K
from lm_latent_eval.metric_functions.columns import (
    complete,
    finite,
    known,
    present,
    whole_counts,
)

logger = logging.getLogger(__name__)

COLUMNS = ("log_weights", "num_tokens")
_ERRORS = 5
"""Number of the draws' errors from which on an estimate above 1 is no chance."""
_ROUNDING = 1e-6
"""Nats."""


def importance_perplexity(**inputs: Any) -> dict[str, Any]:
    """Compute what the ``evaluate`` module of that name does; see its card.

    Args:
        inputs: Those of the module's ``compute``.

    Example:
        >>> from math import log
        >>> result = importance_perplexity(
        ...     log_weights=[[log(0.2), log(0.3)], [log(0.1), log(0.9)]],
        ...     num_tokens=[1, 2],
        ... )
        >>> round(result["instance_level_perplexity"], 4)  # (0.25 * 0.5) ** (-1 / 3)
        2.0
    """
    columns, facts = prepare(inputs)
    return {**compute(**columns), **facts}


def prepare(
    inputs: dict[str, Any], *, stored: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of ``compute``, and facts; see ``metric_functions``."""
    inputs = known(inputs, _of_filters, compute, CorpusEstimate.of)
    if "log_increments" in inputs:
        inputs = _of_filters(**inputs)
    return complete(inputs, COLUMNS, stored=stored), {}


def compute(
    log_weights: Any, num_tokens: Any, level: Any = "instance", **settings: Any
) -> dict[str, Any]:
    """Compute perplexities from log-weights."""
    if level not in ("instance", "token"):
        raise ValueError(f"level must be instance or token; got {level!r}")
    rows = present(log_weights, "log_weights")
    num_tokens = whole_counts(num_tokens, "num_tokens")
    corpus = CorpusEstimate.of(
        [torch.tensor(row, dtype=torch.float64) for row in rows],
        torch.tensor(num_tokens),
        **settings,
    )
    estimates = corpus.estimates
    _check_probabilities(estimates, corpus.confidence)
    sizes: list[Any] = [estimate.effective_sample_size for estimate in estimates]
    return {
        **_named(f"{level}_level_perplexity", corpus.instance),
        **(_corpus_level(corpus) if level == "instance" else {}),
        "certified_perplexity": corpus.certified,
        "confidence": corpus.confidence,
        "bound": "stochastic upper",
        "effective_sample_size_median": statistics.median(sizes),
        "effective_sample_size_minimum": min(sizes),
        "share_pareto_k_above_0.7": _share_unreliable(estimates),
        "effective_sample_sizes": sizes,
        "pareto_ks": [finite(e.pareto_k) for e in estimates],
        "draws_stderrs": [finite(e.draws_stderr) for e in estimates],
        "curve": dict(corpus.curve),
        "log_likelihood": math.fsum(e.log_evidence for e in estimates),
        "num_tokens": sum(num_tokens),
        "num_texts": len(estimates),
    }


def _share_unreliable(estimates: Any) -> float | None:
    """Return the share of texts with too heavy a tail; None where draws are few."""
    tails = [e.pareto_k for e in estimates if e.pareto_k is not None]
    return statistics.fmean(k > RELIABLE_PARETO_K for k in tails) if tails else None


def _check_probabilities(estimates: Any, confidence: Any) -> None:
    """Refuse estimates above 1; warn where chance may explain one.

    An unbiased estimate of a p of at most 1 is above 1 by chance alone: by Markov's
    inequality, above 1 / (1 - confidence) with a probability of at most 1 - confidence.
    """
    above = [n for n, e in enumerate(estimates) if e.log_evidence > _ROUNDING]
    for n in above:
        estimate = estimates[n]
        far = min(_ERRORS * estimate.draws_stderr, -math.log1p(-confidence))
        if estimate.log_evidence > far + _ROUNDING:
            raise ValueError(
                f"input {n}: the log-weights estimate log p = "
                f"{estimate.log_evidence:.3g} nats, and no text has a probability "
                "above 1: log-weights are log p(x, z) - log q(z | x). Were the signs "
                "turned, or log p left out? Densities of real-valued data have no "
                "perplexity"
            )
    if above:
        logger.warning(
            "%d inputs, the first of them number %d, are estimated to have a "
            "probability above 1, within the errors of their draws: more draws would "
            "tell",
            len(above),
            above[0],
        )


def _of_filters(log_increments: Any, **inputs: Any) -> Any:
    """Turn filters' increments into their log-weights and the tokens they read.

    A filter's sum, the log of the product of its mean weights at every token, is to the
    token level what a draw is to the instance level: each is unbiased for p(x) (Del
    Moral, 2004, chapter 7).
    """
    if given := {"log_weights", "num_tokens"} & set(inputs):
        raise ValueError(
            f"log_increments replace {' and '.join(sorted(given))}: give one or other"
        )
    for index, filters in enumerate(present(log_increments, "log_increments")):
        lengths = {len(increments) for increments in filters}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"log_increments[{index}]: every filter of a text reads all its tokens"
                ", one at least"
            )
    texts = [torch.tensor(text, dtype=torch.float64) for text in log_increments]
    return {
        **inputs,
        "log_weights": [text.sum(-1).tolist() for text in texts],
        "num_tokens": [text.shape[-1] for text in texts],
        "level": "token",
    }


def _corpus_level(corpus: Any) -> Any:
    return {
        **_named("corpus_level_perplexity", corpus.corpus),
        "corpus_effective_sample_size": corpus.corpus_effective_sample_size,
        "corpus_num_samples": corpus.corpus_num_samples,
    }


def _named(name: Any, rate: Any) -> dict[str, Any]:
    if rate is None:
        return {name: None, f"{name}_draws_stderr": None}
    return {name: rate.value, f"{name}_draws_stderr": finite(rate.draws_stderr)}
