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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_latent_eval.files import beside
from lm_latent_eval.options import whole
from lm_latent_eval.report import results as lm_eval_results
from lm_latent_eval.report.units import Run, answered, as_fields, number, of_answers
from lm_latent_eval.scoring.files import read_shard, together
from lm_latent_eval.text.files import digest, numbered_lines, read_text
from lm_latent_eval.values import parse

# -- Every Eval Ever -------------------------------------------------------------------

SAMPLES = "_samples.jsonl"
RATE = re.compile("perplexity|bits_per_byte")
"""Names of metrics that are no means over samples."""


def read_archive(path: Path, content: Any, metric: str | None) -> list[Run]:
    """Read the scores of each sample of *Every Eval Ever*.

    Args:
        path: Of the aggregate.
        content: Its JSON.
        metric: Its name, or the identity of its result; None is the first of a task.

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
    try:
        results = {
            str(result.get("evaluation_result_id")): (
                str(result["evaluation_name"]),
                _metric(result),
                bool(result["metric_config"].get("lower_is_better")),
            )
            for result in content["evaluation_results"]
        }
        model = content["model_info"]
        settings = {"model": str(model.get("name")), "estimator": "exact"}
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"{path} is no result of schema 0.3 ({err!r})") from err
    rates = [key for key, (_, name, _) in results.items() if RATE.search(name)]
    asked = metric in {results[key][1] for key in rates} | {*rates}
    if asked or (rates and len(rates) == len(results)):
        raise ValueError(
            f"{path}: a rate of likelihoods is no mean over its samples; compare the "
            "runs themselves, a folder of --output_path or a file of `estimate`"
        )
    rows = _rows(samples)
    found: dict[str, Run] = {}
    for result, (task, name, lower) in results.items():
        wanted = metric in (name, result) if metric else task not in found
        if wanted and result in rows and result not in rates:
            units = of_answers(rows[result])
            found[task] = Run(task, name, settings, units, lower_is_better=lower)
    if not found:
        names = sorted({name for _, name, _ in results.values()})
        raise ValueError(
            f"{path}: no samples of {metric or 'any of its results'}; --metric is one "
            f"of {', '.join(names)}"
        )
    return [*found.values()]


def _metric(result: dict[str, Any]) -> str:
    """Return the name of a metric: of results of inspect_ai that of the scorer."""
    scorer, colon, _ = str(result.get("evaluation_result_id")).partition(":")
    return scorer if colon else str(result["metric_config"].get("metric_name"))


def _rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return rows of units by the identity of their result."""
    found: dict[str, list[dict[str, Any]]] = {}
    repeats: dict[tuple[str, str], int] = {}
    for place, line in numbered_lines(path):
        try:
            sample = parse(line, infinities=True)
            result = str(sample.get("evaluation_result_id"))
            question = str(sample["sample_id"])
            asked = sample["input"].get("raw")
            text = asked if isinstance(asked, str) else ""
            value = number("evaluation: score", sample["evaluation"]["score"])
        except (KeyError, TypeError, AttributeError, ValueError) as err:
            why = f"there is no {err}" if isinstance(err, KeyError) else err
            raise ValueError(f"{path}, line {place}: {why}") from err
        repeat = repeats.get((result, question), 0)
        repeats[result, question] = repeat + 1
        found.setdefault(result, []).append(
            answered(
                question,
                value,
                repeat=repeat,
                digest=digest(text) if text else "",
                fields=as_fields(sample.get("metadata")),
            )
        )
    return found


# -- inspect_ai ------------------------------------------------------------------------

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partly, incorrect, no answer."""
ENDING = ".eval"
"""Of inspect's own container, which is no JSON."""


def read_inspect(path: Path, content: Any, metric: str | None) -> list[Run]:
    """Read the scores of a log of inspect_ai.

    Args:
        path: For messages.
        content: The JSON.
        metric: Of which scorer, or ``SCORER/KEY`` where its values have names; None is
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
    for place, sample in enumerate(samples, start=1):
        try:
            scores = _scores(sample)
            if not scores:  # it ended in an error
                continue
            name = next(iter(scores)) if name is None else name
            if name not in scores:
                raise ValueError(
                    f"no score {name}; --metric is one of {', '.join(scores)}"
                )
            rows.append(_row(sample, number(f"scores: {name}", scores[name])))
        except (KeyError, TypeError, AttributeError, ValueError) as err:
            why = f"there is no {err}" if isinstance(err, KeyError) else err
            raise ValueError(f"{path}, sample {place}: {why}") from err
    if name is None:
        raise ValueError(
            f"{path}: no sample has a score: `inspect score {path}` adds it"
        )
    settings = {"model": str(about.get("model")), "estimator": "exact"}
    finished = content.get("status") == "success" and len(rows) == len(samples)
    task = str(about.get("task"))
    return [Run(task, name, settings, of_answers(rows), finished=finished)]


def _scores(sample: Any) -> dict[str, Any]:
    """Return the values of a sample's scores, those with names one by one."""
    if not isinstance(sample, dict):
        raise ValueError(f"expected an object, not {sample!a:.40}")
    found = {}
    for name, score in (sample.get("scores") or {}).items():
        value = score["value"] if isinstance(score, dict) else score
        several = value if isinstance(value, dict) else {None: value}
        for key, each in several.items():
            letter = LETTERS.get(each, each) if isinstance(each, str) else each
            found[name if key is None else f"{name}/{key}"] = letter
    return found


def _row(sample: dict[str, Any], value: float) -> dict[str, Any]:
    asked = sample.get("input")
    text = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
    if isinstance(asked, list):  # messages, whose identities differ from run to run
        said = [m.get("content") for m in asked if isinstance(m, dict)]
        text = "\n".join(s if isinstance(s, str) else json.dumps(s) for s in said)
    return answered(
        str(sample["id"]),
        value,
        repeat=whole("epoch", sample.get("epoch", 1), 1) - 1,
        digest=digest(text),
        fields=as_fields(sample.get("metadata")),
    )


# -- any -------------------------------------------------------------------------------


def read(path: Path, metric: str | None = None, *, fields: bool = True) -> list[Run]:
    """Read a result: a run a task, of generated answers a run a metric.

    Args:
        path: A folder or a file.
        metric: What to read, where a run has several; None is log-likelihood or
            accuracy, or every metric of generated answers.
        fields: Whether to read what sample logs say of documents.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it lacks what each question was found to have; it says which
            command makes that.
    """
    if path.is_dir():
        if others := _of_others(path, metric):
            return others
        containers = sorted(path.rglob(f"*{ENDING}"))
    else:
        containers = [path] if path.suffix == ENDING and path.exists() else []
    if containers:
        raise ValueError(
            f"{containers[0]} is inspect's own container: `inspect log convert "
            f"{containers[0]} --to json --output-dir DIR` writes the log that is read "
            "here"
        )
    if path.name.endswith(SAMPLES) and path.is_file():
        stem = path.name.removesuffix(SAMPLES)
        return read(path.with_name(f"{stem}.json"), metric, fields=fields)
    if path.suffix == ".json" and path.is_file():
        found = _of_file(path, metric)
        if found is not None:
            return [*found]
    return lm_eval_results.read(path, metric=metric, fields=fields)


def read_begun(path: Path) -> list[Run]:
    """Read a result that has any unit, see ``read``.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: As for ``read``, or if nothing has been estimated yet.
    """
    found = read(path, fields=False)
    if not any(run.answers or len(run.units) for run in found):
        raise ValueError(f"{path} has no estimate yet: go on with its run")
    return found


def read_together(paths: Sequence[Path]) -> list[Run]:
    """Read several results that have any unit; shards of one run are one result.

    Raises:
        FileNotFoundError: As for ``read_begun``.
        ValueError: As for ``read_begun``, or if a shard is missing, is given twice, or
            differs from the others in another setting.
    """
    if len(paths) == 1:
        return read_begun(paths[0])
    shards = {path: record for path in paths if (record := read_shard(path))}
    found = [Run.of(together(shards))] if shards else []
    return found + [run for p in paths if p not in shards for run in read_begun(p)]


def _of_others(folder: Path, metric: str | None) -> list[Run]:
    """Read a folder of inspect_ai or Every Eval Ever, task by task."""
    if any(folder.rglob(lm_eval_results.RESULTS)):
        return []
    found: dict[str, Run] = {}
    for file in sorted(folder.rglob("*.json")):
        for run in _of_file(file, metric) or ():
            if run.task in found:
                raise ValueError(
                    f"{folder} has several results of {run.task}: name one file of it, "
                    "or those of several seeds joined by commas"
                )
            found[run.task] = run
    return [*found.values()]


def is_of_others(content: Any) -> bool:
    """Whether the JSON of a file is inspect's, or an archive's."""
    names = content.keys() if isinstance(content, dict) else set()
    return names >= {"eval", "status"} or names >= {
        "schema_version",
        "evaluation_results",
    }


def _of_file(path: Path, metric: str | None) -> list[Run] | None:
    """Read a file of theirs; None if it is of another kind."""
    content = parse(read_text(path), infinities=True)
    if not is_of_others(content):
        return None
    return (read_inspect if "eval" in content else read_archive)(path, content, metric)
