"""Files of thoughts, written beside lm-eval's results, one a task.

They are written as they are drawn, and a run that is killed and started again takes
them up, with a cache or without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lm_eval.api.instance import Instance

from lm_latent_eval.file_names import safe_name
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.harness.running import (
    host,
    or_without,
    run_digest,
    running_tasks,
    said,
)
from lm_latent_eval.ledger.database import UNFINISHED, remove
from lm_latent_eval.wrappers.cot.drawing import WEIGHTS_AT_MOST
from lm_latent_eval.wrappers.cot.prompts import Key
from lm_latent_eval.wrappers.cot.thoughts import (
    Kept,
    Texts,
    Thoughts,
    journal,
    read_unfinished,
    write_thoughts,
)

Settings = dict[str, Any]


@dataclass(frozen=True)
class TaskDocument:
    """A document of a task, with all that is asked about it."""

    task: str
    of_task: Any
    number: int
    instances: list[Instance]

    def answers(self, question: str) -> list[str]:
        """Return the answers that follow a question, the known ones too."""
        return [i.args[1] for i in self.instances if i.args[0] == question]

    def kept(self, thoughts: Thoughts) -> Kept:
        """Put thoughts in their place."""
        return Kept(self.number, thoughts, self._right(thoughts))

    def _right(self, thoughts: Thoughts) -> tuple[float, ...] | None:
        """Ask the task what it would call each answer, were that the most probable."""
        if len(thoughts.answers) < 2:
            return None
        scores = []
        for answer in thoughts.answers:
            chosen = (thoughts.question, answer)
            values = said(
                self.of_task,
                self.instances,
                [(0.0 if i.args == chosen else -1e9, False) for i in self.instances],
            )
            if "acc" not in values:
                return None
            scores.append(float(values["acc"]))
        return tuple(scores)


def task_documents(tasks: Mapping[str, Any]) -> dict[str, TaskDocument]:
    """Return what is asked of this process, by the names of questions."""
    found: dict[str, TaskDocument] = {}
    for name, task in tasks.items():
        for instance in task.instances:
            if instance.request_type == "loglikelihood":
                new = TaskDocument(name, task, instance.doc_id, [])
                document = found.setdefault(f"{name}/{instance.doc_id}", new)
                document.instances.append(instance)
    for document in found.values():
        document.instances.sort(key=lambda instance: instance.idx)
    return found


def all_answers(tasks: Mapping[str, Any]) -> dict[Key, list[str]]:
    """Return all answers to every question, those that a cache knows too."""
    return {
        (name, question): document.answers(question)
        for name, document in task_documents(tasks).items()
        for question in {instance.args[0] for instance in document.instances}
    }


class ThoughtRecorder:
    """Collects the thoughts of a run, and writes them a task a file."""

    def __init__(self, processes: Processes, texts: Texts) -> None:
        """Start empty.

        Args:
            processes: Whose thoughts are put together.
            texts: Writes tokens as strings.
        """
        self._processes, self._texts = processes, texts
        self._known: dict[Key, Thoughts] | None = None
        self._own: dict[Key, Thoughts] = {}
        self._thoughts: dict[Key, Thoughts] = {}
        self._kept: dict[tuple[str, int, str], Kept] = {}

    @contextmanager
    def following(
        self, settings: Settings
    ) -> Iterator[tuple[Callable[[Thoughts], None], Mapping[Key, Thoughts]]]:
        """Yield what keeps thoughts as soon as they are drawn, and those known before.

        Args:
            settings: What the numbers depend on.
        """
        where, asked = host(), task_documents(running_tasks())
        known = self._take_up(settings)
        if where is None:
            yield self._remember, known
            return
        name = f"thoughts_{run_digest(settings)}_{self._processes.rank}{UNFINISHED}"
        with or_without(journal(where.folder / name, settings)) as add:

            def keep(thoughts: Thoughts) -> None:
                self._remember(thoughts)
                if document := asked.get(thoughts.name):
                    add(document.task, document.kept(thoughts))

            yield keep, known

    def collect(self, settings: Settings) -> None:
        """Put together what all processes thought, an interrupted run's too."""
        self._take_up(settings)
        own, self._own = [*self._own.values()], {}
        asked = task_documents(running_tasks()) if host() else {}
        placed = [
            (asked[thoughts.name].task, asked[thoughts.name].kept(thoughts))
            for thoughts in own
            if thoughts.name in asked
        ]
        for thoughts in self._processes.gather(own):
            self._thoughts[thoughts.name, thoughts.question] = thoughts
        for task, kept in self._processes.gather(placed):
            self._kept[task, kept.document, kept.thoughts.question] = kept

    def finish(self, settings: Settings) -> dict[str, Any]:
        """Write the thoughts.

        Returns:
            What results say of them, as JSON: how many, how they ended, and the file of
            each task; {} where nothing was thought.
        """
        if not self._thoughts:
            return {}
        drawn = [thought for t in self._thoughts.values() for thought in t.drawn]
        endings = Counter(str(thought.ending) for thought in drawn)
        return {
            "questions": len(self._thoughts),
            "drawn": len(drawn),
            "tokens": sum(len(thought.tokens) for thought in drawn),
            **{f"share_{name}": n / len(drawn) for name, n in endings.items()},
            **self._decided(WEIGHTS_AT_MOST[settings["proposal"]]),
            "files": self._write(settings),
        }

    def _decided(self, most: float) -> dict[str, Any]:
        """Count the questions whose most probable answer is certain."""
        choices = [
            kept.thoughts.choice(most)
            for kept in self._kept.values()
            if kept.right is not None
        ]
        decided = sum(choice.decided is not None for choice in choices)
        return {
            "questions_decided": decided,
            "questions_undecided": len(choices) - decided,
            "confidence": "0.95 of each question",
        }

    def _remember(self, thoughts: Thoughts) -> None:
        self._own[thoughts.name, thoughts.question] = thoughts

    def _take_up(self, settings: Settings) -> Mapping[Key, Thoughts]:
        """Return what the same run, killed, has thought about what is asked now."""
        if self._known is None:
            self._known = {}
            where = host()
            run = f"thoughts_{run_digest(settings)}_*{UNFINISHED}"
            answers = all_answers(where.tasks) if where else {}
            for file in read_unfinished([*where.folder.glob(run)]) if where else ():
                for kept in file.questions:
                    thoughts = kept.thoughts
                    if (thoughts.name, thoughts.question) in answers:
                        self._known[thoughts.name, thoughts.question] = thoughts
            self._own.update(self._known)
        return self._known

    def _write(self, settings: Settings) -> dict[str, str]:
        """Return the names of the files by task; none where no results are written."""
        where = host()
        if where is None:
            return {}
        where.folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now().isoformat().replace(":", "-")
        by_task: dict[str, list[Kept]] = {}
        for place in sorted(self._kept):
            by_task.setdefault(place[0], []).append(self._kept[place])
        files = {}
        for task, questions in by_task.items():
            files[task] = f"thoughts_{safe_name(task)}_{stamp}.parquet"
            about = {"task": task, **settings}
            write_thoughts(where.folder / files[task], about, questions, self._texts)
        remove(where.folder.glob(f"thoughts_{run_digest(settings)}_*{UNFINISHED}"))
        return files
