"""Thoughts while a run goes on: one that is killed leaves those that it has drawn.

A file of JSON lines: what the numbers depend on, then a question a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_latent_eval.resuming.journal import Journal
from lm_latent_eval.scoring.records import UNFINISHED
from lm_latent_eval.wrappers.cot.files import Kept, ThoughtFile, kept_of, row_of

FORMAT = 1


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
    with _journal(path).going_on(settings, "the thoughts so far") as (_, append):
        yield lambda task, kept: append({"task": task, **row_of(kept)})


def read_unfinished(paths: Sequence[Path]) -> list[ThoughtFile]:
    """Read what one run has thought so far, every process of it, a task each.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """
    runs, tasks = dict[str, None](), dict[str, dict[tuple[int, str], Kept]]()
    for path in paths:
        settings, rows = _journal(path).read()
        runs[json.dumps(settings)] = None
        for place, row in rows.items():
            try:
                kept = kept_of(row)  # of a question that is there twice, the last
                of_task = tasks.setdefault(row["task"], {})
            except (ValueError, KeyError, TypeError) as err:
                raise _journal(path).edited(place, f"{err!r:.200}") from err
            of_task[kept.document, kept.thoughts.question] = kept
    if len(runs) > 1:
        names = ", ".join(map(str, paths))
        raise ValueError(f"there are several unfinished runs: name one of {names}")
    return [
        ThoughtFile(
            {"task": task, **json.loads(run)},
            [of_task[place] for place in sorted(of_task)],
            finished=False,
        )
        for run in runs
        for task, of_task in tasks.items()
    ]


def _journal(path: Path) -> Journal:
    return Journal(path, "record of thoughts", FORMAT)


__all__ = ["UNFINISHED", "journal", "read_unfinished"]
