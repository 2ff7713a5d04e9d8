"""Metrics of a corpus: functions of its answers, registered by a decorator.

From ``METRICS`` follow the metrics of lm-eval's tasks (``harness.perplexity``), the
rows of ``recompute``, what ``explain`` says and the list in docs/options.md. A metric
named ``NAME_stderr`` fills lm-eval's Stderr column: as for any model, it is the error
over texts. The error of draws is in it, and has rows of its own.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lm_latent_eval.estimators import (
    Bound,
    CorpusRate,
    certified_perplexity,
    corpus_perplexity,
    effective_sample_size,
    instance_perplexity,
)
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

Number: TypeAlias = Callable[[Totals], "float | str"]
Rates: TypeAlias = Callable[[Totals], CorpusRate]


@dataclass(frozen=True)
class Metric:
    """A number of a corpus, refused where its answers do not make it."""

    name: str
    function: Number
    description: str
    """Explanation for readers of results; "" of an error."""
    unit: str | None
    """Denominator of a rate: tokens, words or bytes."""
    in_summary: bool
    """Whether most tasks print it."""
    higher_is_better: bool

    def __call__(self, answers: Sequence[Answer] | Totals) -> float | str:
        """Compute it, or say in its place why there is none.

        A perplexity beyond any float is not infinite: a lower limit stands for it.
        """
        totals = answers if isinstance(answers, Totals) else Totals(answers)
        if refusal := _refusal(totals, self.unit):
            if self.name.endswith("_stderr"):
                return UNKNOWN
            why, remedy = refusal
            if remedy:
                logger.warning("no %s (%s): %s", self.name, why, remedy)
            return f"refused: {why}"
        value = self.function(totals)
        if value != math.inf:
            return value
        return UNKNOWN if self.name.endswith(("stderr", "error")) else TOO_LARGE


METRICS: dict[str, Metric] = {}
"""Name -> metric, in the order of tables."""


def metric(
    name: str,
    unit: str | None = None,
    *,
    summary: bool = False,
    higher_is_better: bool = False,
) -> Callable[[Number], Number]:
    """Register a function of a corpus as a metric.

    Args:
        name: Name in results.
        unit: Denominator, if it is a rate.
        summary: Whether most tasks print it.
        higher_is_better: Whether more is better.
    """

    def register(function: Number) -> Number:
        description = " ".join((function.__doc__ or "").split())
        METRICS[name] = Metric(
            name, function, description, unit, summary, higher_is_better
        )
        return function

    return register


def rate(name: str, unit: str, *, summary: bool = False) -> Callable[[Rates], Rates]:
    """Register a rate as a metric, and its error over texts as ``NAME_stderr``."""

    def register(rates: Rates) -> Rates:
        def value(totals: Totals) -> float:
            return rates(totals).value

        def stderr(totals: Totals) -> float | str:
            error = rates(totals).stderr
            return UNKNOWN if error is None else error

        value.__doc__ = rates.__doc__
        metric(name, unit, summary=summary)(value)
        metric(f"{name}_stderr", unit, summary=summary)(stderr)
        return rates

    return register


def _refusal(totals: Totals, unit: str | None) -> tuple[str, str] | None:
    """Return why a corpus has no rate per unit, and a remedy; None: it has one.

    A rate that divides by what was not scored would be too small.
    """
    if Bound.UNNORMALISED in totals.bounds:
        return (
            "unnormalised scores",
            "the model's scores are no probabilities; use the contrastive_entropy "
            "tasks",
        )
    if not totals.total("tokens"):
        return "no words to predict", ""
    if unit not in ("words", "bytes"):
        return None
    if totals.left_out:
        return (
            f"{totals.left_out} words left out",
            "the model does not know them; token_perplexity is per known word",
        )
    if unit == "bytes":
        for count, what in (
            (totals.unspelled, "words not spelled"),
            (totals.respaced, "gaps not charged"),
        ):
            if count:
                return (
                    f"{count} {what}",
                    "strings were not scored; use a checkpoint with a character model "
                    "(unk=spelled) on text without a literal <unk>",
                )
    return None if totals.total(unit) else (f"no {unit}", "")


@rate("word_perplexity", "words")
def word_rate(totals: Totals) -> CorpusRate:
    """Perplexity per word between white space, as other harness models report."""
    return _rate(CorpusRate.perplexity, totals, "words")


@rate("byte_perplexity", "bytes")
def byte_rate(totals: Totals) -> CorpusRate:
    """Perplexity per byte of the text."""
    return _rate(CorpusRate.perplexity, totals, "bytes")


@rate("bits_per_byte", "bytes", summary=True)
def bit_rate(totals: Totals) -> CorpusRate:
    """Bits per byte of the text."""
    return _rate(CorpusRate.bits, totals, "bytes")


@rate("token_perplexity", "tokens", summary=True)
def token_rate(totals: Totals) -> CorpusRate:
    """Exp of the negative log-likelihood a predicted token.

    Each text's likelihood stands by itself (instance level). ± is over texts: what to
    expect of other texts of the kind, the Monte Carlo error included.
    """
    return _rate(CorpusRate.perplexity, totals, "tokens")


@metric("token_perplexity_monte_carlo_error", summary=True)
def monte_carlo_error(totals: Totals) -> float | str:
    """How far other draws of the latents would lead on these very texts.

    What draws are likely to miss is in it, as far as a search of its own could tell.
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
    partial = share * error.monte_carlo_stderr
    return f"{unknown}; {partial:.2g} by the others" if partial < math.inf else unknown


@metric("token_perplexity_draws_error")
def draws_error(totals: Totals) -> float:
    """Monte Carlo error as the draws tell it.

    They do not know what their proposal never visits, so it can be far too small.
    """
    return token_rate(totals).draws_stderr


@metric("texts_without_monte_carlo_error")
def texts_without_error(totals: Totals) -> int:
    """Number of texts whose Monte Carlo error cannot be estimated.

    Nothing has checked their draws, or what a search found contradicts them. Of those
    only a bound is known, on one side, and so of the corpus; what the others add to its
    error is said.
    """
    return int(np.isnan(totals.column("missed")).sum())


@metric("corpus_token_perplexity", summary=True)
def corpus_level_perplexity(totals: Totals) -> float:
    """Token perplexity with the weights of all texts multiplied before averaging.

    The corpus level, as some papers report. Looser: compare its effective sample size.
    """
    # exp(-1/T log(1/K sum_k prod_n w_nk)), the same K for every text: of a run that
    # chose K a text, as many first draws as the least has.
    products = totals.corpus_weights
    if products is None:
        return token_rate(totals).value
    return corpus_perplexity(products[None], totals.total("tokens"))


@metric("corpus_token_perplexity_stderr", summary=True)
def _corpus_level_stderr(totals: Totals) -> float | str:
    # The error of a mean of products is not to be had from products, of which the
    # largest is next to everything.
    error = token_rate(totals).stderr
    return UNKNOWN if totals.corpus_weights is not None or error is None else error


CERTIFIED = (Bound.EXACT, Bound.STRICT_LOWER, Bound.STOCHASTIC_LOWER)
"""Bounds of a log-likelihood that multiply to one that a certificate holds for."""


@metric("certified_token_perplexity", "tokens", summary=True)
def certified(totals: Totals) -> float | str:
    """With 95 % confidence over the draws, the true token perplexity is at most this.

    That holds however badly the proposal fits.
    """
    if not totals.bounds <= {*CERTIFIED}:
        return UNKNOWN
    streams = totals.column("stream")[totals.are(Bound.STOCHASTIC_LOWER)]
    if not len(streams):  # nothing is drawn
        return token_rate(totals).value
    return certified_perplexity(
        totals.log_p,
        totals.total("tokens"),
        CONFIDENCE,
        # Copies answered from a cache share their draws, and pay for it.
        multiplicity=int(np.unique(streams, return_counts=True)[1].max()),
    )


@metric("token_perplexity_at_least")
def at_least(totals: Totals) -> float | str:
    """Lower limit of the true token perplexity, on average over draws.

    No confidence comes with it: use it beside ± alone.
    """
    uppers = totals.column("upper")
    if np.isnan(uppers).any():
        return UNKNOWN
    log_p = torch.tensor(uppers)
    return max(1.0, instance_perplexity(log_p, totals.total("tokens")))


def _over_texts(
    totals: Totals, column: str, combine: Callable[..., Any]
) -> float | str:
    """Return a number of the texts that have a diagnostic of draws; N/A: none has."""
    values = totals.column(column)
    values = values[~np.isnan(values)]
    return float(combine(values)) if len(values) else UNKNOWN


@metric("effective_samples_median", higher_is_better=True)
def median_effective_samples(totals: Totals) -> float | str:
    """Perfect draws that the weighted draws of the median text are worth."""
    return _over_texts(totals, "effective_sample_size", np.median)


@metric("effective_samples_minimum", higher_is_better=True)
def least_effective_samples(totals: Totals) -> float | str:
    """Perfect draws that the weighted draws of the worst text are worth."""
    return _over_texts(totals, "effective_sample_size", np.min)


@metric("effective_samples_corpus", higher_is_better=True)
def corpus_effective_samples(totals: Totals) -> float | str:
    """Perfect draws that the weights of the corpus level are worth.

    Near 1, one draw decides the number.
    """
    products = totals.corpus_weights
    return UNKNOWN if products is None else effective_sample_size(products).item()


@metric("share_pareto_k_above_0.7")
def unreliable_share(totals: Totals) -> float | str:
    """Share of texts whose weights have too heavy a tail to trust the draws' error.

    It is of the texts with at least 30 positive weights.
    """
    return _over_texts(
        totals, "pareto_k", lambda shapes: (shapes > RELIABLE_PARETO_K).mean()
    )


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
