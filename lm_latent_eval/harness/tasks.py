"""Base class of our tasks, for lm-eval 0.4 and 0.5.

A task file names a class (``class: !function functions.WholeTextTask``). What the two
lines do differently is asked of the one that is installed, never read off its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import lm_eval.api.metrics  # lm-eval's own names come first
import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.api.registry import metric_registry, register_metric
from lm_eval.api.task import ConfigurableTask

RollingTask: Any = getattr(
    lm_eval.api.task, "LoglikelihoodRollingTask", ConfigurableTask
)
"""Asks for whole texts. lm-eval 0.5 has a class a kind of request, 0.4 one for all."""


class WholeTextTask(RollingTask):
    """A task of a YAML file about whole texts, with errors among its metrics."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={k: v for k, v in config.items() if k != "class"})

    def aggregate(self, bootstrap_iters: int | None = None) -> Any:
        """Turn values of documents into numbers, and bootstrap none; 0.5 calls this.

        It would draw every corpus of ours a hundred thousand times a metric, for errors
        that those among our metrics then replace.
        """
        return super().aggregate(0)


def announce(metrics: Iterable[str]) -> None:
    """Register metrics that ``process_results`` makes; 0.5 warns of unknown names."""
    for name in metrics:
        if name not in metric_registry:
            register_metric(metric=name, output_type="loglikelihood_rolling")(_unmade)


def _unmade(*_: Any, **__: Any) -> Any:
    """Refuse what lm-eval calls where a task has no ``process_results``.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "a metric of lm_latent_eval needs the process_results of its task: include "
        "tasks/perplexity/_metrics.yaml"
    )


def whole_text(text: str) -> tuple[str, ...]:
    """Return the arguments of a request for a whole text, as lm-eval's tasks ask."""
    return (text,) if RollingTask is ConfigurableTask else ("", text)


def request(
    kind: str,
    arguments: tuple[str, ...],
    doc: dict[str, Any],
    index: int,
    asked: tuple[str, int, int],
) -> Instance:
    """Make a request.

    Args:
        kind: What a model is asked for.
        arguments: What with.
        doc: The document.
        index: Of the request among those of the document.
        asked: The task's name, the document's number, and how often to ask.
    """
    task, number, _ = asked
    return Instance(
        request_type=kind,
        doc=doc,
        arguments=arguments,
        idx=index,
        task_name=task,
        doc_id=number,
        metadata=asked,  # from which 0.4 takes all three
    )
