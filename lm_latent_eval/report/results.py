"""Results of lm-eval and of ``estimate``, read as runs.

A result is a folder of ``lm_eval --output_path``, one of its files, or a file of
``lm-latent-eval estimate``. Models that are not ours leave no record; what they found
is in the sample log of ``--log_samples``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_latent_eval.files import beside
from lm_latent_eval.ledger.journal import UNFINISHED
from lm_latent_eval.report.sample_log import read_answers, read_fields, read_scores
from lm_latent_eval.report.units import Run, of_answers
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.files import is_there, read_record, shards_in, together
from lm_latent_eval.scoring.records import NO_END, Record
from lm_latent_eval.text.files import read_text
from lm_latent_eval.values import parse

logger = logging.getLogger(__name__)

RESULTS = "results_*.json"
RUN = ("model", "model_args", "limit")
"""Arguments of lm-eval, for archives."""
PROMPTED = ("system_instruction", "fewshot_as_multiturn")
"""Those that it does not count among a run's configuration."""
SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
"""Parts of ``--seed``, in its order."""
SAID = {
    **dict.fromkeys(("model", "checkpoint", "estimator", "proposal"), (str,)),
    **dict.fromkeys(("unk", "vocabulary", "mass"), (str,)),
    "configs": (dict,),
    "num_samples": (int,),
    "temperature": (int, float),
}
"""Settings that tables, verdicts and exports are made of -> types, besides None."""
WHOLE_TEXTS = "loglikelihood_rolling"
"""lm-eval's output type of tasks of whole texts."""
GENERATED = "generate_until"
"""That of generated answers, which have no likelihood."""


def read(path: Path, *, metric: str | None = None, fields: bool = False) -> list[Run]:
    """Read the runs of a result: a run a task, of generated answers a run a metric.

    Args:
        path: A folder or a file.
        metric: What tasks of questions are scored by; None is the log-likelihood or
            accuracy, and of generated answers every metric that a task lists.
        fields: Whether to read what a sample log says of documents.

    Raises:
        FileNotFoundError: If there is no result.
        ValueError: If there are those of several models, or it lacks what each text
            was found to have, or says something else than a result does.
    """
    if path.is_dir():
        found = _folder(path, metric, fields)
    elif not is_there(path):
        raise FileNotFoundError(f"{path} does not exist")
    elif path.suffix == ".json":
        found = _results(path, metric, fields)
    else:
        whole = path.suffix == ".parquet" or path.name.endswith(UNFINISHED)
        made = records.read(path) if whole else [read_record(path)]
        found = [Run.of(record) for record in made]
    for run in found:
        for name, kinds in SAID.items():
            said = run.settings.get(name)
            if said is not None and type(said) not in kinds:
                raise ValueError(f"{path}: {name} of {run.task} is {said!a:.40}")
        configs = run.settings.get("configs") or {}
        if not isinstance(configs.get(run.task, {}), dict):
            raise ValueError(f"{path}: configs of {run.task} is no object")
    return found


def read_records(path: Path, content: Any) -> dict[str, Run]:
    """Read the records beside results of lm-eval, those that are there.

    Args:
        path: The results.
        content: Their content.
    """
    named = content["config"].get("latent_eval", {}).get("records", {})
    files = {task: beside(path, name) for task, name in named.items()}
    return {
        task: Run.of(records.read(file)[0])
        for task, file in files.items()
        if file.exists()
    }


def newest(folder: Path) -> Path | None:
    """Return the results of the last run that is finished below a folder.

    Raises:
        ValueError: If there are runs of several models.
    """
    # Names hold the time; that of the file is another one in a copy.
    files = sorted(folder.rglob(RESULTS), key=lambda path: path.name)
    if len(folders := sorted({file.parent for file in files})) > 1:
        names = ", ".join(str(path) for path in folders)
        raise ValueError(f"{folder} has results of several models: name one of {names}")
    return files[-1] if files else None


def _folder(folder: Path, metric: str | None, fields: bool) -> list[Run]:
    if results := newest(folder):
        return _results(results, metric, fields)
    unfinished = sorted(folder.rglob(f"record_*{UNFINISHED}"))
    if found := records.read_unfinished(unfinished):
        return [Run.of(record) for record in found]
    if shards := shards_in(folder):
        return [Run.of(together(shards))]
    raise FileNotFoundError(
        f"{folder} has no {RESULTS}: run lm_eval with --output_path {folder}"
    )


def _results(path: Path, metric: str | None, fields: bool) -> list[Run]:
    content = parse(read_text(path), infinities=True)  # other programs write metrics
    found: list[Run] = []
    without: list[str] = []
    try:
        config = content["config"]
        ours = config.get("latent_eval", {}).get("records", {})
        named = {"name": config.get("model_args") or {}, **_about(content)}
        for listed, task in content["configs"].items():
            name = task.get("task", listed)  # without that of a group
            about = {**named, "groups": _groups(content, listed)}
            if name in ours and metric is None:
                [record] = records.read(beside(path, ours[name]))
                settings = {**about, **record.settings}
                record = replace(record, task=name, settings=settings)
                log = _sample_log(path, listed) if fields else None
                known = read_fields(log) if log and log.exists() else {}
                found.append(Run.of(record, known))
            elif (log := _sample_log(path, listed)).exists():
                settings = {**about, "model": config["model"], **_foreign(config)}
                counts = (content.get("n-samples") or {}).get(listed) or {}
                runs = _of_log(log, name, task, settings, metric, fields)
                found += [_chosen(run, counts.get("original", 0)) for run in runs]
            else:
                without.append(name)
    except (KeyError, TypeError, AttributeError, IndexError) as err:
        raise ValueError(f"{path} holds no results of lm_eval ({err!r})") from err
    if not found:
        remedy = "models of ours leave a record beside it; run other models with"
        if metric is not None:
            remedy = f"what {metric} is of each stands in sample logs; run it with"
        raise ValueError(f"{path} says nothing of single texts: {remedy} --log_samples")
    if without:
        logger.warning(
            "%s: %s left out, of which no file says what each document has: run "
            "lm_eval with --log_samples",
            path.name,
            ", ".join(without),
        )
    return found


def _of_log(
    log: Path,
    name: str,
    task: dict[str, Any],
    settings: dict[str, Any],
    metric: str | None,
    fields: bool,
) -> list[Run]:
    """Read the sample log of a model that is not ours, or what metrics say there."""
    kind = task.get("output_type")
    if metric is not None or kind == GENERATED:
        return _of_metrics(log, name, task, settings, metric)
    answers = read_answers(log)
    if kind == WHOLE_TEXTS:
        # Neither greedy nor the contrary: lm-eval 0.5 writes False.
        answers = [replace(answer, is_greedy=None) for answer in answers]
    known = read_fields(log) if fields else {}
    return [Run.of(Record(name, settings, answers), known)]


def _of_metrics(
    log: Path,
    name: str,
    task: dict[str, Any],
    settings: dict[str, Any],
    metric: str | None,
) -> list[Run]:
    """Read what one metric, or each that a task lists, gave documents.

    Raises:
        ValueError: If none has a number a document.
    """
    listed = task.get("metric_list") or [{}]
    found, errors = list[Run](), list[ValueError]()
    for wanted in [metric] if metric else [str(each.get("metric")) for each in listed]:
        lower = any(
            each.get("metric") == wanted and each.get("higher_is_better") is False
            for each in listed
        )
        try:
            units = of_answers(read_scores(log, wanted))
        except ValueError as err:
            errors.append(err)
            continue
        found.append(Run(name, wanted, settings, units, lower_is_better=lower))
    if errors and not found:
        raise errors[0]
    for each in errors:
        logger.warning("%s: left out", each)
    return found


def _chosen(run: Run, documents: int) -> Run:
    """Say which of a task's documents ``--samples`` chose, which a log shows alone."""
    asked = run.settings["run"]
    if not run.answers or asked.get("limit") is not None:
        return run
    found = sorted({answer.index for answer in run.answers})
    if len(found) >= documents:
        return run
    asked = asked | {"samples": {run.task: found}}
    return replace(run, settings={**run.settings, "run": asked})


def _groups(content: dict[str, Any], task: str) -> list[str]:
    """Return the groups that a task is in, with those that these are in."""
    tasks = content.get("group_subtasks") or {}
    found, inner = list[str](), [task]
    while inner:
        inner = [
            g for g, some in tasks.items() if {*some} & {*inner} and g not in found
        ]
        found += inner
    return found


def _about(content: dict[str, Any]) -> dict[str, Any]:
    """Return lm-eval's facts about a run, for archives."""
    said = str(content.get("pretty_env_info"))
    torch = re.match(r"PyTorch version: (\S+)", said)
    run = {name: content["config"].get(name) for name in RUN}
    run |= {name: content.get(name) for name in PROMPTED}
    run["apply_chat_template"] = bool(content.get("chat_template"))
    if all(name in content["config"] for name in SEEDS):
        run["seed"] = [content["config"][name] for name in SEEDS]
    # Models of ours keep what lm-eval does not.
    run |= content["config"].get("latent_eval", {}).get("asked", {})
    return {
        "lm_eval": content.get("lm_eval_version"),
        "date": content.get("date"),
        "model_name": content.get("model_name"),
        "configs": content.get("configs") or {},
        "transformers": content.get("transformers_version"),
        "torch": torch and torch[1],
        "run": run,
    }


def _sample_log(results: Path, task: str) -> Path:
    stamp = results.stem.removeprefix("results_")
    return beside(results, f"samples_{task}_{stamp}.jsonl")


def _foreign(config: dict[str, Any]) -> dict[str, Any]:
    """Describe a model that is not ours."""
    by_words = config["model"] == "kenlm"
    known = config.get("model_sha") or config.get("checkpoint_digest")
    if not known:  # lm-eval records no commit
        given = model_arguments(config.get("model_args"))
        named = given.get("pretrained") or given.get("model") or config["model"]
        name = Path(str(named)).name if Path(str(named)).is_absolute() else named
        says = f"no digest: lm_eval {config['model']} says none of its weights"
        known = f"{name} ({says})"
    return {
        "checkpoint": known,
        "strings_scored": not by_words,
        "tokens_are": "words, and the ends of sentences" if by_words else NO_END,
        "estimator": "exact",
    }


def model_arguments(given: Any) -> dict[str, Any]:
    """Return ``model_args`` of lm-eval by name: a string, or an object already."""
    if isinstance(given, str):
        pairs = (part.partition("=") for part in given.split(",") if part)
        return {name: value for name, _, value in pairs}
    return dict(given or {})
