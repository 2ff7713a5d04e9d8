"""Reads plain texts from the files that corpora come in."""

from __future__ import annotations

import json
from pathlib import Path


def read_texts(path: Path) -> list[str]:
    """Read one text a line: JSON lines with ``text`` or ``tokens``, or plain text.

    Raises:
        ValueError: If a JSON line has neither, or the file has no text.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    texts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if Path(path).suffix != ".jsonl":
            texts.append(line)
            continue
        try:
            record = json.loads(line)
            texts.append(
                record["text"] if "text" in record else " ".join(record["tokens"])
            )
        except (ValueError, KeyError, TypeError) as err:
            raise ValueError(
                f'{path}, line {number}: expected {{"text": ...}} or '
                '{"tokens": [...]}'
            ) from err
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts
