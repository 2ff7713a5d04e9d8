"""Thoughts while a run goes on: one that is killed leaves those that it has drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_latent_eval.ledger.database import Found, Ledger, read_run
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

    def placed(found: Found) -> tuple[str, Kept]:
        return found.part, kept_of(found.row)

    settings, rows = read_run([_ledger(path) for path in paths], placed)
    tasks: dict[str, dict[tuple[int, str], Kept]] = {}
    for task, kept in rows:  # of a question that two processes have, the last
        tasks.setdefault(task, {})[kept.document, kept.thoughts.question] = kept
    return [
        ThoughtFile(
            {"task": task, **settings},
            [found[place] for place in sorted(found)],
            finished=False,
        )
        for task, found in tasks.items()
    ]


def _ledger(path: Path) -> Ledger:
    return Ledger(path, "record of thoughts", FORMAT)
