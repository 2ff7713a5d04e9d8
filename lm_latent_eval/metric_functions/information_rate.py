"""Information rates as a metric function: a log-likelihood in every unit."""

from __future__ import annotations

import math
from dataclasses import asdict
from numbers import Real
from typing import Any

from lm_latent_eval.estimators import InformationRate as Rate
from lm_latent_eval.metric_functions.columns import (
    complete,
    known,
    present,
    whole_counts,
)

_UNITS = {
    "token": "num_tokens",
    "word": "num_words",
    "character": "num_characters",
    "byte": "num_bytes",
    "sentence": "num_sentences",
}
_READ = {
    name: (unit, read)
    for unit in _UNITS
    for name, read in (
        (f"nats_per_{unit}", Rate),
        (f"bits_per_{unit}", Rate.of_bits),
        (f"{unit}_perplexity", Rate.of_perplexity),
    )
}
"""Published rate -> its unit, and what reads it."""
COLUMNS = ("log_likelihoods", *_UNITS.values())


def information_rate(**inputs: Any) -> dict[str, Any]:
    """Compute what the ``evaluate`` module of that name does; see its card.

    Args:
        inputs: Those of the module's ``compute``.

    Example:
        >>> result = information_rate(log_likelihoods=-100.0, num_words=25)
        >>> round(result["word_perplexity"], 4)
        54.5982
    """
    columns, facts = prepare(inputs)
    return {**compute(**columns), **facts}


def prepare(
    inputs: dict[str, Any], *, stored: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of ``compute``, and facts; see ``metric_functions``."""
    facts: dict[str, Any] = {}
    inputs = known(inputs, _of_texts, compute, others=(*_UNITS.values(), *_READ))
    if "texts" in inputs:
        inputs, facts = _of_texts(**inputs)
    inputs = {
        name: [float(value)] if name in COLUMNS and _is_total(value) else value
        for name, value in inputs.items()
    }
    for name in sorted(_READ.keys() & inputs.keys()):
        inputs = _of_published(name, **inputs)
    needed = [] if facts else ["log_likelihoods"]
    optional = [name for name in COLUMNS if name not in needed]
    return complete(inputs, needed, optional, stored=stored), facts


def compute(log_likelihoods: Any, stderr: Any = 0.0, **counts: Any) -> dict[str, Any]:
    """Compute every rate that the counts allow."""
    result: dict[str, Any] = {
        name: sum(whole_counts(counts[name], name))
        for name in _UNITS.values()
        if any(count is not None for count in counts[name])
    }
    if empty := [name for name, count in result.items() if count < 1]:
        raise ValueError(
            f"{empty[0]} must be at least 1 in all; got {result[empty[0]]}"
        )
    if all(log_p is None for log_p in log_likelihoods):  # texts without a model
        return result
    log_likelihood = math.fsum(present(log_likelihoods, "log_likelihoods"))
    stderr = float(stderr)
    if not result:
        raise ValueError(f"missing: one of {', '.join(_UNITS.values())}")
    rates = {
        unit: Rate.of(log_likelihood, result[name], stderr=stderr)
        for unit, name in _UNITS.items()
        if name in result
    }
    result["log_likelihood"] = log_likelihood
    for unit, rate in rates.items():
        result |= _named(unit, rate, error=stderr > 0)
    return result


def _of_texts(
    texts: Any, max_order: Any = 5, language: Any = "en", **inputs: Any
) -> Any:
    """Count texts: what `compute` takes then, and what they say by themselves."""
    from lm_latent_eval.text.counts import Counts, gamble, letters, ngram_entropies

    counts = asdict(Counts.of(texts, language=language))
    columns = {
        name: counts[f"{unit}s"] for unit, name in _UNITS.items() if unit != "token"
    }
    if given := columns.keys() & inputs.keys():
        raise ValueError(
            f"texts are counted here: leave out {', '.join(sorted(given))}"
        )
    for name in ("log_likelihoods", "num_tokens"):
        value = inputs.get(name)
        if value is not None and not _is_total(value):
            if len(value) != len(texts):
                raise ValueError(f"{len(texts)} texts, but {len(value)} {name}")
            check = whole_counts if name == "num_tokens" else present
            columns[name] = math.fsum(check(value, name))
    symbols = letters(" ".join(texts))
    max_order = min(max_order, len(symbols))
    facts: dict[str, Any] = {"ngram_entropies": [], "gambling": None}
    if max_order > 0:
        facts["ngram_entropies"] = [
            {
                "order": entropy.order,
                "nats_per_symbol": entropy.rate.nats,
                "bits_per_symbol": entropy.rate.bits,
                "share_unique": entropy.share_unique,
            }
            for entropy in ngram_entropies(symbols, max_order)
        ]
        won = gamble(symbols, max_order=max_order)
        facts["gambling"] = {
            "nats_per_symbol": won.rate.nats,
            "bits_per_symbol": won.rate.bits,
            **asdict(won),
        }
    return {**inputs, **columns}, facts


def _of_published(name: Any, **inputs: Any) -> Any:
    """Turn a published rate into the log-likelihood of text so long."""
    unit, read = _READ[name]
    count = inputs.get(_UNITS[unit])
    if count is None:
        raise ValueError(f"missing: {_UNITS[unit]} ({name} is a rate of so many)")
    if "log_likelihoods" in inputs:
        raise ValueError(f"log_likelihoods and {name} say the same twice: give one")
    rate = read(float(inputs.pop(name)))
    counts = whole_counts(count, _UNITS[unit])
    return {**inputs, "log_likelihoods": [-rate.nats * each for each in counts]}


def _is_total(value: Any) -> bool:
    """Whether it is one number, also that of an array without dimensions."""
    return isinstance(value, Real) or getattr(value, "ndim", None) == 0


def _named(unit: Any, rate: Any, *, error: Any) -> dict[str, Any]:
    """Name a rate in nats, in bits and as a perplexity, and the errors if wanted."""
    named = {
        f"nats_per_{unit}": (rate.nats, rate.nats_stderr),
        f"bits_per_{unit}": (rate.bits, rate.bits_stderr),
        f"{unit}_perplexity": (rate.perplexity, rate.perplexity_stderr),
    }
    values = {name: value for name, (value, _) in named.items()}
    errors = {f"{name}_stderr": stderr for name, (_, stderr) in named.items()}
    return {**values, **errors} if error else values
