"""Journals: files of JSON lines that a killed run goes on with.

The first line holds the settings that the rows depend on. Each further line is a row
with a digest of the row and of the settings. A run appends rows: a kill loses the row
in hand at most, a power cut the rows of the last second. A last line without its end is
not a row.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lm_latent_eval.files import naming, no_room, regular, replacing
from lm_latent_eval.ledger.files import BusyError, lock_of, only_writer
from lm_latent_eval.ledger.settings import (
    Settings,
    check_format,
    parsed,
    plain,
    refuse_others,
)
from lm_latent_eval.values import parse

Row = dict[str, Any]
T = TypeVar("T")

UNFINISHED = ".partial.jsonl"
"""Suffix of the journal of a running or killed run."""
_SYNC = 1.0
"""Seconds between two syncs of a file."""


@dataclass(frozen=True)
class Journal:
    """A file of settings, and of rows that depend on them."""

    path: Path
    kind: str
    """Kind of the file for messages: "record of a run", say."""
    format: int
    """Number of the rows' format: files of other formats are refused."""

    @contextmanager
    def going_on(self, settings: Settings, kept: str | None) -> Iterator[Rows]:
        """Begin a file or go on with one, and let no other run write it.

        Args:
            settings: What the rows depend on.
            kept: As of ``only_writer``.

        Raises:
            BusyError: If another run is writing the file.
            ValueError: If it is of another run or version, something else, or damaged.
            NoRoomError: If the disk is full; rows that were added stay.
        """
        if self.path.is_symlink():
            raise self.not_one("it is a link")
        with only_writer(self.path, kept, lock=lock_of(self.path)):
            if not regular(self.path).exists() or not self.path.stat().st_size:
                self.write(settings, ())
            old, _ = self.read()
            new = {"format": self.format, **settings}
            refuse_others(self.path, old, new, self.kind)
            with Rows(self) as rows:
                yield rows

    def write(self, settings: Settings, rows: Iterable[Row]) -> None:
        """Write settings and rows in the place of those before, whole or not at all.

        Raises:
            NoRoomError: If the disk is full.
        """
        head = _json({"format": self.format, **settings}) + b"\n"
        with replacing(self.path) as partial, partial.open("wb") as file:
            file.write(head)
            file.writelines(sealed(head, row) for row in rows)

    def read(self) -> tuple[Settings, Iterator[tuple[int, Row]]]:
        """Return the settings, and an iterator over line numbers and rows.

        The iterator raises a ``ValueError`` at a line that was edited.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If it is another version's, or something else.
        """
        lines = self.lines()
        if (head := next(lines, None)) is None:
            raise self.not_one("it has no line of settings")
        try:
            settings = parsed(head, "format")
        except ValueError as err:
            raise self.not_one(f"its first line says no settings: {err}") from err
        check_format(self.path, settings, self.format)
        numbered = enumerate(lines, start=2)
        return settings, ((n, self._row(head, n, line)) for n, line in numbered)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are whole."""
        with naming(self.path), regular(self.path).open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def not_one(self, why: str) -> ValueError:
        """Return the error that the file is something else."""
        return ValueError(
            f"{self.path} is not a {self.kind} ({why}): move it elsewhere, or give the "
            "output another path"
        )

    def edited(self, number: int, what: str) -> ValueError:
        """Return the error that a line is not as it was written."""
        return ValueError(
            f"{self.path}, line {number} is not as it was written ({what}): remove the "
            "line, and its result is found again"
        )

    def _row(self, head: bytes, number: int, line: bytes) -> Row:
        content, _, seal = line.rpartition(_SEAL)
        if seal != _seal(head, content):
            raise self.edited(number, "its digest is of another row or other settings")
        try:
            row = parse((content + b"}").decode())
        except ValueError as err:
            raise self.edited(number, str(err)) from err
        return dict(row)


class Rows:
    """The rows of a journal that this run appends to."""

    def __init__(self, journal: Journal) -> None:
        """Open the file, and drop what a killed run has not written to the end."""
        self._journal = journal
        self._head, whole = b"", 0
        for line in journal.lines():
            self._head, whole = self._head or line, whole + len(line)
        self._file = journal.path.open("r+b", buffering=0)
        self._file.truncate(whole)
        self._file.seek(whole)
        self._synced = time.monotonic()

    def add(self, row: Row) -> None:
        """Append a row, which is not empty.

        Raises:
            NoRoomError: If the disk is full.
        """
        left = sealed(self._head, row)
        try:
            while left:  # one call may write a part
                left = left[self._file.write(left) :]
            if time.monotonic() > self._synced + _SYNC:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as err:
            raise no_room(err, self._journal.path) or err from err

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Yield line numbers and rows, in the order that they were added in."""
        return self._journal.read()[1]

    def write_sorted(self, path: Path, key: str) -> None:
        """Write a file of the same settings and rows, sorted by a whole number.

        Memory holds two numbers a row.

        Raises:
            NoRoomError: If the disk is full.
        """
        keys, ends = array("q"), array("q", [0])
        for n, line in enumerate(self._journal.lines()):
            ends.append(ends[-1] + len(line))
            if n:
                keys.append(parse(line.decode())[key])
        with (
            self._journal.path.open("rb") as file,
            replacing(path) as partial,
            partial.open("wb") as output,
        ):
            output.write(self._head)
            for n in np.argsort(np.array(keys), kind="stable"):
                file.seek(ends[n + 1])
                output.write(file.readline())

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        """Sync the file and close it."""
        with self._file:
            os.fsync(self._file.fileno())


def read_run(
    journals: Sequence[Journal],
    read_row: Callable[[Row], tuple[str, tuple[int | str, ...], T]],
) -> tuple[Settings, dict[str, list[T]]]:
    """Read what one run has left in several files: one a process, say.

    Args:
        journals: The files; of none, nothing.
        read_row: Returns the task, key and result of a row, or raises a
            ``ValueError``.

    Returns:
        The settings, and the results of each task in the order of their keys. Of
        several rows with one key, the last counts.

    Raises:
        ValueError: If they are of several runs or something else, or a row was edited.
    """
    runs, tasks = dict[str, Settings](), dict[str, dict[tuple[int | str, ...], T]]()
    for journal in journals:
        settings, rows = journal.read()
        runs[json.dumps(settings)] = settings
        for number, row in rows:
            try:
                task, key, result = read_row(row)
            except ValueError as err:
                raise journal.edited(number, str(err)) from err
            tasks.setdefault(task, {})[key] = result
    if len(runs) > 1:
        names = ", ".join(str(journal.path) for journal in journals)
        raise ValueError(f"there are several unfinished runs: name one of {names}")
    ordered = {
        task: [results[key] for key in sorted(results)]
        for task, results in tasks.items()
    }
    return next(iter(runs.values()), {}), ordered


def remove(paths: Iterable[Path]) -> None:
    """Remove journals of a finished run, but for those that another run is writing.

    Their locks stay: a run that has opened one just before it is removed would hold it
    while the next one makes and holds another.
    """
    for path in paths:
        with suppress(BusyError), only_writer(path, None, lock=lock_of(path)):
            path.unlink(missing_ok=True)


_SEAL = b', "digest": "'


def sealed(head: bytes, row: Row) -> bytes:
    """Return the line of a row below a first line."""
    content = _json(row)[:-1]
    return content + _SEAL + _seal(head, content)


def _seal(head: bytes, content: bytes) -> bytes:
    digest = hashlib.sha256(head + content).hexdigest()[:16]
    return f'{digest}"}}\n'.encode()


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), allow_nan=False).encode()
