"""Where published numbers come from: command, versions and texts, for whoever repeats.

Paths of this machine are left out: a folder is named by what it is.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lm_latent_eval.report.tabular import markdown, one_line
from lm_latent_eval.scoring.files import TASK
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.records import Record
from lm_latent_eval.task import task_path

_THEIRS = ("lm_eval", "tasks")
"""Where lm-eval's own task files are."""


def command(record: Record) -> str:
    """Return the command that gives the numbers again.

    Example:
        >>> run = {"model": "hf", "model_args": {"pretrained": "gpt2"}, "limit": 9.0}
        >>> command(Record("wikitext", {"run": run}, []))
        'lm_eval --model hf --model_args pretrained=gpt2 --tasks wikitext --limit 9'
    """
    if record.task == TASK and "run" not in record.settings:
        return shlex.join(["lm-latent-eval", "estimate", *_estimate(record.settings)])
    return " ".join(["lm_eval", *_lm_eval(record)])


def _estimate(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from ("DIRECTORY", "--data", "TEXTS")
    defaults = ScoringOptions()
    for name, default in vars(defaults).items():
        value = settings.get(name, default)
        if value != default:
            yield from (f"--{name.replace('_', '-')}", str(value))


def _lm_eval(record: Record) -> Iterator[str]:
    run = record.settings.get("run", {})
    config = record.settings.get("configs", {}).get(record.task, {})
    yield f"--model {_quoted(run.get('model') or record.settings.get('model'))}"
    if arguments := _arguments(run.get("model_args")):
        yield f"--model_args {_quoted(arguments)}"
    yield f"--tasks {_quoted(record.task)}"
    if folder := _include_path(config):
        yield f"--include_path {folder}"
    metadata = {
        name: Path(value).name if isinstance(value, str) else value
        for name, value in (config.get("metadata") or {}).items()
        if name not in ("version", "config_source", *_named(run.get("model_args")))
    }
    if metadata:
        yield f"--metadata {_quoted(json.dumps(metadata))}"
    if shots := config.get("num_fewshot"):
        yield f"--num_fewshot {shots}"
    if (limit := run.get("limit")) is not None:
        yield f"--limit {limit:g}"


def _arguments(given: Any) -> str:
    """Return ``--model_args``, folders by their last part."""
    named = _named(given)
    return ",".join(f"{name}={_shown(value)}" for name, value in named.items())


def _named(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        pairs = (part.partition("=") for part in given.split(",") if part)
        return {name: value for name, _, value in pairs}
    return dict(given or {})


def _shown(value: Any) -> str:
    path = Path(str(value))
    return path.name if path.is_absolute() else str(value)


def _include_path(config: Mapping[str, Any]) -> str | None:
    source = (config.get("metadata") or {}).get("config_source")
    if not isinstance(source, str):
        return None
    parts = Path(source).parts
    if any(parts[n : n + 2] == _THEIRS for n in range(len(parts))):
        return None
    shipped = {path.name for path in Path(task_path()).rglob("*.yaml")}
    return '"$(lm-latent-eval tasks)"' if parts[-1] in shipped else "FOLDER"


def _quoted(text: Any) -> str:
    return shlex.quote(one_line(str(text)))


def versions(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what computed the numbers: package -> version, those that are known."""
    names = ("lm_latent_eval", "lm_eval", "transformers", "torch")
    return {name: str(settings[name]) for name in names if settings.get(name)}


def section(record: Record) -> str:
    """Return how to make the numbers of a task again, as Markdown."""
    said = command(record)
    # What HTML or a fence could end stands in the text instead, escaped.
    shown = (
        f"  {markdown(said)}" if set(said) & {"<", "`"} else f"  ```\n  {said}\n  ```"
    )
    known = versions(record.settings)
    by = ", ".join(f"{name} {markdown(version)}" for name, version in known.items())
    return f"  By {by}:\n\n{shown}" if by else shown
