"""Logs of inspect_ai, in their JSON: a score an epoch of each sample.

The fields are those of its documentation ("Eval Logs"): ``eval``, ``samples`` with
``id``, ``epoch``, ``input``, ``metadata`` and ``scores``. Letters are read as its
``value_to_float`` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lm_latent_eval.report.scores import Score, Scores, as_fields, number
from lm_latent_eval.text.digests import digest

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partly, incorrect, no answer."""
ENDING = ".eval"
"""Of inspect's own container, which is no JSON."""


def is_log(content: Any) -> bool:
    """Whether JSON is such a log."""
    return isinstance(content, dict) and {"eval", "status"} <= content.keys()


def refuse_container(path: Path) -> None:
    """Raise a ``ValueError`` that says how a container becomes JSON."""
    raise ValueError(
        f"{path} is inspect's own container: `inspect log convert {path} --to json "
        "--output-dir DIR` writes the log that is read here"
    )


def read(path: Path, content: Any, metric: str | None) -> list[Scores]:
    """Read the scores of a log.

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
    return [Scores(str(about.get("task")), name, settings, rows, finished=finished)]


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


def _row(sample: dict[str, Any], value: float) -> Score:
    asked = sample.get("input")
    text = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
    if isinstance(asked, list):  # messages, whose identities differ from run to run
        said = [m.get("content") for m in asked if isinstance(m, dict)]
        text = "\n".join(s if isinstance(s, str) else json.dumps(s) for s in said)
    return Score(
        str(sample["id"]),
        value,
        int(sample.get("epoch", 1)) - 1,
        digest=digest(text),
        text=text,
        fields=as_fields(sample.get("metadata")),
    )
