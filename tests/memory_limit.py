"""Lets a test fail where what it runs asks for more memory than it may have."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
