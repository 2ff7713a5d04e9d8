"""``lm-latent-eval report``: what runs found, compared on one page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

import lm_latent_eval
from lm_latent_eval.durable import write_text
from lm_latent_eval.estimators import Bound, Estimate, log_grid, sample_size_curve
from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.extras import require
from lm_latent_eval.report.compare import (
    QuestionComparison,
    Side,
    TextComparison,
    compare,
    described,
)
from lm_latent_eval.report.compare.text import BOUNDS
from lm_latent_eval.report.compare.writing import bits
from lm_latent_eval.report.export.statement import slack
from lm_latent_eval.report.numbers import numbers
from lm_latent_eval.report.page import charts
from lm_latent_eval.report.tabular import alike
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import CERTIFIED
from lm_latent_eval.scoring.records import Record

WORST = 20
"""Documents shown."""
UNRELIABLE = 0.7
"""Pareto k above which an error is not known."""

Sides = Mapping[str, Sequence[Sequence[Record]]]


def write(
    sides: Sides,
    labels: Mapping[str, str],
    output: Path,
    figures: Path | None = None,
) -> None:
    """Write the page.

    Args:
        sides: Name -> the runs of a model, each with its records.
        labels: Name -> where they are from.
        output: The file.
        figures: A folder for the charts as PNG, SVG and PDF; None writes none.

    Raises:
        ValueError: If there is nothing to show.
        ModuleNotFoundError: If a library is missing; says how to install it.
    """
    jinja2 = require("jinja2", extra="report")
    source = files(__package__).joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    tasks = [_task(task, some) for task, some in _by_task(sides).items()]
    page = environment.from_string(source).render(
        version=lm_latent_eval.__version__,
        labels=labels,
        tasks=tasks,
        cells=_cells,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, page)
    if figures:
        _save_charts(tasks, figures)


def _save_charts(tasks: Sequence[Mapping[str, Any]], folder: Path) -> None:
    for task in tasks:
        for each in task.get("charts", ()):
            if each["drawn"]:
                name = f"{task['name']} {each['title']}".lower()
                each["drawn"].save(folder / re.sub(r"[^\w.]+", "-", name))


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[tuple[Any, str]]]:
    """Return the cells of rows with what is shown of them, numbers alike by column.

    Words are shown as they are, and nothing for None.
    """
    columns = []
    for values in zip(*(row.values() for row in rows), strict=True):
        shown = alike([v for v in values if isinstance(v, float)])
        columns.append(
            [
                (v, "" if v is None else shown(v) if isinstance(v, float) else str(v))
                for v in values
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _by_task(sides: Sides) -> dict[str, dict[str, list[Record]]]:
    found: dict[str, dict[str, list[Record]]] = {}
    for name, runs in sides.items():
        for run in runs:
            for record in run:
                found.setdefault(record.task, {}).setdefault(name, []).append(record)
    return found


def _task(task: str, sides: dict[str, list[Record]]) -> dict[str, Any]:
    """Return all that the page says of a task."""
    first = {name: records[0] for name, records in sides.items()}
    asked = any(a.is_greedy is not None for x in first.values() for a in x.answers)
    runs = {name: [[record] for record in records] for name, records in sides.items()}
    compared: Sequence[TextComparison | QuestionComparison] = []
    refused = ""
    if len(sides) > 1:
        try:
            compared = compare(runs)
        except ValueError as err:
            refused = str(err)
    shown: dict[str, Any] = {
        "name": task,
        "models": [_model(name, records) for name, records in sides.items()],
        "verdicts": [each.verdict for each in compared],
        "refused": refused,
    }
    if asked:
        return shown
    differences = [each for each in compared if isinstance(each, TextComparison)]
    return {
        **shown,
        "differences": [_difference(each) for each in differences],
        "charts": [c for c in _charts(first, differences) if c["drawn"] or c["note"]],
        "worst": _worst(first),
    }


def _model(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return a row of the table of models, by column."""
    side = Side.of(name, records)
    found = numbers(records[0])
    row: dict[str, Any] = {"model": name, "what": described(side)}
    if "acc" in found:
        return {
            **row,
            "accuracy": found["acc"].value,
            "± questions": found["acc"].stderr,
        }
    for metric in ("bits_per_byte", "word_perplexity"):
        number = found[metric]
        row |= {
            metric.replace("_", " "): number.value,
            f"± texts, of {metric.split('_')[0]}": number.stderr,
            f"± Monte Carlo, of {metric.split('_')[0]}": number.monte_carlo_stderr,
        }
    row["bound"] = BOUNDS[side.bound]
    for metric, short in (
        ("effective_samples_median", "effective samples, median"),
        ("effective_samples_minimum", "effective samples, least"),
        ("share_pareto_k_above_0.7", "Pareto k > 0.7"),
    ):
        row[short] = found[metric].value
    return row


def _difference(each: TextComparison) -> dict[str, Any]:
    unit, (_, _, found) = next(iter(each.units.items()))
    a, b = (side.name for side in each.sides)
    return {
        "pair": f"{a} - {b}",
        f"bits a {unit.removesuffix('s')}": bits(found.value),
        "± together": bits(found.stderr),
        "± draws": bits(found.draws_stderr),
        "± texts": bits(found.texts_stderr),
        "from": bits(found.interval[0]),
        "to (95 %)": bits(found.interval[1]),
        "texts won": found.share_won,
        "decided": "yes" if each.decided else "no",
    }


# -- charts --------------------------------------------------------------------------


def _charts(
    first: dict[str, Record], differences: Sequence[TextComparison]
) -> list[dict[str, Any]]:
    """Return the charts of texts, each with a title and what its marks are."""
    return [
        {
            "title": "Models",
            "drawn": charts.intervals(
                [_interval(name, record) for name, record in first.items()],
                "bits per byte",
                names=[*first],
            ),
            "note": "Band: 95 % of texts drawn again, the draws' error included. "
            "Upright line: what it is at most, with 95 % confidence over draws.",
        },
        {
            "title": "Differences",
            "drawn": charts.intervals([_band(each) for each in differences], "bits")
            if differences
            else None,
            "note": "Band: 95 % of texts drawn again." if differences else "",
        },
        _over_samples(first),
        _by_length(first),
        _tails(first),
    ]


def _interval(
    name: str, record: Record
) -> tuple[str, float, tuple[float, float], float | None]:
    side = Side.of(name, [record])
    # What a text takes, compared with taking nothing: an interval of its own.
    found = PairedDifference.of(
        side.nats([*side.runs[0]])[0],
        torch.tensor([answer.bytes for answer in record.answers]),
        draws_stderr=side.draws_stderr([*side.runs[0]]),
    )
    bound = side.bound
    units = sum(answer.bytes for answer in record.answers)
    most = bits(found.value + slack(record.answers, bound) / units)
    band = tuple(map(bits, found.interval))
    exact = bound is Bound.EXACT or bound not in CERTIFIED
    return name, bits(found.value), (band[0], band[1]), None if exact else most


def _band(
    each: TextComparison,
) -> tuple[str, float, tuple[float, float], float | None]:
    found = next(iter(each.units.values()))[2]
    low, high = map(bits, found.interval)
    return (
        " - ".join(side.name for side in each.sides),
        bits(found.value),
        (low, high),
        None,
    )


def _over_samples(first: dict[str, Record]) -> dict[str, Any]:
    curves = {
        name: curve
        for name, record in first.items()
        if (curve := _curve(record.answers))
    }
    title = "More samples"
    if not curves:
        note = (
            "Records without log-weights have no curve: --model_args log_weights=true."
        )
        drawn = any(e.effective_sample_size for e in _estimates([*first.values()]))
        return {"title": title, "drawn": None, "note": note if drawn else ""}
    return {
        "title": title,
        "drawn": charts.lines(curves, [*first], "samples a text", "bits per byte"),
        "note": "From the first samples of every text.",
    }


def _estimates(records: Sequence[Record]) -> Iterator[Estimate]:
    return (answer.estimate for record in records for answer in record.answers)


def _curve(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Return bits per byte from the first k draws of every text, by k."""
    estimates = [answer.estimate for answer in answers]
    drawn = [e for e in estimates if e.bound is not Bound.EXACT]
    least = min((len(e.log_weights) for e in drawn), default=0)
    if least < 2:
        return []
    log_w = torch.tensor([e.log_weights[:least] for e in drawn], dtype=torch.float64)
    sure = math.fsum(e.log_evidence for e in estimates if e.bound is Bound.EXACT)
    sizes = log_grid(least)
    totals = sample_size_curve(log_w, sizes).sum(0) + sure
    size = sum(answer.bytes for answer in answers)
    found = zip(sizes, totals.tolist(), strict=True)
    return [(k, bits(-total / size)) for k, total in found if math.isfinite(total)]


def _by_length(first: dict[str, Record]) -> dict[str, Any]:
    clouds = {
        name: some
        for name, record in first.items()
        if (
            some := [
                (answer.words, answer.estimate.effective_sample_size)
                for answer in record.answers
                if answer.estimate.effective_sample_size is not None
            ]
        )
    }
    return {
        "title": "Effective samples by length",
        "drawn": charts.points(clouds, [*first], "words", "effective samples", least=1)
        if clouds
        else None,
        "note": "One point a text; near 1, one draw decides its number."
        if clouds
        else "",
    }


def _tails(first: dict[str, Record]) -> dict[str, Any]:
    known = {
        name: some
        for name, record in first.items()
        if (
            some := [
                e.pareto_k
                for e in _estimates([record])
                if e.pareto_k is not None and math.isfinite(e.pareto_k)
            ]
        )
    }
    return {
        "title": "Pareto k",
        "drawn": charts.shares(
            known, [*first], "k", "share of these texts above", mark=UNRELIABLE
        )
        if known
        else None,
        "note": f"Of {sum(map(len, known.values())):,} texts that have a k: few draws, "
        "or equal ones, have none. Beyond the dotted line, 0.7, the draws' error of a "
        "text is not known."
        if known
        else "",
    }


def _worst(first: dict[str, Record]) -> list[dict[str, Any]]:
    """Return the documents that take most bits a byte of any model."""
    rows = [
        (bits(-answer.estimate.log_evidence / answer.bytes), name, answer)
        for name, record in first.items()
        for answer in record.answers
        if answer.bytes
    ]
    rows.sort(key=lambda each: each[0], reverse=True)
    return [
        {
            "document": answer.index,
            "digest": answer.text,
            "model": name,
            "bits a byte": value,
            "words": answer.words,
            "± Monte Carlo, nats": answer.estimate.stderr,
            "effective samples": answer.estimate.effective_sample_size,
            "Pareto k": answer.estimate.pareto_k,
        }
        for value, name, answer in rows[:WORST]
    ]
