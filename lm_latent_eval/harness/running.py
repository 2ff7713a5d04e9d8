"""State of the running ``simple_evaluate`` call, and its end if texts lack numbers.

Where a backend raises, lm-eval writes nothing: neither results nor the sample log of
the texts that were scored. So such texts are answered by ``MissedFloat``, and the error
comes last. lm-eval asks for the model's description when all is counted; what it would
write and print after that is written and printed here.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from lm_eval.loggers.utils import add_env_info
from lm_eval.utils import make_table

from lm_latent_eval.files import safe_name
from lm_latent_eval.harness.answers import MissedFloat, ScoredFloat, score_of
from lm_latent_eval.ledger.files import BusyError
from lm_latent_eval.ledger.journal import UNFINISHED
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.text.files import digest

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASKING = (
    "limit",
    "samples",
    "num_fewshot",
    "fewshot_random_seed",
    "system_instruction",
    "apply_chat_template",
    "fewshot_as_multiturn",
    "metadata",
)
"""Arguments of ``simple_evaluate`` on which it depends what its tasks ask."""

UNSAID = ("samples", "apply_chat_template")
"""Arguments that lm-eval's results lack: of a chat template they have the text."""

RUN_DIGEST = "run_digest"
"""Entry of an unfinished file's settings: other texts make another run."""

RATES = {
    "word_perplexity": "words",
    "byte_perplexity": "bytes",
    "bits_per_byte": "bytes",
}
"""Metrics per word and byte, as lm-eval names them, and we; what they divide by."""
BYTE_RATES = tuple(
    name + part
    for name, unit in RATES.items()
    if unit == "bytes"
    for part in ("", "_stderr")
)


@dataclass(frozen=True)
class Host:
    """State of the running ``simple_evaluate``."""

    folder: Path
    """Folder of its results."""
    tasks: dict[str, Any]
    """Name -> task, whose instances hold their answers."""

    def new_files(
        self, kind: str, tasks: Iterable[str], suffix: str = ".parquet"
    ) -> dict[str, str]:
        """Make the folder, and name each task's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now().isoformat().replace(":", "-")
        return {task: f"{kind}_{safe_name(task)}_{stamp}{suffix}" for task in tasks}

    def unfinished(self, kind: str, settings: Settings) -> list[Path]:
        """Return the unfinished files of this command."""
        return [*self.folder.glob(f"{kind}_{run_digest(settings)}_*{UNFINISHED}")]

    @contextmanager
    def following(
        self,
        kind: str,
        part: int | str,
        settings: Settings,
        journal: Callable[
            [Path, Settings], AbstractContextManager[Callable[[str, T], None]]
        ],
    ) -> Iterator[Callable[[str, T], None]]:
        """Yield a function that keeps results in a file of their own until the end.

        It keeps nothing while another run of the command writes that file: both compute
        the same, so nothing is lost.
        """
        run, keep = run_digest(settings), None
        path = self.folder / f"{kind}_{run}_{part}{UNFINISHED}"
        with ExitStack() as stack:
            try:
                keep = stack.enter_context(journal(path, {**settings, RUN_DIGEST: run}))
            except BusyError as busy:
                logger.warning("%s. This run goes on, and writes nothing there", busy)
            yield keep or (lambda task, result: None)


_asking: ContextVar[bool] = ContextVar("_asking", default=False)


@contextmanager
def component_call() -> Iterator[None]:
    """Mark calls of a model by another model of ours, which stores the answers."""
    before = _asking.set(True)
    try:
        yield
    finally:
        _asking.reset(before)


def is_component() -> bool:
    """Whether another model of ours is the caller."""
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


def hypothetical_metrics(
    task: Any, instances: Sequence[Any], answers: Sequence[Any]
) -> dict[str, Any]:
    """Return a task's metrics of a document, given hypothetical answers.

    Args:
        task: Of lm-eval 0.4, or of 0.5, whose scorers say what it does not.
        instances: All requests for the document, by their index.
        answers: As many.
    """
    metrics = task.process_results(instances[0].doc, answers)
    if metrics is not None:
        return dict(metrics)
    answered = [
        replace(instance, resps=[answer], filtered_resps={})
        for instance, answer in zip(instances, answers, strict=True)
    ]
    doc_id, values = instances[0].doc_id, {}
    for scorer in task.scorers:
        scorer.apply_filter(answered)
        scores = scorer.score_instances({doc_id: answered})[doc_id].scores
        values.update({name: repeats[0] for name, repeats in scores.items()})
    return values


def documents(task: Any) -> dict[int, list[Any]]:
    """Return a task's requests for each document, by their index."""
    requests: dict[int, list[Any]] = {}
    for instance in sorted(task.instances, key=lambda instance: instance.idx):
        requests.setdefault(instance.doc_id, []).append(instance)
    return requests


def accuracies(
    task: Any, instances: Sequence[Any], options: Sequence[Collection[int]]
) -> tuple[float, ...] | None:
    """Return a document's accuracy for each option, were that the most probable.

    None of fewer than two options, or of a task without an accuracy.

    Args:
        task: A task as ``hypothetical_metrics`` takes it.
        instances: All requests for the document, by their index.
        options: Indices of the requests for each option.
    """
    if len(options) < 2:
        return None
    scores = []
    for indices in options:
        answers = [(-1e9 * (n not in indices), False) for n in range(len(instances))]
        values = hypothetical_metrics(task, instances, answers)
        if "acc" not in values:
            return None
        scores.append(float(values["acc"]))
    return tuple(scores)


def evaluation() -> dict[str, Any]:
    """Return the local variables of a running ``simple_evaluate``; {} without one.

    They are read from its frame: lm-eval tells a model neither where results go, nor
    which tasks run, nor what its cache has answered for it. Nothing else reads frames.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (
            frame.f_code.co_name == "simple_evaluate"
            and frame.f_globals["__name__"] == "lm_eval.evaluator"
        ):
            return frame.f_locals
        frame = frame.f_back
    return {}


def unsaid() -> dict[str, Any]:
    """Return the arguments of the running ``simple_evaluate`` that it does not keep."""
    running = evaluation()
    return {name: running[name] for name in UNSAID if running.get(name)}


def run_digest(settings: Settings) -> str:
    """Return the digest of a run: only the same command resumes its files.

    Without a ``simple_evaluate`` there are no tasks, and settings alone are the name.
    """
    running = evaluation()
    arguments = {name: running.get(name) for name in ASKING}
    tasks = {name: _documents(task) for name, task in running_tasks().items()}
    run = {"settings": settings, "tasks": sorted(tasks.items()), **arguments}
    return digest(json.dumps(run, default=str))[:8]


def _documents(task: Any) -> str:
    """Return the digest of all documents of a task, whichever process they are for."""
    docs = getattr(task, "eval_docs", ())
    lines = (json.dumps(doc, default=lambda x: type(x).__name__) for doc in docs)
    return digest("\n".join(lines))


def drop_errors_of_errors() -> None:
    """Remove what lm-eval lists as the error of a metric that is an error itself."""
    results = (evaluation().get("results") or {}).get("results", {})
    for values in results.values():
        for name in [key for key in values if "_stderr_stderr," in key]:
            del values[name]


SAID = ("model", "model_args", "batch_size", "device", "use_cache", "limit")
"""Entries of results about a run, by the names of ``simple_evaluate``."""


def missed() -> Iterator[tuple[str, MissedFloat]]:
    """Yield task and answer of every text of this process that has no number."""
    for name, task in running_tasks().items():
        for instance in task.instances:
            for answer in instance.resps:
                if isinstance(score := score_of(answer), MissedFloat):
                    yield name, score


def lacking() -> Iterator[tuple[str, str, int]]:
    """Yield task, kind and number of what rates per byte leave out of a text.

    Of a text with unknown words that are charged as one class, or with white space that
    is not charged, such rates are too low.
    """
    for name, task in running_tasks().items():
        if not {*BYTE_RATES}.isdisjoint(stock_rates(task)):
            for instance in task.instances:
                for score in map(score_of, instance.resps):
                    if isinstance(score, ScoredFloat):
                        yield name, "words not spelled", score.answer.unspelled
                        yield name, "gaps not charged", score.answer.respaced


def refuse_byte_rates(lacks: Iterable[tuple[str, str, int]]) -> None:
    """Replace rates per byte that lm-eval computed of texts that were not scored whole.

    Args:
        lacks: Items of ``lacking``, of all processes.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for task, what, count in lacks:
        counts[what][task] += count
    for what, of_tasks in counts.items():
        _refuse(evaluation()["results"], of_tasks, what, BYTE_RATES)


def end(info: dict[str, Any], missed: Mapping[str, list[MissedFloat]]) -> NoReturn:
    """Write and print results as lm-eval would, then raise.

    Args:
        info: Description of the model and its numbers.
        missed: Task -> answers of its texts without a number.

    Raises:
        MissedTextsError: Always; it names the texts.
    """
    running = evaluation()
    results = dict(running["results"])
    samples = results.pop("samples", {})
    counts = {task: len(scores) for task, scores in missed.items()}
    _refuse(results, counts, "texts without a number")
    results["config"] = {name: running.get(name) for name in SAID} | info
    results["date"] = running.get("start_date")
    add_env_info(results)
    if (tracker := running.get("evaluation_tracker")) is not None:
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, logged in samples.items():
            tracker.save_results_samples(task_name=task, samples=logged)
    print(make_table(results))
    if "groups" in results:
        print(make_table(results, "groups"))
    every = [score for scores in missed.values() for score in scores]
    documents = (sizes["effective"] for sizes in results["n-samples"].values())
    raise error_of(every, sum(documents))


def _refuse(
    results: dict[str, Any],
    counts: Mapping[str, int],
    what: str,
    metrics: Collection[str] | None = None,
) -> None:
    """Replace numbers of incomplete tasks, and of their groups, by words.

    Our metrics say themselves how many texts they are of.

    Args:
        results: Results of ``simple_evaluate``.
        counts: Task -> number of missing items.
        what: Kind of the missing items.
        metrics: Metrics that they make wrong; None is all.
    """

    def lost_in(name: str) -> int:
        parts = results.get("group_subtasks", {}).get(name) or ()
        return counts.get(name, 0) + sum(map(lost_in, parts))

    for kind in ("results", "groups"):
        for name, values in results.get(kind, {}).items():
            if lost := lost_in(name):
                for metric, value in values.items():
                    called, comma, _ = metric.partition(",")
                    if metrics is not None and called not in metrics:
                        continue
                    if comma and isinstance(value, float):
                        error = called.endswith("_stderr")
                        values[metric] = "N/A" if error else f"refused: {lost} {what}"


def error_of(missed: list[MissedFloat], of: int) -> MissedTextsError:
    """Return the error that names the texts without a number, of ``of`` texts."""
    names = dict(enumerate(dict.fromkeys(score.name for score in missed)))
    return MissedTextsError(names, missed[0].why, of)
