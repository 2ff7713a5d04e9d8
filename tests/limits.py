"""Limits of memory, time and files: what is run fails where it asks for more."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.environment import HANGS


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in what takes longer, or waits for longer (on POSIX)."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: object) -> NoReturn:
        raise Late(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Late(BaseException):
    """No ``Exception``: what is tested may handle those."""


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Let this process have so many bytes more of address space (on Linux)."""
    status = Path("/proc/self/statm")
    if not status.is_file():
        yield
        return
    pages = int(status.read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def little(size: int = 1 << 28, seconds: float = 30) -> Iterator[None]:
    """Let what is run take little memory and time."""
    with at_most(size), within(seconds):
        yield


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Let this process and those that it starts write no larger file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def alone(
    folder: Path, code: str, *, memory: int | None = None, seconds: int | None = None
) -> str:
    """Run code in a process of its own; return what it prints.

    Args:
        folder: Where it runs.
        code: Which may print, and must not fail.
        memory: Bytes of address space that it may have.
        seconds: CPU time that it may take.
    """
    limits = "import resource\n"
    for name, most in (("AS", memory), ("CPU", seconds)):
        if most is not None:
            limits += f"resource.setrlimit(resource.RLIMIT_{name}, ({most}, {most}))\n"
    done = subprocess.run(
        [sys.executable, "-c", limits + code],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=HANGS,
    )
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-500:]}"
    return done.stdout
