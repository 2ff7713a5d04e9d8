"""The ledger of a run: rows in an SQLite file, committed one by one.

A row is committed before the next one is found, so a kill loses the row in hand at
most. SQLite writes ahead (WAL) where the file system is a disk of this machine: a
commit is then an append that needs no sync (53 microseconds a row; with a rollback
journal and its two syncs 6,200), and a power cut loses the last rows but spoils none.
Its shared memory does not work between machines, so on other file systems, or where
nobody can tell, each row is synced with a rollback journal.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lm_latent_eval.files import no_room, one_line, regular, replacing
from lm_latent_eval.ledger.files import BusyError, lock_of, only_writer
from lm_latent_eval.ledger.settings import (
    DIGEST,
    FormatError,
    RowDigests,
    Settings,
    check_format,
    parsed,
    plain,
    refuse_others,
)
from lm_latent_eval.values import parse

Row = dict[str, Any]
Key = tuple[int | str, ...]
T = TypeVar("T")

UNFINISHED = ".partial.sqlite"
"""Suffix of the file of a running or killed run."""
_OLD = ".partial.jsonl"
"""That of version 0.2."""
TABLES = {
    "found": (
        "CREATE TABLE found (place INTEGER PRIMARY KEY, part TEXT NOT NULL, "
        "key TEXT NOT NULL, row TEXT NOT NULL, numbers BLOB NOT NULL, "
        "digest TEXT NOT NULL, UNIQUE (part, key))"
    ),
    "run": "CREATE TABLE run (settings TEXT NOT NULL)",
}
SIDECARS = ("-wal", "-shm", "-journal")
"""SQLite's files beside one that is being written, or was left by a killed process."""
WAIT = 10.0
"""Seconds to wait for a locked file."""
LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"),
    *("tmpfs", "ramfs", "overlay", "ntfs3", "vfat", "exfat"),
}
"""File systems of one machine."""
_MOUNTS = Path("/proc/mounts")
_NO_LOCK = re.compile("SQLITE_(PERM|IOERR_(RD|CHECKRESERVED|UN)?LOCK)")
"""SQLite's errors on file systems without locks."""
_COLUMNS = "place, part, key, row, numbers, digest"
_TYPES = (int, str, str, str, bytes, str)


class Found(NamedTuple):
    """One row."""

    place: int
    """Of the row in its file."""
    part: str
    """Its part of the file: a task, say."""
    key: Key
    """Its name there."""
    row: Row
    """Values as JSON takes them."""
    numbers: bytes
    """Others, as many as there are."""


@dataclass(frozen=True)
class Ledger:
    """A file of settings, and of rows that depend on them.

    Each row has a digest, which only the values that were written have, under the
    settings that they were written under.
    """

    path: Path
    kind: str
    """Its kind, for messages: "record of a run", say."""
    format: int
    """Of its rows: those of another version are refused."""

    @contextmanager
    def going_on(self, settings: Settings, kept: str | None) -> Iterator[Rows]:
        """Begin a file or go on with one, and let no other run write it.

        Args:
            settings: What the rows depend on.
            kept: As of ``only_writer``.

        Raises:
            BusyError: If another run is writing the file.
            FormatError: If another version wrote it.
            ValueError: If it is of another run, something else, or damaged.
            NoRoomError: If the disk is full; rows that were added stay.
        """
        settings = {"format": self.format, **settings}
        self._refuse_links()
        with only_writer(self.path, kept, lock=lock_of(self.path)):
            if not self.path.exists() or not self.path.stat().st_size:
                self._begin(settings)
            with self._opened() as connection:
                theirs = self._settings(connection)
                refuse_others(self.path, theirs, settings, self.kind)
                rows = Rows(self, connection, theirs)
                if _is_local(self.path):
                    with self.in_one_line():
                        connection.execute("PRAGMA journal_mode = WAL")
                        connection.execute("PRAGMA synchronous = NORMAL")
                try:
                    yield rows
                except BaseException:
                    with suppress(sqlite3.Error):
                        _end(connection)
                    raise
                with self.in_one_line():
                    _end(connection)

    def read(self) -> tuple[Settings, list[Found]]:
        """Return the settings, and the rows in the order they were found in.

        Raises:
            FileNotFoundError: If there is no file.
            FormatError: If another version wrote it.
            ValueError: If it is something else, or a row was edited.
        """
        with self._opened() as connection:
            with self.in_one_line():
                connection.execute("PRAGMA query_only = ON")
            settings = self._settings(connection)
            return settings, [*Rows(self, connection, settings)]

    def not_one(self, why: str) -> ValueError:
        """Return the error that the file is something else."""
        return ValueError(
            f"{self.path} is not a {self.kind} ({why}): move it elsewhere, or give the "
            "output another path"
        )

    def edited(self, place: int, what: str) -> ValueError:
        """Return the error that a row is not as it was written."""
        return ValueError(
            f"{self.path}, row {place} is not as it was written ({what}): delete it "
            f"(sqlite3: DELETE FROM found WHERE place = {place}) or the file, and its "
            "result is found again"
        )

    @contextmanager
    def in_one_line(self) -> Iterator[None]:
        """Turn errors of SQLite into one line."""
        try:
            yield
        except sqlite3.Error as err:
            if full := no_room(err, self.path):
                raise full from err
            if getattr(err, "sqlite_errorname", None) == "SQLITE_NOTADB":
                raise self.not_one(one_line(err)) from err
            raise ValueError(
                f"{self.path} is damaged or cannot be used ({one_line(err)}): if no "
                "other program has it open, remove it, and its results are found again"
            ) from err

    def _refuse_links(self) -> None:
        for path in (self.path, *_sidecars(self.path)):
            if path.is_symlink():
                raise self.not_one(f"{path.name} is a link")
            regular(path)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._refuse_links()
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist")
        with self.in_one_line():
            connection = _connected(self.path)
        with closing(connection):
            yield connection

    def _begin(self, settings: Settings) -> None:
        """Write a file that has settings and no rows, atomically."""
        for path in _sidecars(self.path):
            path.unlink(missing_ok=True)  # SQLite would take them for the new file's
        with self.in_one_line(), replacing(self.path) as partial:
            partial.unlink(missing_ok=True)  # of a run that was killed here
            with closing(_connected(partial)) as connection:
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN")
                for table in TABLES.values():
                    connection.execute(table)
                connection.execute("INSERT INTO run VALUES (?)", (_json(settings),))
                connection.execute("COMMIT")

    def _settings(self, connection: sqlite3.Connection) -> Settings:
        """Return the settings of a file that is whole.

        Nothing of the file is obeyed before it is known to have our tables, and no
        others: no trigger, no view, no function of a schema.
        """
        with self.in_one_line():
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA mmap_size = 0")
            tables = connection.execute(
                "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name "
                f"LIMIT {len(TABLES) + 2}"
            ).fetchall()
            ours = [("table", name, name, sql) for name, sql in TABLES.items()]
            if tables != [*ours, ("index", "sqlite_autoindex_found_1", "found", None)]:
                raise self.not_one("it has other tables")
            [state] = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            lines = connection.execute("SELECT settings FROM run LIMIT 2").fetchall()
        try:
            [[line]] = lines
            settings = parsed(str(line).encode(), "format")
        except ValueError as err:
            raise self.not_one(f"it says no settings: {err}") from err
        check_format(self.path, settings, self.format)
        return settings


class Rows:
    """The rows of an open file."""

    def __init__(
        self, ledger: Ledger, connection: sqlite3.Connection, settings: Settings
    ) -> None:
        """Use a file that is known to be whole."""
        self.ledger, self._connection = ledger, connection
        self._digests = RowDigests(settings)

    def add(self, part: str, key: Key, row: Row, numbers: bytes = b"") -> None:
        """Keep a row, in the place of one with its name.

        Raises:
            NoRoomError: If the disk is full.
        """
        values = (_json(part), _json(key), _json(row), numbers)
        digest = self._digests.added(_content(part, key, row, numbers))[DIGEST]
        with self.ledger.in_one_line():
            self._connection.execute(
                "INSERT OR REPLACE INTO found (part, key, row, numbers, digest) "
                "VALUES (?, ?, ?, ?, ?)",
                (*values, digest),
            )

    def keys(self, part: str) -> list[Key]:
        """Return the names of the rows of a part; the rows may still be damaged."""
        names = self._select("SELECT key FROM found WHERE part = ?", _json(part))
        return [_key(name) for (name,) in names]

    def get(self, part: str, key: Key) -> Found:
        """Return a row that is there.

        Raises:
            ValueError: If it was edited.
        """
        which = f"SELECT {_COLUMNS} FROM found WHERE part = ? AND key = ?"
        [values] = self._select(which, _json(part), _json(key))
        return self._checked(values)

    def __iter__(self) -> Iterator[Found]:
        """Yield the rows in the order they were found in.

        Raises:
            ValueError: If one was edited.
        """
        for values in self._select(f"SELECT {_COLUMNS} FROM found ORDER BY place"):
            yield self._checked(values)

    def _select(self, query: str, *given: str) -> Iterator[tuple[Any, ...]]:
        with self.ledger.in_one_line():
            yield from self._connection.execute(query, given)

    def _checked(self, values: tuple[Any, ...]) -> Found:
        place = values[0]
        try:
            if tuple(map(type, values)) != _TYPES:
                raise ValueError("it has values of other types")
            _, part, key, row, numbers, digest = values
            found = Found(place, parse(part), _key(key), parse(row), numbers)
            if not isinstance(found.row, dict):
                raise ValueError("no record")
            content = _content(*found[1:])
            self._digests.checked({**content, DIGEST: digest})
        except ValueError as err:
            raise self.ledger.edited(place, str(err)) from err
        return found


def read_run(
    ledgers: Sequence[Ledger], parse: Callable[[Row], T]
) -> tuple[Settings, dict[str, list[T]]]:
    """Read what one run has left in several files: one a process, say.

    Args:
        ledgers: The files; of none, nothing.
        parse: Makes a result of a row, or raises a ``ValueError``.

    Returns:
        What the results depend on, and the results of each part in the order of their
        keys. Of a key that several files have, the last counts.

    Raises:
        ValueError: If they are of several runs or something else, or a row was edited.
    """
    runs, parts = dict[str, Settings](), dict[str, dict[Key, T]]()
    for ledger in ledgers:
        settings, rows = ledger.read()
        runs[json.dumps(settings)] = settings
        for found in rows:
            try:
                parts.setdefault(found.part, {})[found.key] = parse(found.row)
            except ValueError as err:
                raise ledger.edited(found.place, str(err)) from err
    if len(runs) > 1:
        names = ", ".join(str(ledger.path) for ledger in ledgers)
        raise ValueError(f"there are several unfinished runs: name one of {names}")
    ordered = {
        part: [results[key] for key in sorted(results)]
        for part, results in parts.items()
    }
    return next(iter(runs.values()), {}), ordered


def refuse_old(paths: Iterable[Path]) -> None:
    """Refuse partial files of version 0.2.

    Raises:
        FormatError: If one of them is such a file.
    """
    for path in paths:
        if path.name.endswith(_OLD):
            raise FormatError(
                f"{path} was left by an unfinished run of lm-latent-eval 0.2: finish "
                "it with that version, or repeat its command with this one"
            )


def remove(paths: Iterable[Path]) -> None:
    """Remove ledgers of a finished run, but for those that another run is writing.

    Their locks stay: a run that has opened one just before it is removed would hold it
    while the next one makes and holds another.
    """
    for path in paths:
        with suppress(BusyError), only_writer(path, None, lock=lock_of(path)):
            for each in (*_sidecars(path), path):
                each.unlink(missing_ok=True)


def _connected(path: Path) -> sqlite3.Connection:
    """Open a file; where nothing can be locked, without SQLite's locks.

    ``only_writer`` has warned then.
    """
    where = path.absolute().as_uri()
    for options in ("mode=rwc", "mode=rwc&nolock=1"):
        connection = sqlite3.connect(
            f"{where}?{options}", uri=True, isolation_level=None, timeout=WAIT
        )
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.DatabaseError as err:
            if _NO_LOCK.match(getattr(err, "sqlite_errorname", "")):
                connection.close()
                continue
        break
    return connection


def _end(connection: sqlite3.Connection) -> None:
    """Merge the write-ahead log into the file, and sync it.

    While a reader is active this is left to the next run.
    """
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as err:
        if err.sqlite_errorname != "SQLITE_BUSY":
            raise


def _sidecars(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{end}") for end in SIDECARS]


def _is_local(path: Path) -> bool:
    """Whether a file is on a disk of this machine, as far as the system tells."""
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    where = path.absolute().parent.resolve()
    said = (line.split(" ") for line in mounts)
    kinds = {folder.replace("\\040", " "): kind for _, folder, kind, *_ in said}
    nearest = (str(folder) for folder in (where, *where.parents))
    return next((kinds[one] for one in nearest if one in kinds), "") in LOCAL


def _content(part: str, key: Key, row: Row, numbers: bytes) -> Row:
    """Return the content that a digest covers."""
    return {
        **row,
        "(key)": [part, *key],
        "(numbers)": hashlib.sha256(numbers).hexdigest(),
    }


def _key(written: Any) -> Key:
    key = parse(written) if isinstance(written, str) else None
    if not isinstance(key, list) or {*map(type, key)} - {int, str}:
        raise ValueError(f"its name is {written!a:.40}")
    return tuple(key)


def _json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False)
