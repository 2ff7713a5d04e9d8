"""Error messages of the system and of libraries, rephrased for users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 300


def one_line(err: BaseException) -> str:
    r"""Return what an error says, however many lines it takes.

    Example:
        >>> one_line(RuntimeError("Error(s) in loading:\n\tsize mismatch"))
        'Error(s) in loading: size mismatch'
    """
    return " ".join(str(err).split())[:LONGEST]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say which file it is that cannot be read: the system does when one is opened.

    Raises:
        ValueError: If reading it fails.
    """
    try:
        yield
    except OSError as err:
        if err.filename is not None:
            raise
        raise ValueError(f"{path} cannot be read ({err.strerror or err})") from err
