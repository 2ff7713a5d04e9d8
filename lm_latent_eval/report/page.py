"""One page of HTML that compares runs (``lm-latent-eval report``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from textwrap import shorten
from typing import Any

import jinja2
import torch

import lm_latent_eval
from lm_latent_eval.estimators import Bound, log_grid, sample_size_curve
from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.estimators.standard_errors import pooled_degrees
from lm_latent_eval.files import write_text
from lm_latent_eval.report import charts
from lm_latent_eval.report.compare import (
    Asked,
    Comparison,
    Side,
    compare,
    described,
    more,
    rank,
)
from lm_latent_eval.report.compare.analysis import texts_of
from lm_latent_eval.report.compare.sides import bits
from lm_latent_eval.report.compare.tasks import first_of_tasks
from lm_latent_eval.report.compare.text import (
    BOUNDS,
    ERRORS,
    RANKED,
    better_of,
    by_task,
    difference_of,
    pair_of,
    span,
    standing_rows,
)
from lm_latent_eval.report.compare.texts import text_of
from lm_latent_eval.report.export.statement import slack
from lm_latent_eval.report.numbers import RATES, numbers
from lm_latent_eval.report.tables import error, frame, one_line, readable
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import CERTIFIED, UNKNOWN
from lm_latent_eval.scoring.totals import Totals

WORST = 20
"""Documents shown."""
SHOWN = 80
"""Characters that are shown of a text."""
FLAT = 1.1
"""Times the least effective sample size that the largest one is, where they differ."""

Sides = Mapping[str, Sequence[Sequence[Run]]]


def write(
    sides: Sides,
    labels: Mapping[str, str],
    output: Path,
    figures: Path | None = None,
    asked: Asked | None = None,
) -> None:
    """Write the page.

    Args:
        sides: Name -> the runs of a model, each with its tasks.
        labels: Name -> where they are from.
        output: The file.
        figures: A folder for the charts as PNG, SVG and PDF; None writes none.
        asked: What to compare; None is all by itself.

    Raises:
        ValueError: If there is nothing to show.
        ModuleNotFoundError: If matplotlib is missing; says how to install it.
    """
    asked = asked or Asked()
    source = files(__package__).joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    compared: list[Comparison] = []
    tasks = [
        _task(name, some, asked, compared) for name, some in _by_task(sides).items()
    ]
    groups = _groups(sides, asked, compared)
    whole = [*groups, *compared]
    several = len({each.task for each in whole}) > 1
    page = environment.from_string(source).render(
        version=lm_latent_eval.__version__,
        date=_day(datetime.now(UTC)),
        models=[_about(name, runs, labels.get(name)) for name, runs in sides.items()],
        overview=_filled(by_task(whole)) if several else [],
        standings=standing_rows(whole) if several else [],
        ranked=RANKED,
        tasks=[*_of_groups(groups, asked), *tasks],
        cells=_cells,
        svg=charts.svg,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, page)
    if figures:
        for task in tasks:
            for each in (task["picture"], *task.get("charts", ())):
                if each["drawn"]:
                    name = f"{task['name']} {each['title']}".lower()
                    charts.save(each["drawn"], figures / re.sub(r"[^\w.]+", "-", name))


def _about(
    name: str, runs: Sequence[Sequence[Run]], label: str | None
) -> dict[str, str]:
    """Return what a model is called, where its runs are from, and of what day."""
    settings = [run.settings for some in runs for run in some]
    days = {
        _day(datetime.fromtimestamp(float(said["date"]), UTC))
        for said in settings
        if isinstance(said.get("date"), int | float)
    }
    versions = {
        f"lm_latent_eval {v}" for s in settings if (v := s.get("lm_latent_eval"))
    }
    told = [*sorted(days), *sorted(versions)]
    return {"name": name, "label": label or "", "told": ", ".join(told)}


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d}"


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[tuple[Any, str]]]:
    """Return the cells of rows with what is shown of them.

    A number has the decimals of its own error: a column that begins with ``±`` has the
    errors of the one before.
    """
    table = frame(rows)
    before, errors = "", dict(ERRORS)
    for name in table.columns:
        if not name.startswith("±"):
            before = name
        elif before not in ERRORS:
            errors[before] = (*errors.get(before, ()), name)
    told = readable(table, errors).to_numpy()
    values = table.astype(object).where(table.notna(), None).to_numpy()
    return [[*zip(*pair, strict=True)] for pair in zip(values, told, strict=True)]


def _by_task(sides: Sides) -> dict[str, dict[str, list[Run]]]:
    found: dict[str, dict[str, list[Run]]] = {}
    for name, runs in sides.items():
        for run in runs:
            for task, each in first_of_tasks(run).items():
                found.setdefault(task, {}).setdefault(name, []).append(each)
    return found


def _groups(
    sides: Sides, asked: Asked, known: Sequence[Comparison]
) -> list[Comparison]:
    """Compare in groups of tasks, whose tasks are clusters."""
    try:
        found = compare(sides, asked) if len(sides) > 1 else []
    except ValueError:  # said of the task that it is about
        return []
    return [each for each in found if each.task not in {one.task for one in known}]


def _of_groups(found: Sequence[Comparison], asked: Asked) -> list[dict[str, Any]]:
    groups: dict[str, list[Comparison]] = {}
    for each in found:
        groups.setdefault(each.task, []).append(each)
    return [
        {"name": name, "models": [], **_verdicts(some, asked)}
        for name, some in groups.items()
    ]


def _task(
    task: str, sides: dict[str, list[Run]], asked: Asked, every: list[Comparison]
) -> dict[str, Any]:
    """Return the part on a task, and add its comparisons to ``every`` one."""
    compared: list[Comparison] = []
    refused = ""
    if len(sides) > 1:
        runs = {name: [[run] for run in some] for name, some in sides.items()}
        try:
            compared = compare(runs, asked)
        except ValueError as err:
            refused = str(err)
    every += compared
    apart = {
        name if len(some) == 1 else f"{name}, run {number}": run
        for name, some in sides.items()
        for number, run in enumerate(some, start=1)
    }
    kept = [Side.of(name, [run]) for name, run in apart.items()]
    rows = [
        _model(each, run, kept) for each, run in zip(kept, apart.values(), strict=True)
    ]
    part = {
        "name": task,
        "models": _filled(rows),
        **_verdicts(compared, asked),
        "refused": refused,
    }
    if not all(run.is_of_texts for run in apart.values()):
        return part
    drawn = [*_charts(apart)]
    if part["picture"]["drawn"] is None:
        part["picture"], *drawn = drawn
    return {
        **part,
        "charts": drawn,
        "worst": _filled(_worst(apart)),
        "gaps": [_gap(each) for each in compared],
    }


def _filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Leave out columns in which no row has anything."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) not in (None, "", UNKNOWN) for row in rows)
    ]
    return [{name: row.get(name) for name in names} for row in rows]


def _verdicts(compared: Sequence[Comparison], asked: Asked) -> dict[str, Any]:
    """Return the first screen of a task: verdicts, confidence and chart."""
    ranks = rank(compared)
    wanted = [] if asked.power is None else [more(e, asked.power) for e in compared]
    picture: dict[str, Any] = {"title": "Differences", "drawn": None}
    if compared:
        bands = [_band(each) for each in compared]
        picture["drawn"] = charts.intervals(bands, _scale(compared[0]))
        picture["note"] = _band_note(compared)
    return {
        "says": [each.verdict for each in ranks] or [e.verdict for e in compared],
        "more": [str(each) for each in wanted],
        "verdicts": [each.verdict for each in compared] if ranks else [],
        "ranking": [
            {"model": name, each.metric: value, "not told apart": each.letters[name]}
            for each in ranks
            for name, value in each.models
        ],
        "picture": picture,
        "differences": _filled([_difference(each) for each in compared]),
        "notes": [*dict.fromkeys(note for each in compared for note in each.notes)],
    }


def _difference(each: Comparison) -> dict[str, Any]:
    """Return a row of the table of differences: first what decides."""
    d, a = each.difference, each.clusters
    return {
        "difference of": pair_of(each),
        each.metric: difference_of(each),
        "at 95 %": span(each),
        "better": better_of(each),
        "over draws": f"± {error(d.draws_stderr)}",
        "over texts" if each.answers is None else "over questions": (
            f"± {error(d.texts_stderr)}"
        ),
        "p": error(each.p_value if each.adjusted is None else each.adjusted),
        each.units: f"{d.num_texts:,}" + (f", {a}" if a else ""),
    }


def _band_note(compared: Sequence[Comparison]) -> str:
    what = compared[0].units
    if compared[0].clusters:
        what = f"clusters of {what}"
    return f"Band: 95 % of {what} drawn again, draws included, all pairs together."


def _gap(each: Comparison) -> dict[str, Any]:
    """Return where a difference is: the texts that have most of it."""
    total = math.fsum(each.parts["bits"])
    return {
        "pair": pair_of(each),
        "texts": [
            {
                "document": _named(part.name, part.text),
                "bits": part.bits,
                "± draws": part.draws_stderr,
                "share of the difference": f"{part.bits / total:.1%}" if total else "",
            }
            for part in texts_of(each).itertuples(index=False)
        ],
    }


def _named(name: str, text: str) -> str:
    """Name a document by its number and how it begins, where its text is known."""
    if not text:
        return name
    return f"{name}: {one_line(shorten(text, SHOWN, placeholder=' ...'))}"


def _model(side: Side, run: Run, others: Sequence[Side]) -> dict[str, Any]:
    """Return a row of the table of models, by column."""
    what = described(side, others) + ("" if run.finished else ", not finished")
    row: dict[str, Any] = {"model": side.name}
    found = numbers(run)
    if not run.is_of_texts:
        for name, number in [*found.items()][:1]:  # none where nothing is judged
            metric = "accuracy" if name == "acc" else name
            row |= {metric: number.value, "± questions": number.stderr}
        answers = None if run.answers else len(run.units)
        return row | {"answers": answers, "what": what}
    for metric in ("bits_per_byte", "word_perplexity"):
        number = found[metric]
        row |= {
            metric.replace("_", " "): number.value,
            f"± texts, of {metric.split('_')[0]}": number.stderr,
            f"± Monte Carlo, of {metric.split('_')[0]}": number.monte_carlo_stderr,
        }
    row["bound"] = BOUNDS[Bound.weakest(a.estimate.bound for a in run.answers)]
    if _sizes_differ(run):
        for metric, short in (
            ("effective_samples_median", "effective samples, median"),
            ("effective_samples_minimum", "effective samples, least"),
            ("share_pareto_k_above_0.7", "Pareto k > 0.7"),
        ):
            row[short] = found[metric].value
    return row | {"what": what}


def _sizes_differ(run: Run) -> bool:
    """Whether effective samples tell texts apart.

    Those of a few passes that are alike are all as many as the passes.
    """
    every = [answer.estimate.effective_sample_size for answer in run.answers]
    known = [size for size in every if size is not None]
    return bool(known) and max(known) > FLAT * min(known)


# -- charts --------------------------------------------------------------------------


def _charts(scored: dict[str, Run]) -> Iterator[dict[str, Any]]:
    """Yield the charts of texts, each with a title and what its marks are."""
    yield {
        "title": "Models",
        "drawn": charts.intervals(
            [_interval(name, run) for name, run in scored.items()],
            "bits per byte",
            names=[*scored],
        ),
        "note": "Band, where every text has an error: 95 % of texts drawn again, the "
        "draws' error included. Upright line: what it is at most, with 95 % confidence "
        "over draws.",
    }
    yield from _over_samples(scored)
    yield from _by_length({n: run for n, run in scored.items() if _sizes_differ(run)})


def _interval(name: str, run: Run) -> charts.Band:
    side = Side.of(name, [run])
    keys, sizes = run.units["unit"].tolist(), run.units["bytes"]
    copies = run.units["digest"].duplicated().any()
    # What a text takes, compared with taking nothing: an interval of its own.
    found = PairedDifference.of(
        side.nats(keys)[0],
        torch.tensor(sizes.to_numpy()),
        draws_stderr=side.draws_in_sums(keys),
        draws_degrees=pooled_degrees(side.draws_parts(keys)),
        too_high=side.too_high(keys),
        clusters=run.units["digest"].tolist() if copies else None,
    )
    bound = side.bound
    most = bits(found.value + slack(run.answers, bound) / int(sizes.sum()))
    low, high = map(bits, found.interval)
    known = RATES["bits_per_byte"].rate(Totals(run.answers)).stderr is not None
    if not known or math.isinf(high - low):
        low = high = bits(found.value)
    exact = bound is Bound.EXACT or bound not in CERTIFIED
    return name, bits(found.value), (low, high), None if exact else most


def _band(each: Comparison) -> charts.Band:
    value, (low, high) = each.difference.value, each.interval
    if math.isinf(high - low):  # too few texts for an interval
        low = high = value
    scale = 100 if each.is_share else 1
    return pair_of(each), scale * value, (scale * low, scale * high), None


def _scale(each: Comparison) -> str:
    if not each.is_share:
        return each.metric
    return f"{each.metric}, percentage points"


def _over_samples(scored: dict[str, Run]) -> Iterator[dict[str, Any]]:
    curves = {name: _curve(run.answers) for name, run in scored.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    if curves:
        yield {
            "title": "More histories",
            "drawn": charts.lines(
                curves, [*scored], "histories a text", "bits per byte"
            ),
            "note": "From the first histories of every text.",
        }


def _curve(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Return bits per byte from the first k weights of every text, by its histories.

    A weight of a draw is one history; that of a pass is of as many as it has.
    """
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
    each = fmean(e.num_samples / len(e.log_weights) for e in drawn)
    found = zip(sizes, totals.tolist(), strict=True)
    return [
        (k * each, bits(-total / size)) for k, total in found if math.isfinite(total)
    ]


def _by_length(scored: dict[str, Run]) -> Iterator[dict[str, Any]]:
    clouds = {}
    for name, run in scored.items():
        sizes = [(a.words, a.estimate.effective_sample_size) for a in run.answers]
        if known := [(words, size) for words, size in sizes if size is not None]:
            clouds[name] = known
    if clouds:
        yield {
            "title": "Effective samples by length",
            "drawn": charts.points(clouds, [*scored], "words", "effective samples"),
            "note": "One point a text; near 1, one draw decides its number.",
        }


def _worst(scored: dict[str, Run]) -> list[dict[str, Any]]:
    """Return the documents that take most bits a byte of any model."""
    rows = [
        (bits(-answer.estimate.log_evidence / answer.bytes), name, unit, text, answer)
        for name, run in scored.items()
        for unit, text, answer in zip(
            run.units["name"], text_of(run.units), run.answers, strict=True
        )
        if answer.bytes
    ]
    rows.sort(key=lambda each: each[0], reverse=True)
    return [
        {
            "document": _named(unit, text),
            "model": name,
            "bits a byte": value,
            "nats": -answer.estimate.log_evidence,
            "± Monte Carlo": answer.estimate.stderr,
            "words": answer.words,
            "effective samples": answer.estimate.effective_sample_size,
            "Pareto k": answer.estimate.pareto_k,
        }
        for value, name, unit, text, answer in rows[:WORST]
    ]
