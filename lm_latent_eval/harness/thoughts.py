"""Leaves the thoughts of a run beside lm-eval's results, a file a task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from lm_eval.api.instance import Instance

from lm_latent_eval.harness.records import host
from lm_latent_eval.wrappers.cot.files import Kept, Texts, write
from lm_latent_eval.wrappers.cot.thoughts import Thoughts


def placed(found: Sequence[Thoughts]) -> list[tuple[str, Kept]]:
    """Find the tasks that thoughts are of, among those of this process.

    Args:
        found: Thoughts of this process; those that a cache spared are not among them.

    Returns:
        Names of tasks, each with a question; none where no results are written.
    """
    where = host()
    by_name: dict[str, list[Thoughts]] = {}
    for thoughts in found:
        by_name.setdefault(thoughts.name, []).append(thoughts)
    tasks = where.tasks.items() if where else ()
    return [(name, kept) for name, task in tasks for kept in _of(name, task, by_name)]


def keep_thoughts(
    questions: Sequence[tuple[str, Kept]], settings: dict[str, Any], texts: Texts
) -> dict[str, str]:
    """Write the thoughts of a run.

    Args:
        questions: Of all processes, each with the name of its task.
        settings: What the numbers depend on.
        texts: Writes tokens as strings.

    Returns:
        Task -> name of its file, beside the results; none where none are written.
    """
    where = host()
    if where is None:
        return {}
    where.folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().isoformat().replace(":", "-")
    by_task: dict[str, list[Kept]] = {}
    for task, kept in sorted(questions, key=lambda q: (q[0], q[1].document)):
        by_task.setdefault(task, []).append(kept)
    files = {}
    for task, of_task in by_task.items():
        plain = re.sub(r"[^-.\w]", "_", task)
        files[task] = f"thoughts_{plain}_{stamp}.parquet"
        write(where.folder / files[task], {"task": task, **settings}, of_task, texts)
    return files


def told(found: Sequence[Thoughts]) -> dict[str, Any]:
    """Count thoughts and how they ended, as JSON."""
    drawn = [thought for thoughts in found for thought in thoughts.drawn]
    endings = Counter(str(thought.ending) for thought in drawn)
    return {
        "questions": len(found),
        "drawn": len(drawn),
        "tokens": sum(len(thought.tokens) for thought in drawn),
        **{f"share_{name}": number / len(drawn) for name, number in endings.items()},
    }


def _of(name: str, task: Any, by_name: dict[str, list[Thoughts]]) -> Iterator[Kept]:
    documents: dict[int, list[Instance]] = {}
    for instance in task.instances:
        documents.setdefault(instance.doc_id, []).append(instance)
    for document, instances in documents.items():
        instances.sort(key=lambda instance: instance.idx)
        for thoughts in by_name.get(f"{name}/{document}", ()):
            yield Kept(document, thoughts, _right(task, instances, thoughts))


def _right(
    task: Any, instances: Sequence[Instance], thoughts: Thoughts
) -> tuple[float, ...] | None:
    """Ask the task what it would call each answer, were that the most probable."""
    if len(thoughts.answers) < 2:
        return None
    scores = []
    for answer in thoughts.answers:
        chosen = (thoughts.question, answer)
        said = task.process_results(
            instances[0].doc,
            [(0.0 if i.args == chosen else -1e9, False) for i in instances],
        )
        if "acc" not in said:
            return None
        scores.append(float(said["acc"]))
    return tuple(scores)
