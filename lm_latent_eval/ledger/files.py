"""Locks of outputs, and checkpoints of training."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lm_latent_eval.files import replacing, resolved
from lm_latent_eval.ledger.settings import Settings

LOCK_FILE = ".lock"

logger = logging.getLogger(__name__)


class BusyError(ValueError):
    """An output that another run is writing."""


@contextmanager
def only_writer(
    output: Path, kept: str | None, *, lock: Path | None = None, passing: bool = False
) -> Iterator[None]:
    """Let no other run write into an output; add to an interruption what stays.

    Args:
        output: A folder, made if it is not there, or a file.
        kept: What an interrupted run leaves behind: "the finished epochs", say. None
            is nothing that the same command would go on from.
        lock: The file that is locked; None is one in the folder. It stays, empty
            (``filelock`` may remove it on Windows): if runs removed it, two could each
            hold one of that name.
        passing: Remove it at the end, while it is held. Who has opened it before finds
            it without a name and asks again (``filelock``), but for releases of that
            library before 2026.

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
    except KeyboardInterrupt as stop:
        if kept:
            stop.add_note(
                f"{kept} are kept in {output}, and the same command goes on from there"
            )
        raise
    finally:
        if passing:
            with suppress(OSError):  # Windows removes nothing that is open
                lock.unlink()
        held.release()


@contextmanager
def writing(output: Path | None) -> Iterator[None]:
    """Let no other command write an output: a file, a folder, or None.

    Raises:
        BusyError: If another one does.
    """
    keeps = output is not None and (
        output.is_file() or output.is_dir() or not output.exists()
    )
    if output is None or not keeps:  # a pipe or a terminal
        yield
        return
    with only_writer(output, None, lock=lock_of(resolved(output)), passing=True):
        yield


def lock_of(path: Path) -> Path:
    """Return the lock of a file or folder, beside it."""
    return path.with_name(f".{path.name}.lock")


@dataclass(frozen=True)
class StateFile:
    """Checkpoint of a running job: tensors and plain data."""

    path: Path

    def write(self, settings: Settings, state: dict[str, Any]) -> None:
        """Put the state in the place of the one before.

        Raises:
            NoRoomError: If the disk is full.
        """
        import torch  # takes a second, and only files of tensors need it

        self.path.parent.mkdir(parents=True, exist_ok=True)
        # torch hides what the system says of its own files.
        with replacing(self.path) as partial, partial.open("wb") as file:
            torch.save({"settings": json.dumps(settings), **state}, file)

    def read(
        self, *, device: str | None = None
    ) -> tuple[Settings, dict[str, Any]] | None:
        """Return its settings and content; None if there is no file.

        Args:
            device: Where tensors go; None: where they were.

        Raises:
            ValueError: If the file is damaged.
        """
        if not self.path.exists():
            return None
        import torch

        try:
            state: dict[str, Any] = torch.load(
                self.path, map_location=device, weights_only=True
            )
            return json.loads(state.pop("settings")), state
        except (
            OSError,
            RuntimeError,
            EOFError,
            KeyError,
            TypeError,
            AttributeError,
            pickle.UnpicklingError,
        ) as err:
            # torch advises to run what is in the file
            raise self.damaged(type(err).__name__) from None

    def damaged(self, why: str) -> ValueError:
        """Return the error that the file cannot be used."""
        return ValueError(
            f"{self.path} is damaged ({why}): remove the file to start anew"
        )

    def set_aside(self) -> Path:
        """Rename the file, and return the new path."""
        return self.path.replace(self.path.with_name(f"{self.path.name}.before"))
