"""Records of tasks, written beside lm-eval's results.

Where no ``simple_evaluate`` runs, or it writes no results, nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance

from lm_latent_eval.estimators.choices import ROUNDING, tied
from lm_latent_eval.harness.answers import ScoredFloat, score_of
from lm_latent_eval.harness.contrastive import DISTORTION
from lm_latent_eval.harness.processes import Processes, Request
from lm_latent_eval.harness.running import documents, host, hypothetical_metrics
from lm_latent_eval.ledger.journal import remove
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import WITHOUT_NUMBER, Row, journal, row_of, write


class Recorder:
    """Collects the answers of a run, and writes them a task a file."""

    def __init__(self, processes: Processes, *, weights: bool) -> None:
        """Start empty.

        Args:
            processes: Whose answers are put together.
            weights: Whether to keep log-weights.
        """
        self._processes = processes
        self._weights = weights
        self._rows: dict[str, dict[tuple[int, int], Row]] = {}

    @contextmanager
    def following(
        self, settings: Settings, kind: str
    ) -> Iterator[Callable[[Request, ScoredFloat], None]]:
        """Yield a function that stores an answer as soon as it is found.

        Args:
            settings: What the numbers depend on.
            kind: Of requests: each has a file of its own until the run is finished.
        """
        where = host()
        if where is None:
            yield lambda request, scored: None
            return
        part = f"{kind}_{self._processes.rank}"
        with where.following("record", part, settings, journal) as add:

            def keep(request: Request, scored: ScoredFloat) -> None:
                if request.doc_id is not None:
                    add(request.task_name or "", _placed(request, scored))

            yield keep

    def collect(self) -> None:
        """Take in the answers of every process, those from a cache too.

        Instances keep their answers, so all of this run are found each time, and none
        of another run of the same model.
        """
        where = host()
        rows: list[tuple[str, Row]] = []
        for name, task in where.tasks.items() if where else ():
            for answer in _answers(task):
                # Sums over the weights stay where they are not asked for themselves.
                row = row_of(answer)
                if not self._weights:
                    row["log_weights"] = ()
                rows.append((name, row))
        self._rows = {}
        for name, row in self._processes.gather(rows):
            key = row["document"], row["option"]
            self._rows.setdefault(name, {})[key] = row

    def finish(
        self, settings: Settings, without: Mapping[str, list[str]]
    ) -> dict[str, str]:
        """Write the records.

        Args:
            settings: What the numbers depend on.
            without: Task -> names of its texts that have no number.

        Returns:
            Task -> name of its file, beside the results.
        """
        where = host()
        if where is None:
            return {}
        files = where.new_files("record", self._rows)
        for task, rows in self._rows.items():
            lacking = {WITHOUT_NUMBER: without[task]} if task in without else {}
            metadata, ordered = {**settings, **lacking}, sorted(rows)
            path = where.folder / files[task]
            write(path, task, metadata, [rows[key] for key in ordered])
        remove(where.unfinished("record", settings))
        return files


def _answers(task: Any) -> Iterator[Answer]:
    """Yield the answers of a task, with the task's own counts.

    Distorted copies are no texts of a corpus: what counts of them are differences.
    """
    if any(DISTORTION in instance.doc for instance in task.instances):
        return
    for instances in documents(task).values():
        answers = [instance.resps[0] for instance in instances if instance.resps]
        scores = [score_of(answer) for answer in answers]
        scored = [score for score in scores if isinstance(score, ScoredFloat)]
        if len(scored) < len(instances):
            continue  # generated text, or a kind of request still to come
        best = _best(instances, scored)
        values = _processed(task, instances, answers, best)
        for n, (instance, score) in enumerate(zip(instances, scored, strict=True)):
            answer = _counted(_placed(instance, score), values)
            option = instance.request_type == "loglikelihood"
            yield replace(answer, tied=len(best) > 1 and n in best if option else None)


def _best(instances: Sequence[Instance], scores: Sequence[ScoredFloat]) -> list[int]:
    """Return the places of a question's best options, several if they tie."""
    if any(instance.request_type != "loglikelihood" for instance in instances):
        return []
    # Scores without a context, which some tasks ask for besides, are no options.
    given = [bool(instance.args[0]) for instance in instances]
    options = [n for n, one in enumerate(given) if one == given[0]]
    tokens = [scores[n].answer.tokens for n in options]
    return [options[n] for n in tied([scores[n] for n in options], tokens)]


def _processed(
    task: Any,
    instances: Sequence[Instance],
    answers: Sequence[Any],
    best: Sequence[int],
) -> dict[str, Any]:
    """Return what a task counts; its accuracy as the mean over options that tie.

    Which of them is larger is rounding's choice, another in another batch.
    """
    values = hypothetical_metrics(task, instances, answers)
    if len(best) < 2 or len(answers) < 2 or "acc" not in values:
        return values
    more = 2 * ROUNDING * max(1, *(score.answer.tokens for score, _ in answers))
    accuracies = []
    for n in best:
        raised = [*answers]
        score, is_greedy = answers[n]
        raised[n] = (score + more, is_greedy)
        accuracies.append(float(hypothetical_metrics(task, instances, raised)["acc"]))
    return {**values, "acc": sum(accuracies) / len(accuracies)}


def _placed(request: Request | Instance, scored: ScoredFloat) -> Answer:
    return replace(scored.answer, index=request.doc_id or 0, option=request.idx)


def _counted(answer: Answer, values: dict[str, Any]) -> Answer:
    """Take over the words and bytes that the task divides by, and its accuracy."""
    counts = {
        unit: value[1]
        for unit, metric in (("words", "word_perplexity"), ("bytes", "bits_per_byte"))
        if isinstance(value := values.get(metric), Sequence) and len(value) == 2
    }
    accuracy = values.get("acc")
    return replace(
        answer, **counts, accuracy=None if accuracy is None else float(accuracy)
    )
