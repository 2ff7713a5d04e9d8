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
"""First bytes of a file -> its encoding; longer ones first, as one begins with
another."""


def numbered_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, numbered from 1, without a byte-order mark.

    Blank lines are skipped unless ``blank``.

    Raises:
        ValueError: If the file is not UTF-8, or has a NUL character or an inner
            byte-order mark.
    """
    with _opened(path) as file:
        for line_number, line in enumerate(file, start=1):
            if "\0" in line:
                raise ValueError(
                    f"{path}, line {line_number}: has a NUL character, so it is no text"
                )
            if line.startswith(_MARK):
                raise ValueError(
                    f"{path}, line {line_number}: begins with a byte-order mark "
                    "(U+FEFF), as where files were joined: remove it"
                )
            if blank or line.strip():
                yield line_number, line.removesuffix("\n")


def read_text(path: Path) -> str:
    """Read a whole file.

    Raises:
        ValueError: If it is not UTF-8, or not a regular file.
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
    """Encoding of a file by its first bytes; None if unknown."""
    with Path(path).open("rb") as file:
        start = file.read(max(map(len, _MARKS)))
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
