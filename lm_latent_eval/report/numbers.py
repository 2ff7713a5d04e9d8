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
    *("estimator", "num_samples", "proposal", "temperature", "seed", "unk"),
    *("target_stderr", "max_samples", "bounds"),
)
NO_WEIGHTS = "no log-weights in the record: run with --model_args log_weights=true"


T = TypeVar("T")


class NoNumberError(ValueError):
    """A task has no number of the kind that is asked for."""


def with_numbers(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Return what is found of each task; one without a number is left out, by name.

    Raises:
        NoNumberError: If no task has one.
    """
    found: list[T] = []
    without: list[NoNumberError] = []
    for task in tasks:
        try:
            found.append(task())
        except NoNumberError as err:
            without.append(err)
    if without and not found:
        raise without[0]
    for each in without:
        logger.warning("%s: the task is left out", each)
    return found


@dataclass(frozen=True)
class Number:
    """A metric's value with its errors; each is None where it is not known."""

    value: float | str
    """Or why there is none."""
    stderr: float | None = None
    """Over texts or questions, the draws' part included."""
    monte_carlo_stderr: float | None = None
    """Of these texts: from draws of the latents, and what they may have missed."""
    draws_stderr: float | None = None
    """The same by the delta method, blind to missed latents."""


@dataclass(frozen=True)
class Unit:
    """Unit of a rate."""

    name: str
    value: Callable[[float], float]
    """Conversion of nats a unit."""
    rate: Rates
    """The same of a corpus, with errors."""


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
    foreign = "strings_scored" in run.settings
    found = numbers_of(Totals(run.answers))
    return {n: each for n, each in found.items() if not (foreign and "token" in n)}


def numbers_of(totals: Totals) -> dict[str, Number]:
    """Return the numbers of whole texts."""
    names = [name for name in METRICS if not name.endswith("_stderr")]
    return {name: _number(name, totals) for name in names}


def _mean(values: Sequence[float]) -> Number:
    """Return a mean over questions."""
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
    right = {a.index: a.accuracy for a in answers if a.accuracy is not None}
    if not right:
        return {}
    found = {"acc": _mean([*right.values()])}
    ties = {a.index for a in answers if a.tied and a.accuracy is not None}
    return found | {"questions_tied": Number(len(ties))} if ties else found


ERRORS = {"value": ("± over texts", "± Monte Carlo", "± as draws tell")}
"""Columns with the errors of ``rows``."""


def rows(run: Run) -> list[dict[str, Any]]:
    """Return the numbers of a run as the rows of a table.

    In the place of one that there is not stands why.
    """
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
    """Return what is said beside numbers of how they were made, as far as it counts.

    Example:
        >>> stated({"estimator": "exact", "num_samples": 100, "unk": "spelled"})
        {'estimator': 'exact', 'unk': 'spelled'}
    """
    idle = set() if settings.get("target_stderr") else {"max_samples"}
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
    documents = run.units["unit"].nunique()
    if run.answers:
        documents = len({answer.index for answer in run.answers})
    found, size = numbers(run), ""
    if "token_perplexity" in found:
        tokens = sum(answer.tokens for answer in run.answers)
        size = _size(tokens, sum(answer.bytes for answer in run.answers))
    head = f"{run.task}: {documents:,} documents, {run.settings.get('model')}{size}"
    head += _progress(documents, run.settings, finished=run.finished)
    over = "± over texts" if run.is_of_texts else "± over questions"
    return _table(head, run.settings, found, over)


def table_of(settings: Mapping[str, Any], totals: Totals, *, finished: bool) -> str:
    """Return the numbers of a scored corpus for a terminal."""
    size = _size(totals.total("tokens"), totals.total("bytes"))
    head = f"{TASK}: {len(totals):,} documents, {settings.get('model')}{size}"
    head += _progress(len(totals), settings, finished=finished)
    return _table(head, settings, numbers_of(totals), "± over texts")


def _size(tokens: int, num_bytes: int) -> str:
    return f", {tokens:,} predicted tokens, {num_bytes:,} bytes"


def _progress(documents: int, settings: Mapping[str, Any], *, finished: bool) -> str:
    shard = f" (shard {settings['shard']})" if "shard" in settings else ""
    if finished:
        return shard
    of, only = settings.get("num_texts"), ""
    if isinstance(of, int) and documents < of and not shard:
        only = f": only {documents:,} of {of:,} texts"
    return f"{shard} (not finished{only})"


def _table(
    head: str, settings: Mapping[str, Any], found: Mapping[str, Number], over: str
) -> str:
    named = [f"{name}={value}" for name, value in stated(settings).items()]
    cells = [["", "", over, "± Monte Carlo", "± as draws tell"]]
    for name, number in found.items():
        if isinstance(number.value, str):
            cells.append([name, number.value])
            continue
        errors = (number.stderr, number.monte_carlo_stderr, number.draws_stderr)
        told = [*map(error, errors)]
        if name not in RATES and number.stderr is None:
            told = ["", "", ""]
        cells.append([name, written(name, number), *told])
    about = " ".join([f"checkpoint {settings.get('checkpoint')}", *named])
    lines = [head, f"  {about}", *aligned(cells, right=True)]
    return "\n".join(map(one_line, lines))


def written(name: str, number: Number) -> str:
    """Write a number with the decimals of its errors; an error has two digits."""
    if isinstance(number.value, str | int):
        return f"{number.value}"
    if name.endswith("_error"):
        return error(number.value)
    return shown(number.value, number.stderr, number.monte_carlo_stderr)


MOST_SHOWN = 3


def calibration_table(
    found: Calibration, settings: Mapping[str, Any], asked: int
) -> str:
    """Return the numbers, and the sentence that they come to.

    Args:
        found: What was measured.
        settings: How texts were scored: a scorer's ``fingerprint``.
        asked: How many texts were drawn, of which some may not have ended.
    """
    texts = found.texts
    left_out = asked - len(texts)
    tokens = sum(text.num_tokens for text in texts)
    lower = statistics.fmean(text.estimate.log_evidence for text in texts)
    how = f"{settings['estimator']}, num_samples={settings['num_samples']}"
    widest = sorted(texts, key=lambda text: -text.gap)[:MOST_SHOWN]
    head = f"{len(texts):,} texts drawn from the model, {tokens:,} predicted tokens"
    if left_out:
        head += f"; {left_out:,} others did not end in time and are left out"
    mean, apart = "apart (mean)", shown(found.gap)
    if found.is_told:
        mean = "apart (mean, 95 %)"
        apart = f"{shown(found.gap, found.half_width)} ± {error(found.half_width)}"
    gaps = ", ".join(shown(text.gap) for text in widest)
    cells = [
        [f"log p, estimated ({how})", shown(lower), "nats a text"],
        ["log p, bounded from above", shown(lower + found.gap), "nats a text"],
        [mean, apart, "nats a text"],
        ["median of the printed errors", error(found.printed), "nats"],
        ["texts without an error", f"{found.unknown}", ""],
        ["widest gaps", gaps, "nats"],
    ]
    most = max(found.gap + found.half_width, 0.0)
    sentence = (
        f"On texts of this model, estimates by {how} are on average at most "
        f"{shown(most)} nats a text too low (95 %)."
    )
    if found.is_exact:
        sentence = (
            f"Estimates of these {len(texts):,} texts are exact. Of texts whose "
            "estimates are not they say nothing: longer ones may be such."
        )
    elif not found.is_told:
        sentence = (
            f"These {len(texts):,} texts do not tell how far others are apart: give "
            "more --texts (10 that end in time at least)."
        )
    return "\n".join([head, *aligned(cells, right=True), sentence])
