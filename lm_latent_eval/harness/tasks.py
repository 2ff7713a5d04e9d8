"""Base class of our tasks, their requests, and local copies of data sets.

A task file names a class (``class: !function functions.WholeTextTask``). What lm-eval
0.4 and 0.5 do differently is asked of the one that is installed, never read off its
version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import lm_eval.api.metrics  # lm-eval's own names come first
import lm_eval.api.task
from datasets import Dataset
from huggingface_hub import metadata_save
from lm_eval.api.instance import Instance
from lm_eval.api.registry import metric_registry, register_metric
from lm_eval.api.task import ConfigurableTask

from lm_latent_eval.options import one_of
from lm_latent_eval.text.files import digest

RollingTask: Any = getattr(
    lm_eval.api.task, "LoglikelihoodRollingTask", ConfigurableTask
)
"""Asks for whole texts. lm-eval 0.5 has a class a kind of request, 0.4 one for all."""


Aggregation: TypeAlias = Callable[[Sequence[Any]], Any]


class WholeTextTask(RollingTask):
    """A task of a YAML file about whole texts, with errors among its metrics.

    A ``metric_list`` of the file needs names alone.
    """

    table: ClassVar[Mapping[str, Aggregation]] = {}
    """Metrics that there are, errors as ``NAME_stderr``; none: the class's own."""
    listed: ClassVar[Sequence[str]] = ()
    """Metrics where the file names none; (): all."""
    better: ClassVar[Collection[str]] = ()
    """Metrics of which more is better."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """List the metrics, each with its error.

        Raises:
            ValueError: If the file names a metric that there is not.
        """
        config = {k: v for k, v in config.items() if k != "class"}
        if self.table:
            named = [each["metric"] for each in config.get("metric_list") or ()]
            for name in named:
                one_of("metric_list", name, [*self.table])
            names = {*(named or self.listed or self.table)}
            config["metric_list"] = [
                {
                    "metric": name,
                    "aggregation": aggregation,
                    "higher_is_better": name in self.better,
                }
                for name, aggregation in self.table.items()
                if name.removesuffix("_stderr") in names
            ]
        super().__init__(config=config)

    def aggregate(self, bootstrap_iters: int | None = None) -> Any:
        """Turn values of documents into numbers, and bootstrap none; 0.5 calls this.

        It would draw every corpus of ours a hundred thousand times a metric, for errors
        that those among our metrics then replace.
        """
        return super().aggregate(0)


def register_metrics(names: Iterable[str]) -> None:
    """Register metrics that ``process_results`` makes; 0.5 warns of unknown names."""
    for name in names:
        if name not in metric_registry:
            register_metric(metric=name, output_type="loglikelihood_rolling")(_unmade)


def _unmade(*_: Any, **__: Any) -> Any:
    """Raise: lm-eval computes a metric that ``process_results`` should have made."""
    raise ValueError(
        "a metric of lm_latent_eval needs the class of its task: include "
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


def write_dataset(
    folder: str | Path,
    configs: Mapping[str, Mapping[str, Iterable[Mapping[str, Any]]]],
) -> None:
    """Write a folder that a stock task reads in place of a repository of the hub.

    Args:
        folder: Called like the repository (``dataset_path`` in the task's YAML), in
            the directory where ``lm_eval`` will be run.
        configs: For every ``dataset_name``, for every split, the rows; a data set
            without a name is ``default``. They replace what was there.

    Raises:
        ValueError: If a split has no rows, or rows of different columns.
    """
    listed = []
    for config, splits in configs.items():
        files = []
        for split, rows in splits.items():
            rows = [dict(row) for row in rows]
            if not rows:
                raise ValueError(f"{folder}: split {split!r} of {config!r} has no rows")
            if odd := next((r for r in rows if r.keys() != rows[0].keys()), None):
                raise ValueError(
                    f"{folder}: in split {split!r} of {config!r} one row has the "
                    f"columns {', '.join(rows[0])}, another {', '.join(odd)}"
                )
            # ``datasets`` keeps what it has read under the names of the files, not
            # under their contents: other rows need another name, or it is asked in
            # vain for them, from any directory.
            path = Path(config) / f"{split}-{digest(repr(rows))}.parquet"
            (Path(folder) / config).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_parquet(Path(folder) / path)
            files.append({"split": split, "path": path.as_posix()})
        listed.append({"config_name": config, "data_files": files})
    metadata_save(Path(folder) / "README.md", {"configs": listed})
