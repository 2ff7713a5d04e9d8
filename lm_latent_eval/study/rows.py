"""The results of a study as rows of plain data, one an estimate."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from lm_latent_eval.estimators import certified_log_likelihood
from lm_latent_eval.estimators import effective_sample_size as sample_size
from lm_latent_eval.estimators.paired import FEWEST_TEXTS
from lm_latent_eval.files import regular, write_text
from lm_latent_eval.study.plan import StudySetting
from lm_latent_eval.study.totals import SizeTotals, Totals
from lm_latent_eval.values import parse

Row = dict[str, Any]

CONFIDENCE = 0.95


def drawn_rows(
    setting: StudySetting, totals: Totals, replicate: int, num_configurations: int
) -> Iterator[Row]:
    """Yield a row for each level and number of samples k.

    Args:
        setting: How latents were drawn.
        totals: What their weights say.
        replicate: The k whose replicates are kept one by one.
        num_configurations: Settings of the study: whoever quotes the best row has
            chosen among their rows, and the certificates pay for it.
    """
    rows_in_all = 2 * len(totals.sizes) * num_configurations
    for size, level in totals.instance.items():
        row = _head(setting, totals, "instance", size)
        row |= _estimates(totals, level.replicates, rows_in_all)
        # Put together from the replicates of fewer, corpora are too much alike.
        if len(level.recombined) and totals.num_texts >= FEWEST_TEXTS:
            row |= _interval(totals, level)
        if size == replicate:
            row["replicates"] = _perplexities(totals, level.replicates)
            row["predicted"] = _perplexities(totals, level.predicted())
        if size == totals.num_samples:
            row |= _diagnostics(totals)
        yield row
    for size in totals.sizes:
        row = _head(setting, totals, "corpus", size)
        row |= _estimates(totals, totals.corpus_level(size), rows_in_all)
        if size == totals.num_samples:
            row["effective_sample_size"] = _finite(sample_size(totals.corpus).item())
        yield row


def beam_row(setting: StudySetting, totals: Totals, log_p: float) -> Row:
    """Return the row of a beam, which bounds log p of the corpus by ``log_p`` nats."""
    return _head(setting, totals, "instance", setting.num_samples) | {
        "bound": "strict upper",
        "log_likelihood": _finite(log_p),
        "perplexity": _finite(totals.perplexity(log_p)),
    }


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as JSON lines, all or nothing."""
    write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def read(path: Path) -> list[Row]:
    """Read rows; none if there is no file yet.

    Raises:
        ValueError: If the file is not of a study.
    """
    if not path.exists():
        return []
    try:
        lines = regular(path).read_text(encoding="utf-8").splitlines()
        rows = [_restored(parse(line)) for line in lines]
        for row in rows:
            _named(row)
            row["perplexity"] = float(row["perplexity"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as err:
        raise ValueError(f"{path} is not a file of a study's rows ({err})") from err
    return rows


_named = itemgetter("estimator", "proposal", "temperature", "level", "num_samples")
"""What every row has."""


def _head(setting: StudySetting, totals: Totals, level: str, size: int) -> Row:
    return {
        "estimator": setting.estimator,
        "proposal": setting.proposal,
        "temperature": setting.temperature,
        "level": level,
        "num_samples": size,
        "texts": totals.num_texts,
        "tokens": totals.num_tokens,
    }


def _estimates(totals: Totals, replicates: Tensor, num_configurations: int) -> Row:
    """Describe the estimate of the first k samples, and how its replicates lie."""
    log_p = replicates[0].item()
    mean = replicates.mean().item()
    certified = -math.inf
    if math.isfinite(log_p):
        certified = certified_log_likelihood(
            replicates[:1], CONFIDENCE, num_configurations=num_configurations
        )
    return {
        "bound": "stochastic upper",
        "log_likelihood": _finite(log_p),
        "perplexity": _finite(totals.perplexity(log_p)),
        "certified_perplexity": _finite(totals.perplexity(certified)),
        "num_replicates": len(replicates),
        "perplexity_of_mean_log_likelihood": _finite(totals.perplexity(mean)),
    }


def _interval(totals: Totals, level: SizeTotals) -> Row:
    """Return where 95 % of estimates from k fresh samples lie."""
    ordered = sorted(_perplexities(totals, level.predicted()), key=float)
    edge = round(len(ordered) * (1 - CONFIDENCE) / 2)
    return {"low": ordered[edge], "high": ordered[-1 - edge]}


def _diagnostics(totals: Totals) -> Row:
    sizes = totals.sample_sizes
    return {
        "log_likelihood_draws_stderr": _finite(math.sqrt(totals.variance)),
        "effective_sample_size_median": statistics.median(sizes),
        "effective_sample_size_minimum": min(sizes),
        "share_pareto_k_above_0.7": totals.unreliable / totals.num_texts,
    }


def _perplexities(totals: Totals, log_p: Tensor) -> list[Any]:
    return [_finite(totals.perplexity(value)) for value in log_p.tolist()]


def _restored(value: Any) -> Any:
    """Undo ``_finite``, in rows and lists as well."""
    if isinstance(value, dict):
        return {name: _restored(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_restored(part) for part in value]
    return float(value) if value in ("inf", "-inf") else value


def _finite(value: float) -> float | str:
    """Write infinities as strings: JSON has no number for them."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)
