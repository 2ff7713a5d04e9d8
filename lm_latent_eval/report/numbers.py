"""Numbers of runs and calibrations, with their errors, as tables."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lm_latent_eval.estimators import mean_stderr
from lm_latent_eval.report.tables import aligned, error, one_line, shown
from lm_latent_eval.report.units import ACCURACY, Run
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.calibration import Calibration
from lm_latent_eval.scoring.metrics import (
    METRICS,
    UNKNOWN,
    Rates,
    bit_rate,
    byte_rate,
    token_rate,
    word_rate,
)
from lm_latent_eval.scoring.records import TASK
from lm_latent_eval.scoring.totals import Totals

logger = logging.getLogger(__name__)

CORPUS_LEVEL = ("corpus_token_perplexity", "effective_samples_corpus")
"""Metrics that take log-weights."""
_SETTINGS = (
    *("estimator", "num_samples", "proposal", "temperature", "seed", "unk", "bounds"),
)
NO_WEIGHTS = "no log-weights in the record: run with --model_args log_weights=true"
ERRORS = {"value": ("± over texts", "± Monte Carlo", "± as draws tell")}
"""Columns with the errors of ``rows``."""

T = TypeVar("T")


class NoNumberError(ValueError):
    """Error of a task that has no number of the requested kind."""


def with_numbers(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Return the result of each task; one without a number is left out, by name.

    Raises:
        NoNumberError: If no task has one.
    """
    results: list[T] = []
    without: list[NoNumberError] = []
    for task in tasks:
        try:
            results.append(task())
        except NoNumberError as err:
            without.append(err)
    if without and not results:
        raise without[0]
    for each in without:
        logger.warning("%s: the task is left out", each)
    return results


@dataclass(frozen=True)
class Number:
    """A metric's value with its errors; each is None where it is not known."""

    value: float | str
    """The value, or why there is none."""
    stderr: float | None = None
    """Error over texts or questions, the draws' part included."""
    monte_carlo_stderr: float | None = None
    """Error on these texts: draws of the latents, and what they may have missed."""
    draws_stderr: float | None = None
    """Monte Carlo error by the delta method, blind to missed latents."""


@dataclass(frozen=True)
class Unit:
    name: str
    value: Callable[[float], float]
    """Conversion of nats a unit."""
    rate: Rates
    """Rate of a corpus, with errors."""


RATES = {
    "bits_per_byte": Unit("bytes", lambda nats: nats / math.log(2), bit_rate),
    "byte_perplexity": Unit("bytes", math.exp, byte_rate),
    "word_perplexity": Unit("words", math.exp, word_rate),
    "token_perplexity": Unit("tokens", math.exp, token_rate),
}


def numbers(run: Run) -> dict[str, Number]:
    """Return the numbers of a run: rates and diagnostics, an accuracy, or a mean."""
    if run.metric == ACCURACY:
        return _accuracy(run.answers)
    if not run.is_of_texts:
        means = run.units.groupby("unit", sort=False)["score"].mean()
        return {run.metric: _mean(means.tolist())} if len(means) else {}
    metrics = _of_totals(Totals(run.answers))
    if "strings_scored" in run.settings:  # tokens of other programs are not counted
        return {name: n for name, n in metrics.items() if "token" not in name}
    return metrics


def _of_totals(totals: Totals) -> dict[str, Number]:
    names = [name for name in METRICS if not name.endswith("_stderr")]
    return {name: _number(name, totals) for name in names}


def _mean(values: Sequence[float]) -> Number:
    several = torch.tensor(values, dtype=torch.float64)
    error = mean_stderr(several).item() if len(values) > 1 else None
    return Number(several.mean().item(), error)


def _number(name: str, totals: Totals) -> Number:
    if name in CORPUS_LEVEL and not totals.all_weighted:
        return Number(NO_WEIGHTS)
    value = METRICS[name](totals)
    if isinstance(value, str):
        return Number(value)
    if unit := RATES.get(name):
        rate = unit.rate(totals)
        return Number(value, rate.stderr, rate.monte_carlo_stderr, rate.draws_stderr)
    of_error = METRICS.get(f"{name}_stderr")
    error = of_error(totals) if of_error else UNKNOWN
    return Number(value, None if isinstance(error, str) else error)


def _accuracy(answers: Sequence[Answer]) -> dict[str, Number]:
    credits = {a.index: a.accuracy for a in answers if a.accuracy is not None}
    if not credits:
        return {}
    ties = {a.index for a in answers if a.tied and a.accuracy is not None}
    tied = {"questions_tied": Number(len(ties))} if ties else {}
    return {"acc": _mean([*credits.values()]), **tied}


def rows(run: Run) -> list[dict[str, Any]]:
    """Return the numbers of a run as rows of a table; a missing one says why."""
    return [
        {
            "task": run.task,
            "metric": name,
            "value": number.value,
            "± over texts": number.stderr,
            "± Monte Carlo": number.monte_carlo_stderr,
            "± as draws tell": number.draws_stderr,
        }
        for name, number in numbers(run).items()
    ]


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a number depends on, to be printed beside it.

    Example:
        >>> stated({"estimator": "exact", "num_samples": 100, "unk": "spelled"})
        {'estimator': 'exact', 'unk': 'spelled'}
    """
    idle = set[str]()
    if settings.get("estimator") == "exact":
        idle = {*_SETTINGS} - {"estimator", "unk"}
    idle |= {"bounds"} if settings.get("bounds") == "lower" else set()
    return {
        name: settings[name]
        for name in _SETTINGS
        if name not in idle and settings.get(name) not in (None, "")
    }


def table(run: Run) -> str:
    """Return the numbers of a run for a terminal."""
    metrics, documents = numbers(run), run.units["unit"].nunique()
    sizes = None
    if run.answers:
        documents = len({answer.index for answer in run.answers})
    if "token_perplexity" in metrics:
        tokens = sum(answer.tokens for answer in run.answers)
        sizes = tokens, sum(answer.bytes for answer in run.answers)
    over = "± over texts" if run.is_of_texts else "± over questions"
    head = _head(run.task, documents, run.settings, sizes, finished=run.finished)
    return _table(head, run.settings, metrics, over)


def table_of(settings: Mapping[str, Any], totals: Totals, *, finished: bool) -> str:
    """Return the numbers of a scored corpus for a terminal."""
    sizes = totals.total("tokens"), totals.total("bytes")
    head = _head(TASK, len(totals), settings, sizes, finished=finished)
    return _table(head, settings, _of_totals(totals), "± over texts")


def _head(
    task: str,
    documents: int,
    settings: Mapping[str, Any],
    sizes: tuple[int, int] | None,
    *,
    finished: bool,
) -> str:
    head = f"{task}: {documents:,} documents, {settings.get('model')}"
    if sizes:
        head += f", {sizes[0]:,} predicted tokens, {sizes[1]:,} bytes"
    if shard := settings.get("shard"):
        head += f" (shard {shard})"
    if finished:
        return head
    of = settings.get("num_texts")
    if isinstance(of, int) and documents < of and not shard:
        return f"{head} (not finished: only {documents:,} of {of:,} texts)"
    return f"{head} (not finished)"


def _table(
    head: str, settings: Mapping[str, Any], metrics: Mapping[str, Number], over: str
) -> str:
    cells = [["", "", over, "± Monte Carlo", "± as draws tell"]]
    for name, number in metrics.items():
        if isinstance(number.value, str):
            cells.append([name, number.value])
            continue
        errors = (number.stderr, number.monte_carlo_stderr, number.draws_stderr)
        has_error = name in RATES or number.stderr is not None
        words = [*map(error, errors)] if has_error else ["", "", ""]
        cells.append([name, written(name, number), *words])
    how = [f"{name}={value}" for name, value in stated(settings).items()]
    about = " ".join([f"checkpoint {settings.get('checkpoint')}", *how])
    lines = [head, f"  {about}", *aligned(cells, right=True)]
    return "\n".join(map(one_line, lines))


def written(name: str, number: Number) -> str:
    """Write a number with the decimals of its errors; an error has two digits."""
    if isinstance(number.value, str | int):
        return f"{number.value}"
    if name.endswith("_error"):
        return error(number.value)
    return shown(number.value, number.stderr, number.monte_carlo_stderr)


def calibration_table(
    calibration: Calibration, settings: Mapping[str, Any], requested: int
) -> str:
    """Return the numbers of a calibration, and the sentence that they come to.

    Args:
        calibration: Gaps between estimates and log p.
        settings: The scorer's ``fingerprint``.
        requested: Number of texts to draw, of which some may not have ended.
    """
    texts, gap, half_width = calibration.texts, calibration.gap, calibration.half_width
    tokens = sum(text.num_tokens for text in texts)
    lower = statistics.fmean(text.estimate.log_evidence for text in texts)
    how = f"{settings['estimator']}, num_samples={settings['num_samples']}"
    head = f"{len(texts):,} texts drawn from the model, {tokens:,} predicted tokens"
    if left_out := requested - len(texts):
        head += f"; {left_out:,} others did not end in time and are left out"
    apart = ["apart (mean)", shown(gap)]
    if calibration.is_told:
        apart = [
            "apart (mean, 95 %)",
            f"{shown(gap, half_width)} ± {error(half_width)}",
        ]
    widest = sorted((text.gap for text in texts), reverse=True)[:3]
    cells = [
        [f"log p, estimated ({how})", shown(lower), "nats a text"],
        ["log p, bounded from above", shown(lower + gap), "nats a text"],
        [*apart, "nats a text"],
        ["median of the printed errors", error(calibration.printed), "nats"],
        ["texts without an error", f"{calibration.unknown}", ""],
        ["widest gaps", ", ".join(map(shown, widest)), "nats"],
    ]
    sentence = (
        f"On texts of this model, estimates by {how} are on average at most "
        f"{shown(max(gap + half_width, 0.0))} nats a text too low (95 %)."
    )
    if calibration.is_exact:
        sentence = (
            f"Estimates of these {len(texts):,} texts are exact. Of texts whose "
            "estimates are not they say nothing: longer ones may be such."
        )
    elif not calibration.is_told:
        sentence = (
            f"These {len(texts):,} texts do not tell how far others are apart: give "
            "more --texts (10 that end in time at least)."
        )
    return "\n".join([head, *aligned(cells, right=True), sentence])
