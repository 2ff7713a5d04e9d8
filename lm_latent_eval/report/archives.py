"""Files of *Every Eval Ever*, schema 0.3: a score of each sample, by result.

A result is an aggregate ``NAME.json`` with its ``NAME_samples.jsonl`` beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_latent_eval.file_names import beside
from lm_latent_eval.plain_json import parse
from lm_latent_eval.report.scores import Score, Scores, as_fields, number
from lm_latent_eval.text.digests import digest
from lm_latent_eval.text.files import numbered_lines

SAMPLES = "_samples.jsonl"


def is_aggregate(content: Any) -> bool:
    """Whether JSON is such a result."""
    names = {"schema_version", "evaluation_results"}
    return isinstance(content, dict) and names <= content.keys()


def read(path: Path, content: Any, metric: str | None) -> list[Scores]:
    """Read the scores of each sample.

    Args:
        path: Of the aggregate.
        content: Its JSON.
        metric: Its name, or the identity of its result; None is the first of a task.

    Raises:
        ValueError: If there are no samples beside it, or none of this metric.
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
    rows = _rows(samples)
    found: dict[str, Scores] = {}
    for result, (task, name, lower) in results.items():
        wanted = metric in (name, result) if metric else task not in found
        if wanted and result in rows:
            found[task] = Scores(task, name, settings, rows[result], lower)
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


def _rows(path: Path) -> dict[str, list[Score]]:
    """Return scores by the identity of their result."""
    found: dict[str, list[Score]] = {}
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
            Score(
                question,
                value,
                repeat,
                digest=digest(text) if text else "",
                text=text,
                fields=as_fields(sample.get("metadata")),
            )
        )
    return found
