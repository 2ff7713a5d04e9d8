"""Log-weights of a corpus in a file, which a crash does not lose.

A file holds records of one size: which text and sentence, how many tokens it predicts,
its K log-weights, and a checksum. They are appended as they are found, so a crash cuts
the last one short at most (a power cut leaves bytes of zero there). They are read
without loading the file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.ledger.journal import appending
from lm_latent_eval.scoring.texts import Text

Key = tuple[int, int]
"""Text and sentence."""
ROWS_AT_ONCE = 1 << 22
"""Log-weights read at a time."""


@dataclass(frozen=True)
class DrawnRows:
    """Some records."""

    keys: list[Key]
    num_tokens: Tensor
    """(n,), int64."""
    log_w: Tensor
    """(n, K) nats, float64."""


class DrawsFile:
    """The log-weights of one setting."""

    def __init__(self, path: Path, num_samples: int) -> None:
        """Name a file, which need not exist, and K."""
        self.path = path
        self.dtype = np.dtype(
            [
                ("text", "<i8"),
                ("sentence", "<i8"),
                ("num_tokens", "<i8"),
                ("log_w", "<f8", (num_samples,)),
                ("checksum", "<u8"),
            ]
        )

    def keys(self) -> set[Key]:
        """Return which sentences are there; drop what a crash left at the end.

        Raises:
            ValueError: If a record is damaged that others follow, or is there twice.
        """
        if not self.path.exists():
            return set()
        fits = [record["checksum"] == _checksum(record) for record in self._records()]
        number = max((n for n, fit in enumerate(fits, 1) if fit), default=0)
        if number * self.dtype.itemsize < self.path.stat().st_size:
            os.truncate(self.path, number * self.dtype.itemsize)
        found: set[Key] = set()
        for place, (key, fit) in enumerate(zip(self._keys(), fits, strict=False), 1):
            if not fit or key in found:
                raise ValueError(
                    f"{self.path}, record {place}: damaged, or there twice; remove the "
                    "file, and its texts are drawn again"
                )
            found.add(key)
        return found

    def append(self, found: Iterable[tuple[Text, Tensor]]) -> Iterator[Text]:
        """Write log-weights, (K,) nats a text, as they are found; yield each text."""
        with appending(self.path) as append:
            for text, log_w in found:
                record = np.zeros((), self.dtype)
                record["text"] = text.query.index
                record["sentence"] = text.sentence
                record["num_tokens"] = len(text.words)
                record["log_w"] = log_w.numpy()
                record["checksum"] = _checksum(record)
                append(record.tobytes())
                yield text

    def read(self) -> Iterator[DrawnRows]:
        """Yield the records by text and sentence, as many as memory takes at a time."""
        records = self._records()
        keys = self._keys()
        order = sorted(range(len(keys)), key=keys.__getitem__)
        size = max(1, ROWS_AT_ONCE // self.dtype["log_w"].shape[0])
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            some = records[rows]
            yield DrawnRows(
                [keys[row] for row in rows],
                torch.from_numpy(some["num_tokens"].copy()),
                torch.from_numpy(some["log_w"].copy()),
            )

    def _keys(self) -> list[Key]:
        records = self._records()
        texts, sentences = records["text"].tolist(), records["sentence"].tolist()
        return list(zip(texts, sentences, strict=True))

    def _records(self) -> Any:
        size = self.path.stat().st_size if self.path.exists() else 0
        whole = size // self.dtype.itemsize
        if not whole:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", shape=(whole,))


def _checksum(record: Any) -> int:
    """Return that of a record's bytes before the checksum itself, which is never 0."""
    return zlib.crc32(record.tobytes()[:-8]) | 1 << 32
