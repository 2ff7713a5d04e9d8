"""Reads plain texts from the files that corpora come in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_latent_eval.text.words import LITERAL_UNKNOWN

START_MARK, END_MARK = "@@START@@", "@@END@@"
_UNMARKED = {END_MARK: "\n", "@@UNKNOWN@@": LITERAL_UNKNOWN}


def read_texts(path: Path) -> list[str]:
    """Read one text a line: JSON lines with ``text`` or ``tokens``, or plain text.

    Raises:
        ValueError: If a JSON line has neither, or the file has no text.
    """
    return list(stream_texts(path))


def stream_texts(path: Path) -> Iterator[str]:
    """Yield what ``read_texts`` returns, for files larger than memory."""
    empty = True
    for number, line in numbered_lines(path):
        empty = False
        if Path(path).suffix not in (".jsonl", ".json"):
            yield line
            continue
        try:
            text = _text(json.loads(line))
        except (ValueError, KeyError, TypeError) as err:
            raise ValueError(
                f'{path}, line {number}: expected {{"text": "..."}} or '
                '{"tokens": ["...", ...]}'
            ) from err
        yield text
    if empty:
        raise ValueError(f"{path} has no text")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, numbered from 1.

    Raises:
        ValueError: If the file is not UTF-8.
    """
    with Path(path).open(encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.removesuffix("\n")
        except UnicodeDecodeError as err:
            raise ValueError(f"{path} is not UTF-8 ({err}): convert it first") from err


def unmarked(tokens: Sequence[str]) -> list[str]:
    r"""Return tokens without the marks that Linked WikiText-2 puts among them.

    Those around a text go, an end of a line within it becomes ``\n``.

    Example:
        >>> unmarked("@@START@@ First line . @@END@@ And last . @@END@@".split())
        ['First', 'line', '.', '\n', 'And', 'last', '.']
    """
    first = int(tokens[:1] == [START_MARK])
    last = len(tokens) - int(tokens[-1:] == [END_MARK])
    return [_UNMARKED.get(token, token) for token in tokens[first:last]]


def _text(record: Any) -> str:
    text = record["text"] if "text" in record else " ".join(unmarked(record["tokens"]))
    if not isinstance(text, str):
        raise TypeError("not a string")
    return text
