"""Results that come one by one, in a file that a crash does not spoil."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lm_latent_eval.durable import no_room, write_text
from lm_latent_eval.file_names import regular
from lm_latent_eval.ledger.one_writer import BusyError, lock_of, only_writer
from lm_latent_eval.ledger.row_digests import RowDigests, UnsealedError
from lm_latent_eval.ledger.settings import (
    FormatError,
    Settings,
    check_format,
    parsed,
    plain,
    refuse_others,
)
from lm_latent_eval.messages import naming
from lm_latent_eval.plain_json import parse

Row = dict[str, Any]
Append = Callable[[Row], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Journal:
    """A file of JSON lines: what was asked for, then a result a line.

    Each result has a digest, which only the values that were written have, below the
    settings that they were written below.
    """

    path: Path
    kind: str
    """What it is, for messages: "file of estimates", say."""
    format: int
    """Of its lines: those of another version are refused."""

    @contextmanager
    def going_on(
        self, settings: Settings, kept: str | None
    ) -> Iterator[tuple[dict[int, Row], Append]]:
        """Yield the results of an interrupted run, by line, and what appends another.

        Args:
            settings: What the results depend on.
            kept: As of ``only_writer``.

        Raises:
            BusyError: If another run is writing the file.
            FormatError: If another version wrote it.
            ValueError: If it is of another run, something else, or was edited.
            NoRoomError: If the disk is full; the last line may be cut short then.
        """
        with only_writer(self.path, kept, lock=lock_of(self.path)):
            rows = self._taken_up(settings)
            digests = RowDigests({"format": self.format, **settings})
            with appending(self.path) as append:
                yield rows, lambda row: append(_line(digests.added(row)))

    def read(self) -> tuple[Settings, dict[int, Row]]:
        """Return the settings, and by line the results that were written whole.

        Raises:
            FormatError: If another version wrote it.
            ValueError: If the file is something else, or a line was edited.
        """
        lines, _ = whole_lines(regular(self.path))
        if 1 not in lines:
            raise self.not_one("its first line says no settings")
        try:
            settings = parsed(lines.pop(1), "format")
        except ValueError as err:
            raise self.not_one(str(err)) from err
        check_format(self.path, settings, self.format)
        digests = RowDigests(settings)
        rows = {n: self._row(n, line, digests) for n, line in lines.items()}
        return settings, rows

    def not_one(self, why: str) -> ValueError:
        """Return the error that the file is something else."""
        return ValueError(
            f"{self.path} is not a {self.kind} ({why}): give the output another path"
        )

    def edited(self, place: int, what: str) -> ValueError:
        """Return the error that a line is not as it was written."""
        return ValueError(
            f"{self.path}, line {place} is not as it was written ({what}): remove the "
            "line, and its result is found again"
        )

    def _taken_up(self, settings: Settings) -> dict[int, Row]:
        """Read what an interrupted run has left, and make the file fit to go on."""
        settings = {"format": self.format, **settings}
        head = _line(settings)
        lines, torn = whole_lines(self.path) if self.path.exists() else ({}, False)
        if 1 not in lines:
            # Nothing, or our first line cut short; anything else is not ours.
            if torn and not head.startswith(self.path.read_bytes().rstrip(b"\0")):
                raise self.not_one("its first line says no settings")
            write_text(self.path, head.decode())
            return {}
        theirs, rows = self.read()
        refuse_others(self.path, theirs, settings, self.kind)
        if torn:
            whole = b"".join(line + b"\n" for line in lines.values())
            write_text(self.path, whole.decode())
            rows = dict(enumerate(rows.values(), 2))
        return rows

    def _row(self, place: int, line: bytes, digests: RowDigests) -> Row:
        try:
            row = parse(line.decode())
            if not isinstance(row, dict):
                raise ValueError("no record")
            return digests.checked(row)
        except UnsealedError as err:
            raise FormatError(
                f"{self.path}, line {place}: {err}: finish it with the version that "
                "began it, or run the command again, with another path for its output"
            ) from err
        except ValueError as err:
            raise self.edited(place, str(err)) from err


def read_run(
    journals: Sequence[Journal], parse: Callable[[Row], T]
) -> tuple[Settings, list[T]]:
    """Read what one run has left in several files: one a process, say.

    Args:
        journals: The files; of none, nothing.
        parse: Makes a result of a row, or raises a ``ValueError``.

    Returns:
        What the results depend on, and the results in the order of files and lines.

    Raises:
        ValueError: If they are of several runs or something else, or a line was edited.
    """
    runs, found = dict[str, Settings](), []
    for journal in journals:
        settings, rows = journal.read()
        runs[json.dumps(settings)] = settings
        for place, row in rows.items():
            try:
                found.append(parse(row))
            except ValueError as err:
                raise journal.edited(place, str(err)) from err
    if len(runs) > 1:
        names = ", ".join(str(journal.path) for journal in journals)
        raise ValueError(f"there are several unfinished runs: name one of {names}")
    return next(iter(runs.values()), {}), found


def remove(paths: Iterable[Path]) -> None:
    """Remove journals of a finished run, but for those that another run is writing.

    Their locks stay: a run that has opened one just before it is removed would hold it
    while the next one makes and holds another.
    """
    for path in paths:
        with suppress(BusyError), only_writer(path, None, lock=lock_of(path)):
            path.unlink(missing_ok=True)


def _line(values: Row) -> bytes:
    return json.dumps(plain(values), allow_nan=False).encode() + b"\n"


def whole_lines(path: Path) -> tuple[dict[int, bytes], bool]:
    """Read a file of JSON lines that grew until a crash.

    Returns:
        Number -> line, from 1 on, of the lines that were written whole; and whether
        there is more. A crash cuts the last line short, and where the power went out
        there may be bytes of zero, which no line of JSON has.
    """
    with naming(path):
        lines = path.read_bytes().split(b"\n")
    whole = {n: line for n, line in enumerate(lines[:-1], 1) if b"\0" not in line}
    return whole, len(whole) < len(lines) - 1 or bool(lines[-1])


@contextmanager
def appending(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield what puts a record at the end of a file, at once and for other processes.

    Raises:
        NoRoomError: If the disk is full; the last record may be cut short then.
    """
    try:
        with path.open("ab") as file:

            def append(record: bytes) -> None:
                file.write(record)
                file.flush()

            yield append
            os.fsync(file.fileno())
    except OSError as err:
        if full := no_room(err, path):
            raise full from err
        raise
