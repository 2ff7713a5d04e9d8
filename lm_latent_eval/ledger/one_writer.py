"""File locks: one writer an output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"

logger = logging.getLogger(__name__)


class BusyError(ValueError):
    """An output that another run is writing."""


@contextmanager
def only_writer(
    output: Path, kept: str | None, *, lock: Path | None = None, passing: bool = False
) -> Iterator[None]:
    """Let no other run write into an output; say what is kept if this one is stopped.

    Args:
        output: A folder, made if it is not there, or a file.
        kept: What an interrupted run leaves behind: "the finished epochs", say. None
            is nothing that the same command would go on from.
        lock: The file that is locked; None is one in the folder. It stays, empty
            (``filelock`` may remove it on Windows): if runs removed it, two could each
            hold one of that name.
        passing: Remove it, held as it is, when all has ended well. Who has opened it
            before finds it without a name and asks again (``filelock``), but for
            releases of that library before 2026.

    Raises:
        BusyError: If another run is writing there.
    """
    lock = lock or output / LOCK_FILE
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock, timeout=0)
    try:
        held.acquire()
    except Timeout as err:
        raise BusyError(
            f"another run is writing into {output}: wait for it, or write to another "
            "path"
        ) from err
    except NotImplementedError:
        logger.warning(
            "%s is on a file system that locks nothing: see to it that no other run "
            "writes there",
            output,
        )
    try:
        yield
        if passing:
            with suppress(OSError):  # Windows removes nothing that is open
                lock.unlink()
    except KeyboardInterrupt as stop:
        if kept:
            stop.add_note(
                f"{kept} are kept in {output}, and the same command goes on from there"
            )
        raise
    finally:
        held.release()


def lock_of(path: Path) -> Path:
    """Return the lock of a file."""
    return path.with_name(f".{path.name}.lock")
