"""Statements of published numbers: settings, bound and error, and how to repeat them.

A result that lacks one of them is not exported. Paths of this machine are left out: a
folder is named by what it is.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_latent_eval.estimators import Bound, certificate_cost
from lm_latent_eval.folders import task_path
from lm_latent_eval.models import WRAPPERS, model_class
from lm_latent_eval.options import table
from lm_latent_eval.report.numbers import (
    RATES,
    NoNumberError,
    Number,
    numbers,
    stated,
    with_numbers,
)
from lm_latent_eval.report.results import WHOLE_TEXTS, model_arguments
from lm_latent_eval.report.tables import markdown, one_line
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.metrics import CERTIFIED
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.records import TASK, WITHOUT_NUMBER

DELTA = 0.05
REQUIRED = ("model", "checkpoint", "estimator")
OF_LOG_P = {
    Bound.EXACT: "exact",
    Bound.STRICT_LOWER: "strict upper bound of the true value",
    Bound.STOCHASTIC_LOWER: "stochastic upper bound of the true value",
    Bound.ESTIMATED_LOWER: "estimate of an upper bound of the true value",
    Bound.NONE: "none",
    Bound.UNNORMALISED: "none: scores are not normalised",
}
"""Bound of a rate or perplexity, by the bound of the log-likelihood."""


def statements_of(runs: Sequence[Run]) -> list[Statement]:
    """Return the statement of each task; those without a number are left out.

    Raises:
        ValueError: If no task has a number, or as of ``Statement.of``.
    """
    return with_numbers(partial(Statement.of, run) for run in runs)


@dataclass(frozen=True)
class Statement:
    """A task's numbers, each with what it needs to be understood."""

    run: Run
    numbers: dict[str, Number]
    """Numbers that can be published: rates, an accuracy, or a mean score."""
    bound: Bound

    @classmethod
    def of(cls, run: Run) -> Statement:
        """Check that nothing is missing.

        Raises:
            ValueError: If the run is not finished, something that a number depends on
                is not known, or there is no number.
        """
        if lacking := run.settings.get(WITHOUT_NUMBER):
            raise ValueError(
                f"{run.task} has no number of {len(lacking)} texts ({lacking[0]}): "
                "draw more samples"
            )
        if not run.finished:
            raise ValueError(f"{run.task} is not finished: finish the run first")
        bounds = [answer.estimate.bound for answer in run.answers]
        bound = Bound.weakest(bounds) if bounds else Bound.NONE
        is_drawn = bool(bounds) and bound is not Bound.EXACT
        needed = REQUIRED + (("seed",) if is_drawn else ())
        if missing := [name for name in needed if run.settings.get(name) is None]:
            raise ValueError(
                f"{run.task} does not say {', '.join(missing)}, on which its "
                "numbers depend: run it again with this version"
            )
        published = {
            name: number
            for name, number in numbers(run).items()
            if name in (*RATES, "acc", run.metric)
            and not isinstance(number.value, str)
            and math.isfinite(number.value)
        }
        if not published:
            raise NoNumberError(f"{run.task} has no number to export")
        statement = cls(run, published, bound)
        if statement.num_units < 2:
            raise ValueError(
                f"{run.task} has one text: an error over texts takes at least two"
            )
        return statement

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the task by lm-eval; empty without one."""
        return dict(self.run.settings.get("configs", {}).get(self.run.task, {}))

    @property
    def num_units(self) -> int:
        return len(self.documents) or self.run.units["unit"].nunique()

    @property
    def documents(self) -> dict[int, list[Answer]]:
        """Answers to each text or question that the numbers are of."""
        documents: dict[int, list[Answer]] = {}
        for answer in self.run.answers:
            if "acc" not in self.numbers or answer.accuracy is not None:
                documents.setdefault(answer.index, []).append(answer)
        return documents

    @property
    def settings(self) -> dict[str, Any]:
        return stated(self.run.settings)

    def certified(self, metric: str) -> float | None:
        """Return the upper limit of a rate at 95 % confidence over the draws.

        None of an accuracy, where a number bounds nothing, and where it is infinite.
        Strict bounds and exact numbers are it themselves.
        """
        unit = RATES.get(metric)
        if unit is None or self.bound not in CERTIFIED:
            return None
        answers = self.run.answers
        total = sum(answer.estimate.log_evidence for answer in answers)
        units = sum(getattr(answer, unit.name) for answer in answers)
        try:
            return unit.value((slack(answers, self.bound) - total) / units)
        except OverflowError:
            return None

    def bound_of(self, metric: str) -> str:
        """Say how a number bounds the true one: an accuracy not at all."""
        is_bound = metric in RATES or self.bound is Bound.EXACT
        return OF_LOG_P[self.bound if is_bound else Bound.NONE]

    @property
    def note(self) -> str:
        how = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        bound = self.bound_of(next(iter(self.numbers)))
        checkpoint = self.run.settings["checkpoint"]
        kind = "texts" if self.run.is_of_texts else "questions"
        return (
            f"lm-latent-eval: {how}; bound: {bound}; checkpoint {checkpoint}; "
            f"{self.num_units:,} {kind}, digest {self.run.texts_digest}"
        )


def slack(answers: Sequence[Answer], bound: Bound) -> float:
    """Return the nats of the certificate (Markov's inequality)."""
    if bound is not Bound.STOCHASTIC_LOWER:
        return 0.0
    streams = Counter(a.stream for a in answers if a.estimate.bound is bound)
    return certificate_cost(1 - DELTA, multiplicity=max(streams.values()))


_TASKS = ("lm_eval", "tasks")
"""Folder of lm-eval's own task files."""
_SEEDS = [0, 1234, 1234, 1234]
"""Seeds of lm-eval without ``--seed``."""


def command(task: str, settings: Mapping[str, Any]) -> str:
    """Return the command that gives a task's numbers again.

    Example:
        >>> run = {"model": "hf", "model_args": {"pretrained": "gpt2"}, "limit": 9.0}
        >>> command("wikitext", {"run": run})
        'lm_eval --model hf --model_args pretrained=gpt2 --tasks wikitext --limit 9'
    """
    if task == TASK and "run" not in settings:
        return shlex.join(["lm-latent-eval", "estimate", *_estimate(settings)])
    return " ".join(["lm_eval", *_lm_eval(task, settings)])


def _estimate(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from ("DIRECTORY", "--data", "TEXTS")
    model, kind = settings.get("model"), ScoringOptions
    if model in WRAPPERS:
        yield from ("--model", str(model))
        kind = model_class(model).options()
    shared = ScoringOptions.names()
    for row in table(kind):
        value = settings.get(row.name, row.default)
        # Some estimators cannot be asked for: other options make them what they are.
        made = model in WRAPPERS and row.choices and value not in row.choices()
        if value == row.default or made:
            continue
        text = "all" if value is None else str(value)
        if row.name in shared:
            yield from (f"--{row.name.replace('_', '-')}", text)
        else:
            yield from ("--option", f"{row.name}={text}")


def _lm_eval(task: str, settings: Mapping[str, Any]) -> Iterator[str]:
    run = settings.get("run", {})
    config = settings.get("configs", {}).get(task, {})
    yield f"--model {_quoted(run.get('model') or settings.get('model'))}"
    # Folders are named by their last part.
    arguments = model_arguments(run.get("model_args"))
    if arguments:
        paths = {name: Path(str(value)) for name, value in arguments.items()}
        shown = ",".join(
            f"{name}={path.name if path.is_absolute() else arguments[name]}"
            for name, path in paths.items()
        )
        yield f"--model_args {_quoted(shown)}"
    yield f"--tasks {_quoted(task)}"
    if folder := _include_path(config):
        yield f"--include_path {folder}"
    metadata = {
        name: Path(value).name if isinstance(value, str) else value
        for name, value in (config.get("metadata") or {}).items()
        if name not in ("version", "config_source", *arguments)
    }
    if metadata:
        yield f"--metadata {_quoted(json.dumps(metadata))}"
    # None is a task's own number; whole texts have no shots.
    shots = config.get("num_fewshot")
    if shots is not None and config.get("output_type") != WHOLE_TEXTS:
        yield f"--num_fewshot {shots}"
    if template := run.get("apply_chat_template"):
        yield "--apply_chat_template"
        if isinstance(template, str):
            yield _quoted(template)
        if run.get("fewshot_as_multiturn") is False:
            yield "--fewshot_as_multiturn false"
    if instruction := run.get("system_instruction"):
        yield f"--system_instruction {_quoted(instruction)}"
    if (limit := run.get("limit")) is not None:
        yield f"--limit {limit:g}"
    if samples := (run.get("samples") or {}).get(task):
        yield f"--samples {_quoted(json.dumps({task: samples}))}"
    if (seeds := run.get("seed", _SEEDS)) != _SEEDS:
        yield f"--seed {','.join(map(str, seeds))}"


def _include_path(config: Mapping[str, Any]) -> str | None:
    source = (config.get("metadata") or {}).get("config_source")
    if not isinstance(source, str):
        return None
    parts = Path(source).parts
    if any(parts[n : n + 2] == _TASKS for n in range(len(parts))):
        return None
    shipped = {path.name for path in Path(task_path()).rglob("*.yaml")}
    return '"$(lm-latent-eval tasks)"' if parts[-1] in shipped else "FOLDER"


def _quoted(text: Any) -> str:
    return shlex.quote(one_line(str(text)))


def section(run: Run) -> str:
    """Return the command that repeats a run, as Markdown."""
    line = command(run.task, run.settings)
    # What HTML or a fence could end stands in the text instead, escaped.
    shown = f"  {markdown(line)}" if {*line} & {*"<`"} else f"  ```\n  {line}\n  ```"
    by = ", ".join(
        f"{name} {markdown(str(version))}"
        for name in ("lm_latent_eval", "lm_eval", "transformers", "torch")
        if (version := run.settings.get(name))
    )
    return f"  By {by}:\n\n{shown}" if by else shown
