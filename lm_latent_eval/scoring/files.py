"""Scores a file of texts into a file of estimates that a crash does not lose.

The output is JSON lines: first what the numbers depend on, then one estimate a text, in
the order they were found. The same command goes on where an interrupted one stopped;
with other settings it refuses.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lm_latent_eval
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.metrics import Scored
from lm_latent_eval.scoring.scorer import Answer, Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.settings import differences


def score_file(
    scorer: Scorer, checkpoint: Checkpoint, texts: Sequence[str], output: Path | None
) -> list[Scored]:
    """Score texts, keeping each estimate in a file as soon as it is there.

    Args:
        scorer: How to score.
        checkpoint: What it scores with.
        texts: N strings.
        output: The file, new or of an interrupted run; None keeps nothing.

    Returns:
        N estimates with the texts' sizes, in their order.

    Raises:
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, or is not such a file.
    """
    found: dict[int, Answer] = {}
    file = None
    if output is not None:
        settings = _settings(scorer, checkpoint, texts)
        found = _resume(output, settings) if output.exists() else {}
        if not found:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        file = output.open("a", encoding="utf-8")
    queries = [
        Query(n, f"text/{n}", text) for n, text in enumerate(texts) if n not in found
    ]
    try:
        for answer in scorer.score_texts(queries):
            found[answer.index] = answer
            if file is not None:
                file.write(json.dumps(_record(answer)) + "\n")
                file.flush()
    finally:
        if file is not None:
            file.close()
    return [Scored.of(text, found[n]) for n, text in enumerate(texts)]


def _settings(
    scorer: Scorer, checkpoint: Checkpoint, texts: Sequence[str]
) -> dict[str, Any]:
    return {
        "lm_latent_eval": lm_latent_eval.__version__,
        "model": checkpoint.name,
        "checkpoint": checkpoint.digest,
        "dtype": str(checkpoint.model.dtype),
        "texts": hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:16],
        **asdict(scorer.options),
    }


def _resume(path: Path, settings: dict[str, Any]) -> dict[int, Answer]:
    """Read what an interrupted run has left; drop a line that was cut short."""
    try:
        content = path.read_text(encoding="utf-8")
        lines = content.splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        if not complete:
            # Nothing, or our first line cut short; anything else is not ours.
            if not json.dumps(settings).startswith(content):
                raise ValueError("its first line says no settings")
            return {}
        theirs = json.loads(complete[0])
        if not isinstance(theirs, dict) or "checkpoint" not in theirs:
            raise ValueError("its first line says no settings")
        answers = [_answer(json.loads(line)) for line in complete[1:]]
    except (ValueError, KeyError, TypeError) as err:
        raise ValueError(
            f"{path} is not a file of estimates ({err}): give --output another path"
        ) from err
    if different := differences(theirs, settings):
        raise ValueError(
            f"{path} is of another run ({different}): repeat its settings to go on "
            "with it, or give --output another path"
        )
    if len(complete) < len(lines):
        path.write_text("".join(complete), encoding="utf-8")
    return {answer.index: answer for answer in answers}


def _record(answer: Answer) -> dict[str, Any]:
    estimate = asdict(answer.estimate)
    log_weights = list(estimate.pop("log_weights"))
    return {
        "index": answer.index,
        "log_likelihood": estimate.pop("log_evidence"),
        **{name: _json(value) for name, value in estimate.items()},
        "stream": answer.stream,
        "unknown_words_not_spelled": answer.unspelled,
        "gaps_not_charged": answer.respaced,
        "sentences": answer.sentences,
        "log_weights": [_json(log_w) for log_w in log_weights],
    }


def _answer(record: dict[str, Any]) -> Answer:
    def number(name: str) -> float | None:
        return None if record[name] is None else float(record[name])

    estimate = Estimate(
        log_evidence=float(record["log_likelihood"]),
        stderr=float(record["stderr"]),
        effective_sample_size=number("effective_sample_size"),
        pareto_k=number("pareto_k"),
        num_samples=record["num_samples"],
        num_tokens=record["num_tokens"],
        bound=Bound(record["bound"]),
        estimator=record["estimator"],
        log_weights=tuple(float(log_w) for log_w in record["log_weights"]),
    )
    return Answer(
        record["index"],
        estimate,
        record["stream"],
        record["unknown_words_not_spelled"],
        record["gaps_not_charged"],
        record["sentences"],
    )


def _json(value: Any) -> Any:
    """Write infinities as strings: JSON has no number for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
