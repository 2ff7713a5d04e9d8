"""Corpus metrics from the estimates of documents, and the summary of a run.

Numbers named ``<metric>_stderr`` fill the harness's Stderr column. As for any model,
it is the error over texts: that of the draws is in it, and has rows of its own.
"""

from __future__ import annotations

import logging
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lm_latent_eval.estimators import (
    Bound,
    CorpusRate,
    Estimate,
    certified_perplexity,
    corpus_perplexity,
    effective_sample_size,
    instance_perplexity,
)
from lm_latent_eval.estimators.choices import is_undecided, tied
from lm_latent_eval.estimators.diagnostics import RELIABLE_PARETO_K
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.totals import Totals

logger = logging.getLogger(__name__)

CONFIDENCE = 0.95
UNKNOWN = "N/A"
"""In place of an error that cannot be estimated, or of a diagnostic of draws where
nothing is drawn."""
TOO_LARGE = f"above {sys.float_info.max:.2g}"
"""In place of a perplexity that is finite and no float."""


# -- per word and byte ---------------------------------------------------------------


def word_rate(totals: Totals) -> CorpusRate:
    """Perplexity per word."""
    return _rate(CorpusRate.perplexity, totals, "words")


def byte_rate(totals: Totals) -> CorpusRate:
    """Perplexity per byte."""
    return _rate(CorpusRate.perplexity, totals, "bytes")


def bit_rate(totals: Totals) -> CorpusRate:
    """Bits per byte."""
    return _rate(CorpusRate.bits, totals, "bytes")


def token_rate(totals: Totals) -> CorpusRate:
    """Perplexity per predicted token."""
    return _rate(CorpusRate.perplexity, totals, "tokens")


Number: TypeAlias = Callable[[Totals], "float | str"]
Rates: TypeAlias = Callable[[Totals], CorpusRate]
Metric: TypeAlias = Callable[[Sequence[Answer] | Totals], "float | str"]


def value_of(rate: Rates) -> Number:
    """Return the value of a rate."""
    return lambda totals: rate(totals).value


def stderr_of(rate: Rates) -> Number:
    """Return the error over texts; N/A where that of draws is not known."""

    def stderr(totals: Totals) -> float | str:
        error = rate(totals).stderr
        return UNKNOWN if error is None else error

    return stderr


def of_words(metric: Number, *, is_error: bool = False) -> Number:
    """Refuse a rate that divides by words which were not scored.

    Such a number would be too small by what they cost. In its place stands how many.
    """

    def checked(totals: Totals) -> float | str:
        left_out = totals.left_out
        if not left_out:
            return metric(totals)
        if is_error:
            return UNKNOWN
        logger.warning(
            "no rate per word or byte: %d words are left out, which the model does not "
            "know; token_perplexity is per known word",
            left_out,
        )
        return f"refused: {left_out} words left out"

    return checked


def having_words(metric: Number, *, is_error: bool = False) -> Number:
    """Refuse a rate per word of texts without any."""
    nothing = UNKNOWN if is_error else "refused: no words"
    return lambda totals: metric(totals) if totals.total("words") else nothing


def of_strings(metric: Number, *, is_error: bool = False) -> Number:
    """Refuse a rate per byte where words were scored and their strings were not.

    Such a number would be too small by what lost spellings and spaces cost, and compare
    with nothing. In its place stands what it lacks.
    """

    def checked(totals: Totals) -> float | str:
        lacking = [
            f"{count} {what}"
            for count, what in (
                (totals.unspelled, "words not spelled"),
                (totals.respaced, "gaps not charged"),
            )
            if count
        ] or ["no bytes"] * (not totals.total("bytes"))
        if not lacking:
            return metric(totals)
        if is_error:
            return UNKNOWN
        logger.warning(
            "no rate per byte: %s, so strings were not scored; use a checkpoint with a "
            "character model (unk=spelled) on text without a literal <unk>",
            " and ".join(lacking),
        )
        return f"refused: {lacking[0]}"

    return of_words(checked, is_error=is_error)


# -- importance-sampled perplexity, per predicted token ------------------------------


def token_perplexity(totals: Totals) -> float:
    """Instance level: exp(-1/T sum_n log p-hat(x_n)), T predicted tokens."""
    return instance_perplexity(totals.log_p, totals.total("tokens"))


def monte_carlo_error(totals: Totals) -> float | str:
    """Error of ``token_perplexity`` from draws and what they may have missed.

    Where that cannot be estimated of some texts, what the others add is said.
    """
    rate = token_rate(totals)
    if rate.monte_carlo_stderr is not None:
        return rate.monte_carlo_stderr
    others = ~np.isnan(totals.column("missed"))
    tokens = int(totals.column("tokens")[others].sum())
    unknown = f"{UNKNOWN}: {(~others).sum()} of {len(totals)} texts"
    if not tokens:
        return unknown
    error = _rate(CorpusRate.perplexity, totals, "tokens", others)
    assert error.monte_carlo_stderr is not None
    share = rate.value / error.value * tokens / totals.total("tokens")
    theirs = share * error.monte_carlo_stderr
    return f"{unknown}; {theirs:.2g} by the others" if theirs < math.inf else unknown


def draws_error(totals: Totals) -> float:
    """Error of ``token_perplexity`` by the delta method, blind to missed latents."""
    return token_rate(totals).draws_stderr


def texts_without_error(totals: Totals) -> int:
    """Documents whose Monte Carlo error cannot be estimated."""
    return int(np.isnan(totals.column("missed")).sum())


def corpus_level_perplexity(totals: Totals) -> float:
    """Corpus level: exp(-1/T log(1/K sum_k prod_n w_nk)).

    The same K for every document: of a run that chose K a document, the first draws of
    each as many as the least has.
    """
    products = totals.corpus_weights
    if products is None:
        return token_perplexity(totals)
    return corpus_perplexity(products[None], totals.total("tokens"))


def corpus_level_perplexity_stderr(totals: Totals) -> float | str:
    """That of ``token_perplexity`` where they are one number.

    The error of a mean of products is not to be had from products, of which the largest
    is next to everything.
    """
    if totals.corpus_weights is not None:
        return UNKNOWN
    return stderr_of(token_rate)(totals)


CERTIFIED = (Bound.EXACT, Bound.STRICT_LOWER, Bound.STOCHASTIC_LOWER)
"""Bounds of a log-likelihood that multiply to one that a certificate holds for."""


def certified(totals: Totals) -> float | str:
    """Upper limit of the token perplexity at 95 % confidence.

    Documents that share their draws (copies answered from a cache) pay for it. Where
    nothing is drawn (a beam, a model without latents) it is the perplexity itself, and
    where an estimate bounds nothing there is none.
    """
    if not totals.bounds <= {*CERTIFIED}:
        return UNKNOWN
    streams = totals.column("stream")[totals.are(Bound.STOCHASTIC_LOWER)]
    if not len(streams):
        return token_perplexity(totals)
    return certified_perplexity(
        totals.log_p,
        totals.total("tokens"),
        CONFIDENCE,
        multiplicity=int(np.unique(streams, return_counts=True)[1].max()),
    )


def at_least(totals: Totals) -> float | str:
    """Lower bound of the token perplexity on average over draws, with ``bounds=both``.

    At least 1, as every perplexity is. N/A unless every document's error is known.
    """
    uppers = totals.column("upper")
    if np.isnan(uppers).any():
        return UNKNOWN
    log_p = torch.tensor(uppers)
    return max(1.0, instance_perplexity(log_p, totals.total("tokens")))


def over_texts(column: str, combine: Callable[[NDArray[Any]], float]) -> Number:
    """Return a number of the texts that have a diagnostic of draws; N/A: none has."""

    def combined(totals: Totals) -> float | str:
        values = totals.column(column)
        known = values[~np.isnan(values)]
        return float(combine(known)) if len(known) else UNKNOWN

    return combined


def corpus_effective_samples(totals: Totals) -> float | str:
    """Effective sample size of the corpus-level weights; 1 is as good as one draw."""
    products = totals.corpus_weights
    return UNKNOWN if products is None else effective_sample_size(products).item()


def of_probabilities(name: str, metric: Number) -> Metric:
    """Refuse a metric of log-probabilities where a model gave unnormalised scores.

    A perplexity beyond any float is no infinite one: what it is above is said.
    """

    def checked(answers: Sequence[Answer] | Totals) -> float | str:
        totals = answers if isinstance(answers, Totals) else Totals(answers)
        normalised = Bound.UNNORMALISED not in totals.bounds
        if normalised and totals.total("tokens"):
            value = metric(totals)
            if value != math.inf:
                return value
            return UNKNOWN if name.endswith(("stderr", "error")) else TOO_LARGE
        if name.endswith("_stderr"):
            return UNKNOWN
        if normalised:
            return "refused: no words to predict"
        logger.warning(
            "no %s: the model's scores are not normalised, so they are no "
            "probabilities; use the contrastive_entropy tasks",
            name,
        )
        return "refused: unnormalised scores"

    return checked


_OF_PROBABILITIES: dict[str, Number] = {
    "word_perplexity": of_words(having_words(value_of(word_rate))),
    "word_perplexity_stderr": of_words(
        having_words(stderr_of(word_rate), is_error=True), is_error=True
    ),
    "byte_perplexity": of_strings(value_of(byte_rate)),
    "byte_perplexity_stderr": of_strings(stderr_of(byte_rate), is_error=True),
    "bits_per_byte": of_strings(value_of(bit_rate)),
    "bits_per_byte_stderr": of_strings(stderr_of(bit_rate), is_error=True),
    "token_perplexity": token_perplexity,
    "token_perplexity_stderr": stderr_of(token_rate),
    "token_perplexity_monte_carlo_error": monte_carlo_error,
    "token_perplexity_draws_error": draws_error,
    "texts_without_monte_carlo_error": texts_without_error,
    "corpus_token_perplexity": corpus_level_perplexity,
    "corpus_token_perplexity_stderr": corpus_level_perplexity_stderr,
    "certified_token_perplexity": certified,
    "token_perplexity_at_least": at_least,
    "effective_samples_median": over_texts("effective_sample_size", np.median),
    "effective_samples_minimum": over_texts("effective_sample_size", np.min),
    "effective_samples_corpus": corpus_effective_samples,
    "share_pareto_k_above_0.7": over_texts(
        "pareto_k", lambda shapes: float((shapes > RELIABLE_PARETO_K).mean())
    ),
}
METRICS = {
    name: of_probabilities(name, metric) for name, metric in _OF_PROBABILITIES.items()
}
"""Name in a task's ``metric_list`` -> aggregation."""


def _rate(
    of: Callable[..., CorpusRate],
    totals: Totals,
    units: str,
    which: NDArray[np.bool_] | slice = slice(None),
) -> CorpusRate:
    """Return a rate; copies of a text are one in its error over texts.

    So are texts of the same draws. What draws add is by streams: copies that drew for
    themselves err apart.
    """
    estimates = totals.estimates.of_texts(which)
    counts = torch.tensor(totals.column(units)[which])
    rate, by_text = (
        of(estimates, counts, totals.column(names)[which])
        for names in ("stream", "text")
    )
    errors = [error for error in (rate.stderr, by_text.stderr) if error is not None]
    return replace(rate, stderr=max(errors) if len(errors) == 2 else None)


class Summary:
    """Collects the diagnostics of every answer of a run."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def add(self, answers: list[Answer]) -> None:
        """Take in some more answers."""
        self.answers += answers

    def as_dict(self) -> dict[str, Any]:
        """Return counts, bounds, effective sample sizes and Pareto k, as JSON."""
        if not self.answers:
            return {"requests": 0, "note": "every answer came from a cache"}
        estimates = [answer.estimate for answer in self.answers]
        unspelled = sum(answer.unspelled for answer in self.answers)
        respaced = sum(answer.respaced for answer in self.answers)
        left_out = sum(answer.left_out for answer in self.answers)
        sizes = [
            e.effective_sample_size
            for e in estimates
            if e.effective_sample_size is not None
        ]
        shapes = [e.pareto_k for e in estimates if e.pareto_k is not None]
        held = [e.num_samples for e in estimates]
        summary: dict[str, Any] = {
            "requests": len(estimates),
            "sentences": sum(answer.sentences for answer in self.answers),
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
        if asked := self._options():
            summary["questions"] = len(asked)
            summary["questions_tied"] = sum(map(_is_tied, asked))
            known = [[o.estimate.replicates for o in options] for options in asked]
            if any(any(rows) for rows in known):
                unsure = sum(not all(rows) or is_undecided(rows) for rows in known)
                summary["questions_within_monte_carlo_error"] = unsure
        if summed := [a for a in self.answers if a.canonical is not None]:
            summary["tokenizations"] = _tokenizations(summed)
        return summary

    def _options(self) -> list[list[Answer]]:
        """Collect the options of each question, of those that have several."""
        asked = defaultdict(list)
        for answer in self.answers:
            if answer.is_greedy is not None and answer.stream:
                asked[answer.stream].append(answer)
        return [some for some in asked.values() if len(some) > 1]


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
