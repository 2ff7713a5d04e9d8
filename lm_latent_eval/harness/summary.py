"""Summary of a run for lm-eval's results: counts, bounds and diagnostics of draws."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.estimators.choices import is_undecided, tied
from lm_latent_eval.estimators.diagnostics import RELIABLE_PARETO_K
from lm_latent_eval.scoring.answer import Answer


def summary_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return counts, bounds, effective sample sizes and Pareto k, as JSON."""
    if not answers:
        return {"requests": 0, "note": "every answer came from a cache"}
    estimates = [answer.estimate for answer in answers]
    unspelled = sum(answer.unspelled for answer in answers)
    respaced = sum(answer.respaced for answer in answers)
    left_out = sum(answer.left_out for answer in answers)
    sizes = [
        e.effective_sample_size
        for e in estimates
        if e.effective_sample_size is not None
    ]
    shapes = [e.pareto_k for e in estimates if e.pareto_k is not None]
    held = [e.num_samples for e in estimates]
    summary: dict[str, Any] = {
        "requests": len(estimates),
        "sentences": sum(answer.sentences for answer in answers),
        "predicted_tokens": sum(e.num_tokens for e in estimates),
        "bound_of_log_likelihood": dict(Counter(str(e.bound) for e in estimates)),
        "histories_per_request": [min(held), max(held)],
        "bytes_are_scored": not (unspelled or respaced or left_out),
        "unknown_words_not_spelled": unspelled,
        "gaps_of_white_space_not_charged": respaced,
        "unknown_words_left_out": left_out,
    }
    if sizes:
        summary["effective_sample_size_median"] = statistics.median(sizes)
        summary["effective_sample_size_minimum"] = min(sizes)
    if shapes:
        bad = sum(k > RELIABLE_PARETO_K for k in shapes)
        summary["share_of_pareto_k_above_0.7"] = bad / len(shapes)
    if with_options := _questions(answers):
        summary["questions"] = len(with_options)
        summary["questions_tied"] = sum(map(_is_tied, with_options))
        replicates = [
            [o.estimate.replicates for o in options] for options in with_options
        ]
        if any(any(rows) for rows in replicates):
            unsure = sum(not all(rows) or is_undecided(rows) for rows in replicates)
            summary["questions_within_monte_carlo_error"] = unsure
    if summed := [a for a in answers if a.canonical is not None]:
        summary["tokenizations"] = _tokenizations(summed)
    return summary


def _questions(answers: Sequence[Answer]) -> list[list[Answer]]:
    """Collect the options of each question, of those that have several."""
    questions = defaultdict(list)
    for answer in answers:
        if answer.is_greedy is not None and answer.stream:
            questions[answer.stream].append(answer)
    return [options for options in questions.values() if len(options) > 1]


def _is_tied(options: Sequence[Answer]) -> bool:
    """Whether a question's best options are told apart by rounding alone."""
    scores = [option.estimate.log_evidence for option in options]
    return len(tied(scores, [option.tokens for option in options])) > 1


def _tokenizations(answers: list[Answer]) -> dict[str, Any]:
    """Compare strings with their canonical tokens: nats, and per cent of the latter."""
    canonical = math.fsum(answer.canonical or 0.0 for answer in answers)
    estimate = Estimate.product([answer.estimate for answer in answers])
    gaps = [a.estimate.log_evidence - (a.canonical or 0.0) for a in answers]
    gap = math.fsum(gaps)
    return {
        "log_likelihood_of_canonical_tokens": canonical,
        "gap": gap,
        "gap_stderr": estimate.stderr,
        "gap_percent": -100 * gap / canonical if canonical else None,
        "median_share_on_canonical_tokens": math.exp(-statistics.median(gaps)),
    }
