"""Results for the archive *Every Eval Ever*, in its schema 0.3.

A task becomes two files: ``data/<collection>/<developer>/<model>/<uuid4>.json`` with
its numbers and ``<uuid4>_samples.jsonl`` with one line a text or question.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_latent_eval
from lm_latent_eval.estimators import Bound
from lm_latent_eval.files import write_text
from lm_latent_eval.report.export.statement import (
    DELTA,
    Statement,
    command,
    statements_of,
)
from lm_latent_eval.report.numbers import RATES, numbers
from lm_latent_eval.report.units import ACCURACY, Run
from lm_latent_eval.scoring.answer import Answer

SCHEMA_VERSION = "0.3.0"
RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
AVAILABILITIES = ("open_weights", "closed_weights", "unknown")


@dataclass(frozen=True)
class Evaluator:
    model_id: str
    """Name on the hub: developer/model."""
    organization: str
    relationship: str
    """Relationship of the organization to the model."""
    availability: str = "unknown"
    """Availability of the model's weights."""
    collection: str = "lm_latent_eval"

    def __post_init__(self) -> None:
        parts = self.model_id.split("/")
        if len(parts) != 2 or not all(map(_is_name, parts)):
            raise ValueError(f"--model-id {self.model_id}: expected developer/model")
        if not _is_name(self.collection):
            raise ValueError(
                f"--collection {self.collection}: expected a name, not a path"
            )


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and not {*text} & {*"/\\:\0"}


def export(runs: Sequence[Run], source: Evaluator, output: Path) -> list[Path]:
    """Write the files of every task.

    Raises:
        ValueError: If a result lacks what it must state.
    """
    statements = statements_of(runs)  # before any file
    folder = Path("data", source.collection, *source.model_id.split("/"))
    (output / folder).mkdir(parents=True, exist_ok=True)
    written = []
    for statement in statements:
        name = str(uuid.uuid4())
        samples = folder / f"{name}_samples.jsonl"
        content = _aggregate(statement, source)
        identity = content["evaluation_id"]
        rows = [*_instances(statement, source.model_id, identity)]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        write_text(output / samples, lines)
        content["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": samples.as_posix(),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(lines.encode()).hexdigest(),
            "total_rows": len(rows),
        }
        path = output / folder / f"{name}.json"
        write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
        written += [path, output / samples]
    return written


def _aggregate(statement: Statement, source: Evaluator) -> dict[str, Any]:
    run, now = statement.run, str(time.time())
    date = run.settings.get("date")
    when = {} if date is None else {"evaluation_timestamp": str(date)}
    version = str(run.settings.get("lm_latent_eval", lm_latent_eval.__version__))
    library: dict[str, Any] = {"name": "lm_latent_eval", "version": version}
    if host := run.settings.get("lm_eval"):
        more = {"lm_latent_eval": version}
        library = {"name": "lm_eval", "version": host, "additional_details": more}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{run.task}/{source.model_id}/{now}",
        **when,
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_type": "evaluation_run",
            "source_organization_name": source.organization,
            "evaluator_relationship": source.relationship,
        },
        "eval_library": library,
        "model_info": _model(statement, source),
        "evaluation_results": [_result(statement, name) for name in statement.numbers],
    }


def _model(statement: Statement, source: Evaluator) -> dict[str, Any]:
    settings = statement.run.settings
    developer, name = source.model_id.split("/")
    details = ("model", "checkpoint", "dtype", "vocabulary", "mass", "scored_as")
    return {
        "name": name,
        "id": source.model_id,
        "developer": developer,
        "additional_details": {
            "deployment_type": "self_deployed",
            "model_availability": source.availability,
            **{key: str(settings[key]) for key in details if settings.get(key)},
        },
    }


def _result(statement: Statement, name: str) -> dict[str, Any]:
    run, likelihood = statement.run, name in RATES
    least = 1.0 if name.endswith("perplexity") else 0.0
    limits: dict[str, Any] = {}
    if likelihood or run.metric == ACCURACY:
        most = "Infinity" if likelihood else 1.0
        limits = {"score_type": "continuous", "min_score": least, "max_score": most}
    return {
        "evaluation_result_id": f"{run.task}/{name}",
        "evaluation_name": run.task,
        "source_data": _data(statement),
        "metric_config": {
            "metric_id": "accuracy" if name == "acc" else name,
            "metric_name": name,
            "lower_is_better": likelihood or run.lower_is_better,
            **limits,
            "metric_parameters": {
                **statement.settings,
                "bound": statement.bound_of(name),
                "aggregation": "sum over texts before dividing"
                if likelihood
                else "mean over questions",
            },
        },
        "score_details": {
            "score": statement.numbers[name].value,
            "uncertainty": _uncertainty(statement, name, least),
            "details": _details(statement, name),
        },
    }


def _uncertainty(statement: Statement, name: str, least: float) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": statement.num_units}
    if (error := statement.numbers[name].stderr) is not None:
        over_texts = "over texts (ratio of sums), draws included"
        over = over_texts if name in RATES else "over questions"
        uncertainty["standard_error"] = {"value": error, "method": f"analytic, {over}"}
    upper = statement.certified(name)
    if upper is not None and statement.bound is not Bound.EXACT:
        markov = statement.bound is Bound.STOCHASTIC_LOWER
        uncertainty["confidence_interval"] = {
            "lower": least,
            "upper": upper,
            "confidence_level": 1 - DELTA if markov else 1.0,
            "method": "Markov's inequality on the product of unbiased estimates, over "
            "draws; says nothing of other texts"
            if markov
            else "strict bound of log p of each text; says nothing of other texts",
        }
    return uncertainty


def _details(statement: Statement, name: str) -> dict[str, str]:
    number = statement.numbers[name]
    errors = {
        "monte_carlo_stderr": number.monte_carlo_stderr,
        "draws_stderr": number.draws_stderr,
    }
    details = {name: repr(e) for name, e in errors.items() if e is not None}
    for other, number in numbers(statement.run).items():
        diagnostic = other.startswith(("effective_samples_m", "share_pareto"))
        if diagnostic and not isinstance(number.value, str):
            details[other] = repr(number.value)
    answers, settings = statement.run.answers, statement.run.settings
    if not answers:
        return details
    dropped = len({answer.index for answer in answers}) - len(statement.documents)
    if "strings_scored" not in settings:  # those of others are not counted
        tokens = sum(answer.tokens for answer in answers)
        details["predicted_tokens"] = str(tokens)
    return details | {
        "words": str(sum(answer.words for answer in answers)),
        "bytes": str(sum(answer.bytes for answer in answers)),
        "tokens_are": str(settings.get("tokens_are")),
        "instances_dropped": str(dropped),
    }


def _data(statement: Statement) -> dict[str, Any]:
    run, config = statement.run, statement.config
    repository = config.get("dataset_path")
    about = {
        "texts_digest": run.texts_digest,
        "command": command(run.task, run.settings),
    }
    if not isinstance(repository, str) or "/" not in repository:
        source = {"dataset_name": run.task, "source_type": "other"}
        return {**source, "additional_details": about}
    split = config.get("test_split") or config.get("validation_split")
    return {
        "dataset_name": config.get("dataset_name") or repository,
        "source_type": "hf_dataset",
        "hf_repo": repository,
        **({"hf_split": split} if split else {}),
        "samples_number": statement.num_units,
        "additional_details": about,
    }


def _instances(
    statement: Statement, model_id: str, identity: str
) -> Iterator[dict[str, Any]]:
    run = statement.run
    for name in statement.numbers:
        about = {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": identity,
            "model_id": model_id,
            "evaluation_name": run.task,
            "evaluation_result_id": f"{run.task}/{name}",
            "interaction_type": "single_turn",
            "answer_attribution": [],
        }
        for document, answers in statement.documents.items():
            estimates = [answer.estimate for answer in answers]
            yield {
                **about,
                "sample_id": str(document),
                # Records hold digests of texts, not texts, which may not be ours.
                "input": {"raw": f"sha256 {answers[0].text}", "reference": []},
                "output": {"raw": [repr(e.log_evidence) for e in estimates]},
                "evaluation": _score(name, answers),
                "metadata": {
                    "output_is": "log-likelihood in nats, an option each",
                    "draws_stderr": " ".join(repr(e.draws_stderr) for e in estimates),
                    "bound": " ".join(str(e.bound) for e in estimates),
                },
            }
        for row in () if run.answers else run.units.to_dict("records"):
            yield {
                **about,
                "sample_id": row["unit"],
                "input": {"raw": row["digest"], "reference": []},
                "output": {"raw": []},
                "evaluation": {"score": row["score"], "is_correct": row["score"] == 1},
            }


def _score(name: str, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return a text's own rate, which is neither right nor wrong, or an answer."""
    if name == "acc":
        right = answers[0].accuracy or 0.0
        return {"score": right, "is_correct": right > 0.5}
    [answer], unit = answers, RATES[name]
    units = getattr(answer, unit.name)
    nats = -answer.estimate.log_evidence / units if units else 0.0
    score = unit.value(nats) if nats < math.log(1e300) else 1e300
    return {"score": score, "is_correct": False}
