"""Thoughts while a run goes on: one that is killed leaves those that it has drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_latent_eval.ledger.database import Ledger, read_run
from lm_latent_eval.wrappers.cot.files import Kept, ThoughtFile, kept_of, row_of

FORMAT = 3


@contextmanager
def journal(
    path: Path, settings: dict[str, Any]
) -> Iterator[Callable[[str, Kept], None]]:
    """Yield what keeps a question of a task at once.

    Args:
        path: The file; what an earlier run with the same settings left there stays.
        settings: What the numbers depend on.

    Raises:
        BusyError: If another run is writing it.
    """
    with _ledger(path).going_on(settings, "the thoughts so far") as rows:
        yield lambda task, kept: rows.add(
            task, (kept.document, kept.thoughts.question), row_of(kept)
        )


def read_unfinished(paths: Sequence[Path]) -> list[ThoughtFile]:
    """Read what one run has thought so far, every process of it, a task each.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """
    settings, tasks = read_run([_ledger(path) for path in paths], kept_of)
    return [
        ThoughtFile({"task": task, **settings}, questions, finished=False)
        for task, questions in tasks.items()
    ]


def _ledger(path: Path) -> Ledger:
    return Ledger(path, "record of thoughts", FORMAT)
