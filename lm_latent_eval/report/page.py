"""One page of HTML that compares runs (``lm-latent-eval report``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch

import lm_latent_eval
from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.files import write_text
from lm_latent_eval.report import charts
from lm_latent_eval.report.compare import (
    Comparison,
    Side,
    compare,
    described,
    power,
    rank,
    standings,
)
from lm_latent_eval.report.compare.analysis import by_task
from lm_latent_eval.report.compare.sides import bits, sampling_errors
from lm_latent_eval.report.compare.tasks import first_of_tasks
from lm_latent_eval.report.compare.text import (
    BOUNDS,
    ERRORS,
    RANKED,
    rows_in_task,
    rows_of_tasks,
)
from lm_latent_eval.report.export.statement import slack
from lm_latent_eval.report.numbers import RATES, numbers
from lm_latent_eval.report.tables import filled, readable
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.metrics import CERTIFIED
from lm_latent_eval.scoring.totals import Totals

Sides = Mapping[str, Sequence[Sequence[Run]]]
Part = dict[str, Any]
"""Part of the page on a task."""


def write(
    sides: Sides,
    labels: Mapping[str, str],
    output: Path,
    *,
    cluster: str | None = None,
    points: float | None = None,
) -> None:
    """Write the page.

    Args:
        sides: Name -> the runs of a model, each with its tasks.
        labels: Name -> where they are from.
        output: The file.
        cluster: Field that names what texts are part of, see ``find_clusters``.
        points: Points whose power is told; None: it is not.

    Raises:
        ValueError: If there is nothing to show.
        ModuleNotFoundError: If matplotlib is missing; says how to install it.
    """
    of_tasks: dict[str, dict[str, list[Run]]] = {}
    for name, runs in sides.items():
        for run in runs:
            for task, each in first_of_tasks(run).items():
                of_tasks.setdefault(task, {}).setdefault(name, []).append(each)
    compared: list[Comparison] = []
    tasks = []
    for task, runs_of in of_tasks.items():
        of_task = {name: [[run] for run in runs] for name, runs in runs_of.items()}
        pairs, refused = _compared(of_task, cluster)
        tasks.append(_task(task, runs_of, pairs, points) | {"refused": refused})
        compared += pairs
    several = len(by_task(compared)) > 1
    source = files(__package__).joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    page = environment.from_string(source).render(
        version=lm_latent_eval.__version__,
        date=_day(datetime.now(UTC)),
        models=[_about(name, runs, labels.get(name)) for name, runs in sides.items()],
        overview=rows_of_tasks(compared) if several else [],
        standings=standings(compared) if several else [],
        ranked=RANKED,
        tasks=tasks,
        cells=_cells,
        svg=charts.svg,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, page)


def _about(
    name: str, runs: Sequence[Sequence[Run]], label: str | None
) -> dict[str, str]:
    settings = [run.settings for tasks in runs for run in tasks]
    days = {
        _day(datetime.fromtimestamp(float(each["date"]), UTC))
        for each in settings
        if isinstance(each.get("date"), int | float)
    }
    versions = {
        f"lm_latent_eval {v}" for s in settings if (v := s.get("lm_latent_eval"))
    }
    origin = ", ".join([*sorted(days), *sorted(versions)])
    return {"name": name, "label": label or "", "told": origin}


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d}"


def _cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], Any]:
    """Return the columns that are not empty, and their cells with the words shown.

    A number has the decimals of its own error: a column that begins with ``±`` has the
    errors of the one before.
    """
    table = filled(rows)
    before, errors = "", dict(ERRORS)
    for name in table.columns:
        if not name.startswith("±"):
            before = name
        elif before not in ERRORS:
            errors[before] = (*errors.get(before, ()), name)
    words = readable(table, errors).to_numpy()
    cells = [
        [*zip(*pair, strict=True)] for pair in zip(table.to_numpy(), words, strict=True)
    ]
    return [*table.columns], cells


def _compared(sides: Sides, cluster: str | None) -> tuple[list[Comparison], str]:
    """Compare sides, or return the reason why they do not compare."""
    try:
        return (compare(sides, cluster) if len(sides) > 1 else []), ""
    except ValueError as err:
        return [], str(err)


def _task(
    task: str,
    sides: dict[str, list[Run]],
    compared: list[Comparison],
    points: float | None,
) -> Part:
    runs = {
        name if len(several) == 1 else f"{name}, run {n}": run
        for name, several in sides.items()
        for n, run in enumerate(several, start=1)
    }
    apart = [Side(name, [run]) for name, run in runs.items()]
    part = _verdicts(task, compared, points)
    part["models"] = [_model(side, apart) for side in apart]
    if all(run.is_of_texts for run in runs.values()):
        part["charts"].append(_models(runs))
    return part


def _verdicts(task: str, compared: Sequence[Comparison], points: float | None) -> Part:
    ranks = rank(compared)
    drawn = []
    if compared:
        first = compared[0]
        what = f"clusters of {first.units}" if first.in_clusters else first.units
        points_of = ", percentage points" if first.is_share else ""
        bands = [_band(each) for each in compared]
        chart = {
            "title": "Differences",
            "drawn": charts.intervals(bands, f"{first.metric}{points_of}"),
            "note": f"Band: 95 % of {what} drawn again, draws included, all pairs "
            "together.",
        }
        drawn = [chart]
    verdicts = [each.verdict for each in compared]
    powers = [] if points is None else [power(each, points) for each in compared]
    return {
        "name": task,
        "says": [each.verdict for each in ranks] or verdicts,
        "more": [each.sentence for each in powers],
        "verdicts": verdicts if ranks else [],
        "ranking": [
            {"model": name, each.metric: value, "not told apart": each.letters[name]}
            for each in ranks
            for name, value in each.models
        ],
        "charts": drawn,
        "differences": rows_in_task(compared),
        "notes": [*dict.fromkeys(note for each in compared for note in each.notes)],
    }


def _band(each: Comparison) -> charts.Band:
    value, (low, high) = each.difference.value, each.interval
    if math.isinf(high - low):  # too few texts for an interval
        low = high = value
    scale = 100 if each.is_share else 1
    return each.pair, scale * value, (scale * low, scale * high), None


def _model(side: Side, others: Sequence[Side]) -> dict[str, Any]:
    [run] = side.runs
    what = described(side, others) + ("" if run.finished else ", not finished")
    row: dict[str, Any] = {"model": side.name}
    metrics = numbers(run)
    if not run.is_of_texts:
        for name, number in [*metrics.items()][:1]:  # none where nothing is judged
            metric = "accuracy" if name == "acc" else name
            row |= {metric: number.value, "± questions": number.stderr}
        answers = None if run.answers else len(run.units)
        return row | {"answers": answers, "what": what}
    for metric in ("bits_per_byte", "word_perplexity"):
        number, short = metrics[metric], metric.split("_")[0]
        row |= {
            metric.replace("_", " "): number.value,
            f"± texts, of {short}": number.stderr,
            f"± Monte Carlo, of {short}": number.monte_carlo_stderr,
        }
    row["bound"] = BOUNDS[side.bound]
    return row | {"what": what}


# -- charts --------------------------------------------------------------------------


def _models(runs: dict[str, Run]) -> dict[str, Any]:
    bands = [_interval(name, run) for name, run in runs.items()]
    return {
        "title": "Models",
        "drawn": charts.intervals(bands, "bits per byte", names=[*runs]),
        "note": "Band, where every text has an error: 95 % of texts drawn again, the "
        "draws' error included. Upright line: what it is at most, with 95 % confidence "
        "over draws.",
    }


def _interval(name: str, run: Run) -> charts.Band:
    side = Side(name, [run])
    keys, sizes = run.units["unit"].tolist(), run.units["bytes"]
    copies = run.units["digest"].duplicated().any()
    # What a text takes, compared with taking nothing: an interval of its own.
    rate = PairedDifference.of(
        torch.from_numpy(-side.column("score", keys)[0] / math.log(2)),
        torch.tensor(sizes.to_numpy()),
        clusters=run.units["digest"].tolist() if copies else None,
        **sampling_errors([side], keys),
    )
    most = rate.value + bits(slack(run.answers, side.bound)) / int(sizes.sum())
    low, high = rate.interval
    has_error = RATES["bits_per_byte"].rate(Totals(run.answers)).stderr is not None
    if not has_error or math.isinf(high - low):
        low = high = rate.value
    exact = side.bound is Bound.EXACT or side.bound not in CERTIFIED
    return name, rate.value, (low, high), None if exact else most
