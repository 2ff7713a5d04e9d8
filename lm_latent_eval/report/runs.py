"""Runs of lm-eval, inspect_ai and Every Eval Ever, read into tables of units.

A run is a folder or file of lm-eval (0.4 or 0.5), of ours, of inspect_ai, or of *Every
Eval Ever*.

Logs of inspect_ai are read in their JSON: a score an epoch of each sample. The fields
are those of its documentation ("Eval Logs"): ``eval``, ``samples`` with ``id``,
``epoch``, ``input``, ``metadata`` and ``scores``. Letters are read as its
``value_to_float`` reads them. A result of *Every Eval Ever* (schema 0.3) is an
aggregate ``NAME.json`` with its ``NAME_samples.jsonl`` beside it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_latent_eval.files import beside
from lm_latent_eval.options import whole
from lm_latent_eval.report import results as lm_eval_results
from lm_latent_eval.report.units import Run, as_fields, finite, of_answers
from lm_latent_eval.scoring.files import read_shard, together
from lm_latent_eval.text.files import digest, numbered_lines, read_text
from lm_latent_eval.values import parse


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Add the file and line to errors of another program's content."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as err:
        why = f"there is no {err}" if isinstance(err, KeyError) else err
        raise ValueError(f"{place}: {why}") from err


# -- Every Eval Ever -------------------------------------------------------------------

SAMPLES = "_samples.jsonl"
RATE = re.compile("perplexity|bits_per_byte")
"""Names of metrics that are no means over samples."""


def _read_archive(path: Path, content: Any, metric: str | None) -> list[Run]:
    """Read the scores of each sample of *Every Eval Ever*.

    Args:
        path: The aggregate.
        content: JSON of that file.
        metric: Name of a metric, or identity of its result; None is the first of a
            task.

    Raises:
        ValueError: If there are no samples beside it, or none of this metric, or this
            is a rate of likelihoods.
    """
    samples = beside(path, f"{path.stem}{SAMPLES}")
    if not samples.exists():
        raise ValueError(
            f"{path} has no {samples.name} beside it: aggregates alone do not pair. "
            "`every_eval_ever convert` writes both where the log it reads has samples"
        )
    tasks, names, lower = dict[str, str](), dict[str, str](), dict[str, bool]()
    with _naming(f"{path} is no result of schema 0.3"):
        for result in content["evaluation_results"]:
            key, config = (
                str(result.get("evaluation_result_id")),
                result["metric_config"],
            )
            tasks[key] = str(result["evaluation_name"])
            # The name of a metric: of results of inspect_ai that of the scorer.
            scorer, colon, _ = key.partition(":")
            names[key] = scorer if colon else str(config.get("metric_name"))
            lower[key] = bool(config.get("lower_is_better"))
        model = str(content["model_info"].get("name"))
    rates = {key for key, name in names.items() if RATE.search(name)}
    is_rate = metric in {names[key] for key in rates} | rates
    if is_rate or (rates and len(rates) == len(names)):
        raise ValueError(
            f"{path}: a rate of likelihoods is no mean over its samples; compare the "
            "runs themselves, a folder of --output_path or a file of `estimate`"
        )
    rows, runs = _rows(samples), dict[str, Run]()
    for key, task in tasks.items():
        is_requested = metric in (names[key], key) if metric else task not in runs
        if is_requested and key in rows and key not in rates:
            settings, units = (
                {"model": model, "estimator": "exact"},
                of_answers(rows[key]),
            )
            runs[task] = Run(
                task, names[key], settings, units, lower_is_better=lower[key]
            )
    if not runs:
        raise ValueError(
            f"{path}: no samples of {metric or 'any of its results'}; --metric is one "
            f"of {', '.join(sorted({*names.values()}))}"
        )
    return [*runs.values()]


def _rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {}
    repeats = Counter[tuple[str, str]]()
    for number, line in numbered_lines(path):
        with _naming(f"{path}, line {number}"):
            sample = parse(line, infinities=True)
            key = str(sample.get("evaluation_result_id")), str(sample["sample_id"])
            text = sample["input"].get("raw")
            score = finite("evaluation: score", sample["evaluation"]["score"])
            results.setdefault(key[0], []).append(
                {
                    "unit": key[1],
                    "score": score,
                    "repeat": repeats[key],
                    "digest": digest(text) if text and isinstance(text, str) else "",
                    "fields": as_fields(sample.get("metadata")),
                }
            )
            repeats[key] += 1
    return results


# -- inspect_ai ------------------------------------------------------------------------

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partly, incorrect, no answer."""
ENDING = ".eval"
"""Ending of inspect's own container, which is no JSON."""


def _read_inspect(path: Path, content: Any, metric: str | None) -> list[Run]:
    """Read the scores of a log of inspect_ai.

    Args:
        path: The file, for messages.
        content: JSON of that file.
        metric: Name of a scorer, or ``SCORER/KEY`` where its values have names; None is
            the first one.

    Raises:
        ValueError: If it has no samples, or not this scorer.
    """
    about, samples = content["eval"], content.get("samples")
    if not isinstance(about, dict) or not isinstance(samples, list) or not samples:
        raise ValueError(
            f"{path} has no samples: run inspect without --no-log-samples, and do not "
            "read the log with header_only"
        )
    rows, name = [], metric
    for number, sample in enumerate(samples, start=1):
        with _naming(f"{path}, sample {number}"):
            if not isinstance(sample, dict):
                raise ValueError(f"expected an object, not {sample!a:.40}")
            scores = _scores(sample)
            if not scores:  # it ended in an error
                continue
            name = next(iter(scores)) if name is None else name
            if name not in scores:
                raise ValueError(
                    f"no score {name}; --metric is one of {', '.join(scores)}"
                )
            rows.append(
                {
                    "unit": str(sample["id"]),
                    "score": finite(f"scores: {name}", scores[name]),
                    "repeat": whole("epoch", sample.get("epoch", 1), 1) - 1,
                    "digest": digest(_input(sample.get("input"))),
                    "fields": as_fields(sample.get("metadata")),
                }
            )
    if name is None:
        raise ValueError(
            f"{path}: no sample has a score: `inspect score {path}` adds it"
        )
    settings = {"model": str(about.get("model")), "estimator": "exact"}
    finished = content.get("status") == "success" and len(rows) == len(samples)
    task, units = str(about.get("task")), of_answers(rows)
    return [Run(task, name, settings, units, finished=finished)]


def _scores(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a sample's scores, those with names one by one."""
    scores = {}
    for name, score in (sample.get("scores") or {}).items():
        value = score["value"] if isinstance(score, dict) else score
        several = value if isinstance(value, dict) else {None: value}
        for key, each in several.items():
            letter = isinstance(each, str)
            scores[name if key is None else f"{name}/{key}"] = (
                LETTERS.get(each, each) if letter else each
            )
    return scores


def _input(content: Any) -> str:
    """Return the text of a sample: messages have identities that differ by run."""
    if isinstance(content, list):
        parts = [m.get("content") for m in content if isinstance(m, dict)]
        return "\n".join(p if isinstance(p, str) else json.dumps(p) for p in parts)
    if isinstance(content, str):
        return content
    return json.dumps(content, sort_keys=True)


# -- any -------------------------------------------------------------------------------


def read(path: Path, metric: str | None = None) -> list[Run]:
    """Read a result: a run a task, of generated answers a run a metric.

    Args:
        path: A folder or a file.
        metric: Score to read, where a run has several; None is log-likelihood or
            accuracy, or every metric of generated answers.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it lacks the score of each question; it says which command makes
            that.
    """
    containers = [path] if path.suffix == ENDING and path.exists() else []
    if path.is_dir():
        if runs := _of_folder(path, metric):
            return runs
        containers = sorted(path.rglob(f"*{ENDING}"))
    if containers:
        raise ValueError(
            f"{containers[0]} is inspect's own container: `inspect log convert "
            f"{containers[0]} --to json --output-dir DIR` writes the log that is read "
            "here"
        )
    if path.name.endswith(SAMPLES) and path.is_file():
        return read(path.with_name(f"{path.name.removesuffix(SAMPLES)}.json"), metric)
    if path.suffix == ".json" and path.is_file() and (runs := _of_file(path, metric)):
        return runs
    return lm_eval_results.read(path, metric)


def read_together(paths: Sequence[Path]) -> list[Run]:
    """Read results that have any unit; shards of one run are one result.

    Raises:
        FileNotFoundError: As for ``read``.
        ValueError: As for ``read``, or if nothing has been estimated yet, or a shard is
            missing, is given twice, or differs from the others in another setting.
    """
    runs = []
    if len(paths) > 1:
        shards = {path: record for path in paths if (record := read_shard(path))}
        runs = [Run.of(together(shards))] if shards else []
        paths = [path for path in paths if path not in shards]
    for path in paths:
        of_path = read(path)
        if not any(run.answers or len(run.units) for run in of_path):
            raise ValueError(f"{path} has no estimate yet: go on with its run")
        runs += of_path
    return runs


def _of_folder(folder: Path, metric: str | None) -> list[Run]:
    """Read a folder of inspect_ai or Every Eval Ever, task by task."""
    if any(folder.rglob(lm_eval_results.RESULTS)):
        return []
    runs: dict[str, Run] = {}
    for file in sorted(folder.rglob("*.json")):
        for run in _of_file(file, metric):
            if run.task in runs:
                raise ValueError(
                    f"{folder} has several results of {run.task}: name one file of it, "
                    "or those of several seeds joined by commas"
                )
            runs[run.task] = run
    return [*runs.values()]


def is_of_others(content: Any) -> bool:
    """Whether the JSON of a file is inspect's, or an archive's."""
    names = content.keys() if isinstance(content, dict) else set()
    return any(
        names >= expected
        for expected in ({"eval", "status"}, {"schema_version", "evaluation_results"})
    )


def _of_file(path: Path, metric: str | None) -> list[Run]:
    """Read a file of another program; nothing if it is of another kind."""
    content = parse(read_text(path), infinities=True)
    if not is_of_others(content):
        return []
    return (_read_inspect if "eval" in content else _read_archive)(
        path, content, metric
    )
