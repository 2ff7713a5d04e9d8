"""The one place where a command's errors become one line and an exit status."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TextIO

from lm_latent_eval.files import no_room, one_line

EXPECTED = (ValueError, OSError, FloatingPointError, ModuleNotFoundError)
"""Errors whose message is for users."""
NO_READER = 128 + 13
"""Exit status of programs whose reader leaves, as shells give it (SIGPIPE)."""


def guarded(run: Callable[[], int]) -> int:
    """Run a command; return the exit status.

    Interruptions and the errors of users and of the system are one line of stderr.
    Others are errors of this program, and are raised.
    """
    closed = sys.stdout is None
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    try:
        with _stopped_by(signal.SIGTERM):
            if closed:  # what a program opens would get its number
                raise OSError(
                    "standard output is closed: send it to a file, or to /dev/null if "
                    "it is not wanted"
                )
            if isinstance(sys.stdout, io.TextIOWrapper):  # of any encoding
                sys.stdout.reconfigure(errors="backslashreplace")
            status = run()
            _flush()
            return status
    except KeyboardInterrupt as stop:
        # The note of the outermost output: what is kept there.
        kept = getattr(stop, "__notes__", ["nothing is kept"])[-1]
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except Exception as err:
        if isinstance(err, BrokenPipeError) and _has_no_reader():
            return NO_READER
        if (message := _message(err)) is None:
            raise
        print(f"lm-latent-eval: {message}", file=sys.stderr)
        with suppress(OSError):
            _flush()
        return 2


def _message(err: Exception) -> str | None:
    """Return the line for an error; None: it is an error of this program."""
    if _is_out_of_memory(err):
        return (
            f"memory ran out ({one_line(err) or type(err).__name__}): give a smaller "
            "--batch-size or --num-samples, or a machine with more; where the command "
            "can be resumed, it goes on from what is complete"
        )
    error = no_room(err) or err
    if isinstance(error, FileNotFoundError | IsADirectoryError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, EXPECTED) else None


def _is_out_of_memory(err: Exception) -> bool:
    if isinstance(err, MemoryError) or "torch" not in sys.modules:
        return isinstance(err, MemoryError)
    from lm_latent_eval.devices import out_of_memory

    return out_of_memory(err)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _flush() -> None:
    """Flush standard output; after a failure, keep Python from flushing it again."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
        raise


def _has_no_reader() -> bool:
    """Whether the reader of the output left (``| head``); if so, close it."""
    try:
        _flush()
        poll = select.poll()  # unbuffered output leaves nothing to flush
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (BrokenPipeError, ValueError):  # the second one if it is closed already
        return True
    except (OSError, AttributeError):  # no file, or a system without ``poll``
        return False


@contextmanager
def _stopped_by(signal_number: int) -> Iterator[None]:
    """Let a signal end a command as Ctrl-C does."""

    def stop(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt(number)

    before = signal.signal(signal_number, stop)
    try:
        yield
    finally:
        signal.signal(signal_number, before)
