"""State of the running ``simple_evaluate`` call.

lm-eval tells a model neither where results go nor what its cache has answered for it.
The function that runs knows both, and they are read from there.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec

from lm_latent_eval.ledger.files import BusyError
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.text.digests import digest

logger = logging.getLogger(__name__)

P = ParamSpec("P")

ASKING = (
    "limit",
    "samples",
    "num_fewshot",
    "fewshot_random_seed",
    "system_instruction",
    "apply_chat_template",
    "fewshot_as_multiturn",
)
"""Arguments of ``simple_evaluate`` on which it depends what its tasks ask."""


RATES = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics per word and byte, as lm-eval names them, and we."""


@dataclass(frozen=True)
class Host:
    """What the running ``simple_evaluate`` knows."""

    folder: Path
    """Where its results will be."""
    tasks: dict[str, Any]
    """Name -> task, whose instances hold their answers."""


_asking: ContextVar[bool] = ContextVar("_asking", default=False)


@contextmanager
def asking_a_component() -> Iterator[None]:
    """Ask a model for another one of ours, which keeps the answers itself."""
    before = _asking.set(True)
    try:
        yield
    finally:
        _asking.reset(before)


def is_component() -> bool:
    """Whether another model of ours is who asks."""
    return _asking.get()


def host() -> Host | None:
    """Find the ``simple_evaluate`` that runs and writes results of this model."""
    if is_component():
        return None
    tracker = evaluation().get("evaluation_tracker")
    if tracker is None or not tracker.output_path:
        return None
    output = Path(tracker.output_path)
    model = str(tracker.general_config_tracker.model_name_sanitized)
    folder = output.parent if output.suffix == ".json" else output / model
    return Host(folder, running_tasks())


def running_tasks() -> dict[str, Any]:
    """Return the tasks of the ``simple_evaluate`` that runs, by name; {} without one.

    By the name that is in their requests: lm-eval 0.5 lists those of a group as
    ``group::task``.

    Of every document that is this process's they hold all instances, those that a cache
    has answered too.
    """
    tasks: dict[str, Any] = evaluation().get("loaded", {}).get("tasks", {})
    return {task.task_name: task for task in tasks.values()}


def stock_rates(task: Any) -> list[str]:
    """Return the rates of a task that lm-eval makes itself, which refuse nothing.

    They divide by all words or bytes of a text, whatever the model has scored of it.
    """
    metrics = getattr(getattr(task, "config", None), "metric_list", None) or []
    return [
        metric["metric"]
        for metric in metrics
        if metric["metric"] in RATES and not callable(metric.get("aggregation"))
    ]


def said(task: Any, instances: Sequence[Any], answers: Sequence[Any]) -> dict[str, Any]:
    """Return what a task says of a document, by metric, had it been answered so.

    Args:
        task: Of lm-eval 0.4, or of 0.5, whose scorers say what it does not.
        instances: All requests for the document, by their index.
        answers: As many.
    """
    found = task.process_results(instances[0].doc, answers)
    if found is not None:
        return dict(found)
    answered = [
        replace(instance, resps=[answer], filtered_resps={})
        for instance, answer in zip(instances, answers, strict=True)
    ]
    number, values = instances[0].doc_id, {}
    for scorer in task.scorers:
        scorer.apply_filter(answered)
        scores = scorer.score_instances({number: answered})[number].scores
        values.update({name: repeats[0] for name, repeats in scores.items()})
    return values


def evaluation() -> dict[str, Any]:
    """Return what the ``simple_evaluate`` that runs knows; {} where none does."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (
            frame.f_code.co_name == "simple_evaluate"
            and frame.f_globals["__name__"] == "lm_eval.evaluator"
        ):
            return frame.f_locals
        frame = frame.f_back
    return {}


def run_digest(settings: Settings) -> str:
    """Name a run: only the same command again takes up and removes what it left.

    Without a ``simple_evaluate`` there are no tasks, and settings alone are the name.
    """
    running = evaluation()
    asked = {name: running.get(name) for name in ASKING}
    run = {"settings": settings, "tasks": sorted(running_tasks()), **asked}
    return digest(json.dumps(run))[:8]


@contextmanager
def or_without(
    journal: AbstractContextManager[Callable[P, None]],
) -> Iterator[Callable[P, None]]:
    """Open a journal; go on without one while another run of the command writes it.

    Both find the same, so nothing is lost if only one of them keeps it as it goes.

    Args:
        journal: Yields what keeps a result.
    """

    def keep_nothing(*_: P.args, **__: P.kwargs) -> None:
        pass

    with ExitStack() as stack:
        try:
            keep = stack.enter_context(journal)
        except BusyError as busy:
            logger.warning("%s. This run goes on, and writes nothing there", busy)
            keep = keep_nothing
        yield keep
