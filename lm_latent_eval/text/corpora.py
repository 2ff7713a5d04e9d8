"""Reads plain texts from the files that corpora come in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_texts(path: Path) -> list[str]:
    """Read one text a line: JSON lines with ``text`` or ``tokens``, or plain text.

    Raises:
        ValueError: If a JSON line has neither, or the file has no text.
    """
    texts = []
    for number, line in numbered_lines(path):
        if Path(path).suffix != ".jsonl":
            texts.append(line)
            continue
        try:
            texts.append(_text(json.loads(line)))
        except (ValueError, KeyError, TypeError) as err:
            raise ValueError(
                f'{path}, line {number}: expected {{"text": "..."}} or '
                '{"tokens": ["...", ...]}'
            ) from err
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts


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


def _text(record: Any) -> str:
    text = record["text"] if "text" in record else " ".join(record["tokens"])
    if not isinstance(text, str):
        raise TypeError("not a string")
    return text
