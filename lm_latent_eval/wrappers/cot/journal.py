"""Thoughts while a run goes on: one that is killed leaves those that it has drawn.

A file of JSON lines: what the numbers depend on, then a question a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_latent_eval.durable import appending, only_writer, replacing, whole_lines
from lm_latent_eval.scoring.records import UNFINISHED
from lm_latent_eval.wrappers.cot.files import Kept, ThoughtFile, kept_of, row_of


@contextmanager
def journal(
    path: Path, settings: dict[str, Any]
) -> Iterator[Callable[[str, Kept], None]]:
    """Yield what keeps a question of a task at once.

    Args:
        path: A file that a crash does not spoil; what an earlier run with the same
            settings left there stays.
        settings: What the numbers depend on.

    Raises:
        ValueError: If another run is writing it.
    """
    lock = path.with_name(f".{path.name}.lock")
    with only_writer(path, "the thoughts so far", lock=lock):
        lines = [*whole_lines(path)[0].values()] if path.exists() else []
        if lines[:1] != [_line(settings)]:
            lines = [_line(settings)]
        with replacing(path) as partial:  # without the line that a crash cut short
            partial.write_bytes(b"".join(line + b"\n" for line in lines))
        with appending(path) as append:
            yield lambda task, kept: append(
                _line({"task": task, **row_of(kept)}) + b"\n"
            )


def read_unfinished(paths: Sequence[Path]) -> list[ThoughtFile]:
    """Read what one run has thought so far, every process of it, a task each.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """
    runs, tasks = dict[str, None](), dict[str, dict[tuple[int, str], Kept]]()
    for path in paths:
        try:
            head, *rows = [json.loads(line) for line in whole_lines(path)[0].values()]
            runs[json.dumps(head)] = None
            for row in rows:
                kept = kept_of(row)  # of a question that is there twice, the last
                of_task = tasks.setdefault(row["task"], {})
                of_task[kept.document, kept.thoughts.question] = kept
        except (ValueError, KeyError, TypeError) as err:
            raise ValueError(f"{path} holds no thoughts ({err!r:.200})") from err
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


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


__all__ = ["UNFINISHED", "journal", "read_unfinished"]
