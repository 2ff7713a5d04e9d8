"""Text files, UTF-8 with or without a byte-order mark; digests of texts."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lm_latent_eval.files import digest as digest
from lm_latent_eval.files import naming, regular
from lm_latent_eval.values import parse

_MARK = "\ufeff"
_MARKS = {
    codecs.BOM_UTF32_LE: "a byte-order mark of UTF-32",
    codecs.BOM_UTF32_BE: "a byte-order mark of UTF-32",
    codecs.BOM_UTF16_LE: "a byte-order mark of UTF-16",
    codecs.BOM_UTF16_BE: "a byte-order mark of UTF-16",
    b"\x1f\x8b": "compressed by gzip",
}
"""How a file begins -> what that is; the longer ones first, as one begins with
another."""


def numbered_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, numbered from 1.

    A byte-order mark before the first one is no part of it.

    Args:
        path: The file.
        blank: Whether blank ones are among them.

    Raises:
        ValueError: If the file is not UTF-8, or holds what no text does: a NUL
            character, or a byte-order mark within.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if "\0" in line:
                raise ValueError(
                    f"{path}, line {number}: has a NUL character, so it is no text"
                )
            if line.startswith(_MARK):
                raise ValueError(
                    f"{path}, line {number}: begins with a byte-order mark (U+FEFF), "
                    "as where files were joined: remove it"
                )
            if blank or line.strip():
                yield number, line.removesuffix("\n")


def read_text(path: Path) -> str:
    """Read a whole file.

    Raises:
        ValueError: If it is not UTF-8, or no file.
    """
    with _opened(regular(path)) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """Read a file of one JSON value.

    Raises:
        ValueError: As for ``parse``, or if the file is not UTF-8.
    """
    return parse(read_text(path))


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with naming(path), Path(path).open(encoding="utf-8-sig") as file:
        try:
            yield file
        except UnicodeDecodeError as err:
            why = _encoding(path) or err
            raise ValueError(f"{path} is not UTF-8 ({why}): convert it first") from err


def _encoding(path: Path) -> str | None:
    """Say what tells a file's encoding; None where nothing does."""
    with Path(path).open("rb") as file:
        start = file.read(max(map(len, _MARKS)))
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
