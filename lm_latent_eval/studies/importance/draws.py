"""Log-weights of a corpus in a file, which a crash does not lose.

A file holds records of one size: which text and sentence, how many tokens it predicts,
and its K log-weights. They are appended as they are found, so a file that was cut short
lacks its last record at most, and read without loading the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.scoring.texts import Text

Key = tuple[int, int]
"""Text and sentence."""
ROWS_AT_ONCE = 1 << 22
"""Log-weights read at a time."""


@dataclass(frozen=True)
class Rows:
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
            ]
        )

    def keys(self) -> set[Key]:
        """Return which sentences are there; drop a record that was cut short."""
        if not self.path.exists():
            return set()
        size = self.path.stat().st_size
        whole = size - size % self.dtype.itemsize
        if whole < size:
            with self.path.open("r+b") as file:
                file.truncate(whole)
        return set(self._keys())

    def append(self, found: Iterable[tuple[Text, Tensor]]) -> Iterator[Text]:
        """Write log-weights, (K,) nats a text, as they are found; yield each text."""
        with self.path.open("ab") as file:
            for text, log_w in found:
                record = np.zeros((), self.dtype)
                record["text"] = text.query.index
                record["sentence"] = text.sentence
                record["num_tokens"] = len(text.words)
                record["log_w"] = log_w.numpy()
                file.write(record.tobytes())
                file.flush()
                yield text

    def read(self) -> Iterator[Rows]:
        """Yield the records by text and sentence, as many as memory takes at a time."""
        records = self._records()
        keys = self._keys()
        order = sorted(range(len(keys)), key=keys.__getitem__)
        size = max(1, ROWS_AT_ONCE // self.dtype["log_w"].shape[0])
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            some = records[rows]
            yield Rows(
                [keys[row] for row in rows],
                torch.from_numpy(some["num_tokens"].copy()),
                torch.from_numpy(some["log_w"].copy()),
            )

    def _keys(self) -> list[Key]:
        records = self._records()
        texts, sentences = records["text"].tolist(), records["sentence"].tolist()
        return list(zip(texts, sentences, strict=True))

    def _records(self) -> Any:
        if not self.path.exists() or not self.path.stat().st_size:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, self.dtype, mode="r")
