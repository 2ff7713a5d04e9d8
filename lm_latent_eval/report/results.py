"""Results of lm-eval and of ``estimate``, read as runs.

A result is a folder of ``lm_eval --output_path``, one of its files, or a file of
``lm-latent-eval estimate``. Models that are not ours leave no record; their scores are
in the sample log of ``--log_samples``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
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
SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
"""Parts of ``--seed``, in its order."""
KINDS = {
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
"""lm-eval's output type of generated answers, which have no likelihood."""


def read(path: Path, metric: str | None = None) -> list[Run]:
    """Read the runs of a result: a run a task, of generated answers a run a metric.

    Args:
        path: A folder or a file.
        metric: Score of the tasks of questions; None is the log-likelihood or accuracy,
            and of generated answers every metric that a task lists.

    Raises:
        FileNotFoundError: If there is no result.
        ValueError: If there are those of several models, or it lacks the likelihoods of
            texts, or is no result.
    """
    if path.is_dir():
        runs = _folder(path, metric)
    elif not is_there(path):
        raise FileNotFoundError(f"{path} does not exist")
    elif path.suffix == ".json":
        runs = _results(path, metric)
    else:
        whole = path.suffix == ".parquet" or path.name.endswith(UNFINISHED)
        runs = [*map(Run.of, records.read(path) if whole else [read_record(path)])]
    for run in runs:
        for name, kinds in KINDS.items():
            value = run.settings.get(name)
            if value is not None and type(value) not in kinds:
                raise ValueError(f"{path}: {name} of {run.task} is {value!a:.40}")
        configs = run.settings.get("configs") or {}
        if not isinstance(configs.get(run.task, {}), dict):
            raise ValueError(f"{path}: configs of {run.task} is no object")
    return runs


def read_records(path: Path, content: Any) -> dict[str, Run]:
    """Read the records beside results of lm-eval, those that are there.

    Args:
        path: The results.
        content: Content of that file.
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


def _folder(folder: Path, metric: str | None) -> list[Run]:
    if results := newest(folder):
        return _results(results, metric)
    unfinished = sorted(folder.rglob(f"record_*{UNFINISHED}"))
    if tasks := records.read_unfinished(unfinished):
        return [*map(Run.of, tasks)]
    if shards := shards_in(folder):
        return [Run.of(together(shards))]
    if (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is a model, and has no results: score texts with it "
            "(--output_path FOLDER of lm_eval, --output of estimate), and name those"
        )
    raise FileNotFoundError(
        f"{folder} has no {RESULTS}: run lm_eval with --output_path {folder}"
    )


def _results(path: Path, metric: str | None) -> list[Run]:
    content = parse(read_text(path), infinities=True)  # other programs write metrics
    runs: list[Run] = []
    without: list[str] = []
    logs = {file.name: file for file in path.parent.glob("samples_*.jsonl")}
    stamp = path.stem.removeprefix("results_")
    try:
        config, about = content["config"], _about(content)
        records_of = config.get("latent_eval", {}).get("records", {})
        for listed, task in content["configs"].items():
            name = task.get("task", listed)  # without that of a group
            settings = dict(about)
            log = logs.get(f"samples_{listed}_{stamp}.jsonl")
            if name in records_of and metric is None:
                [record] = records.read(beside(path, records_of[name]))
                settings |= record.settings
                record = replace(record, task=name, settings=settings)
                runs.append(Run.of(record, read_fields(log) if log else None))
            elif log:
                settings |= _foreign(config)
                counts = (content.get("n-samples") or {}).get(listed) or {}
                of_task = _of_log(log, name, task, settings, metric)
                runs += [_chosen(run, counts.get("original", 0)) for run in of_task]
            else:
                without.append(name)
    except (KeyError, TypeError, AttributeError, IndexError) as err:
        raise ValueError(f"{path} holds no results of lm_eval ({err!r})") from err
    if not runs:
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
    return runs


def _of_log(
    log: Path,
    name: str,
    task: dict[str, Any],
    settings: dict[str, Any],
    metric: str | None,
) -> Iterator[Run]:
    """Read the sample log of a model that is not ours, or a metric's scores there.

    Raises:
        ValueError: If no metric has a number a document.
    """
    kind = task.get("output_type")
    if metric is None and kind != GENERATED:
        answers, fields = read_answers(log)
        if kind == WHOLE_TEXTS:
            # Neither greedy nor the contrary: lm-eval 0.5 writes False.
            answers = [replace(answer, is_greedy=None) for answer in answers]
        yield Run.of(Record(name, settings, answers), fields)
        return
    listed = task.get("metric_list") or [{}]
    lower = {m.get("metric") for m in listed if m.get("higher_is_better") is False}
    errors = list[ValueError]()
    names = [metric] if metric else [str(each.get("metric")) for each in listed]
    for score in names:
        try:
            units = of_answers(read_scores(log, score))
        except ValueError as err:
            errors.append(err)
        else:
            yield Run(name, score, settings, units, lower_is_better=score in lower)
    if len(errors) == len(names):
        raise errors[0]
    for error in errors:
        logger.warning("%s: left out", error)


def _chosen(run: Run, documents: int) -> Run:
    """Add the documents that ``--samples`` chose, which a log shows alone."""
    arguments = run.settings["run"]
    chosen = sorted({answer.index for answer in run.answers})
    if not 0 < len(chosen) < documents or arguments.get("limit") is not None:
        return run
    arguments = arguments | {"samples": {run.task: chosen}}
    return replace(run, settings={**run.settings, "run": arguments})


def _about(content: dict[str, Any]) -> dict[str, Any]:
    """Return lm-eval's facts about a run, for archives."""
    config = content["config"]
    torch = re.match(r"PyTorch version: (\S+)", str(content.get("pretty_env_info")))
    run = {name: config.get(name) for name in ("model", "model_args", "limit")}
    # Arguments that lm-eval does not count among a run's configuration.
    for name in ("system_instruction", "fewshot_as_multiturn"):
        run[name] = content.get(name)
    run["apply_chat_template"] = bool(content.get("chat_template"))
    if all(name in config for name in SEEDS):
        run["seed"] = [config[name] for name in SEEDS]
    # Models of ours keep what lm-eval does not.
    run |= config.get("latent_eval", {}).get("asked", {})
    return {
        "name": config.get("model_args") or {},
        "lm_eval": content.get("lm_eval_version"),
        "date": content.get("date"),
        "model_name": content.get("model_name"),
        "configs": content.get("configs") or {},
        "transformers": content.get("transformers_version"),
        "torch": torch and torch[1],
        "run": run,
    }


def _foreign(config: dict[str, Any]) -> dict[str, Any]:
    by_words = config["model"] == "kenlm"
    digest = config.get("model_sha") or config.get("checkpoint_digest")
    if not digest:  # lm-eval records no commit
        given = model_arguments(config.get("model_args"))
        named = given.get("pretrained") or given.get("model") or config["model"]
        name = Path(str(named)).name if Path(str(named)).is_absolute() else named
        why = f"no digest: lm_eval {config['model']} says none of its weights"
        digest = f"{name} ({why})"
    return {
        "model": config["model"],
        "checkpoint": digest,
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
