"""Log-weights of a corpus, kept in the study's ledger as they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.ledger.database import Found, Ledger, Rows
from lm_latent_eval.scoring.texts import Text

Key = tuple[int, int]
"""Text and sentence."""
FILE = "draws.sqlite"
FORMAT = 1
ROWS_AT_ONCE = 1 << 22
"""Log-weights read at a time."""


def ledger(directory: Path) -> Ledger:
    """Return the file of a study's log-weights."""
    return Ledger(directory / FILE, "file of draws", FORMAT)


@dataclass(frozen=True)
class DrawnRows:
    """Some sentences."""

    keys: list[Key]
    num_tokens: Tensor
    """(n,), int64."""
    log_w: Tensor
    """(n, K) nats, float64."""


@dataclass(frozen=True)
class Draws:
    """The log-weights of one setting.

    Attributes:
        rows: Of the study's ledger.
        setting: The name of the setting.
        num_samples: K.
    """

    rows: Rows
    setting: str
    num_samples: int

    def keys(self) -> set[Key]:
        """Return which sentences are there.

        Raises:
            ValueError: If something else is.
        """
        found = self.rows.keys(self.setting)
        if any(tuple(map(type, key)) != (int, int) for key in found):
            raise self.rows.ledger.not_one(f"{self.setting} is of no sentences")
        return {(int(text), int(sentence)) for text, sentence in found}

    def append(self, found: Iterable[tuple[Text, Tensor]]) -> Iterator[Text]:
        """Keep log-weights, (K,) nats a text, as they are found; yield each text."""
        for text, log_w in found:
            key = text.query.index, text.sentence
            row = {"num_tokens": len(text.words)}
            self.rows.add(self.setting, key, row, log_w.numpy().astype("<f8").tobytes())
            yield text

    def read(self) -> Iterator[DrawnRows]:
        """Yield the rows by text and sentence, as many as memory takes at a time.

        Raises:
            ValueError: If one was edited.
        """
        keys = sorted(self.keys())
        size = max(1, ROWS_AT_ONCE // self.num_samples)
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            found = [self.rows.get(self.setting, key) for key in some]
            num_tokens = torch.tensor([self._num_tokens(row) for row in found])
            log_w = np.frombuffer(b"".join(row.numbers for row in found), "<f8")
            shaped = torch.from_numpy(log_w.reshape(len(some), -1).astype(float))
            yield DrawnRows(some, num_tokens, shaped)

    def _num_tokens(self, found: Found) -> int:
        number = found.row.get("num_tokens")
        if type(number) is not int or len(found.numbers) != 8 * self.num_samples:
            raise self.rows.ledger.edited(found.place, "it is no row of K log-weights")
        return number
