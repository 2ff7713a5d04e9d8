"""Progress of reading a batch of texts, and its checkpoints after every piece."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.inference import Estimator
from lm_latent_eval.inference.particles import PIECE, followed
from lm_latent_eval.ledger.checkpoints import Checkpoints, Key
from lm_latent_eval.scoring.texts import Text
from lm_latent_eval.text.files import digest

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass
class ReadingProgress:
    """Follows a batch that is read, see ``inference.particles.Follower``."""

    words: Sequence[int]
    """Of each text."""
    bar: tqdm
    pieces: Pieces | None = None
    """Checkpoints of states; None: none are written."""
    _read: dict[int, float] = field(default_factory=dict)
    """Words, by part."""
    _shown: int = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Follow what is read here: all of the batch, if no error ends it."""
        try:
            with followed(self):
                yield
        except Exception:  # what is read again counts again
            self._tell(0)
            raise
        self._tell(sum(self.words))

    def reached(self, part: int, tokens: int, share: float) -> None:
        """Show how many words have been read."""
        self._read[part] = share * sum(min(number, tokens) for number in self.words)
        self._tell(int(sum(self._read.values())))

    def keep(self, part: int, tokens: int, state: object) -> None:
        """Write a checkpoint of the state, if wanted and possible."""
        if self.pieces is None:
            return
        try:
            self.pieces.keep(part, tokens, state)
        except TypeError as err:
            logger.warning("a kill would lose whole texts, not pieces: %s", err)
            self.pieces = None

    def kept(self, part: int, like: Callable[[], T]) -> tuple[int, T] | None:
        """Return the last checkpoint."""
        return self.pieces.kept(part, like) if self.pieces else None

    def _tell(self, words: int) -> None:
        self.bar.update(words - self._shown)
        self._shown = words


@dataclass(frozen=True)
class Pieces:
    """Checkpoints of a batch of texts under one estimator and purpose.

    States are of the batch as a whole, and only the same batch can resume from them.
    Weights are of single texts: the others of the batch may be scored before.
    """

    checkpoints: Checkpoints
    method: Estimator
    purpose: str
    texts: Sequence[Text]

    def keep(self, part: int, tokens: int, state: object) -> None:
        """Keep the state of the batch after so many tokens."""
        self.checkpoints.write(self._names, self._key(part), (tokens, state))

    def kept(self, part: int, like: Callable[[], T]) -> tuple[int, T] | None:
        """Return a number of tokens and the state after them, if one was kept."""
        return self.checkpoints.read(self._names, self._key(part), lambda: (0, like()))

    def keep_weights(self, log_w: Tensor) -> None:
        """Keep the weights of all texts instead of states."""
        for text, row in zip(self.texts, log_w, strict=True):
            one = Pieces(self.checkpoints, self.method, self.purpose, [text])
            self.checkpoints.write(text.query.name, one._key("weights"), row.double())
        self.remove()

    def remove(self) -> None:
        """Remove the states."""
        self.checkpoints.remove(self._names)

    def kept_weights(self) -> Tensor | None:
        """Return the weights of the only text, if they were kept."""
        [text] = self.texts
        return self.checkpoints.read(
            text.query.name,
            self._key("weights"),
            lambda: torch.zeros(0, dtype=torch.float64),
        )

    @property
    def _names(self) -> str:
        return "\0".join(["", *(text.name for text in self.texts)])

    def _key(self, what: str | int) -> Key:
        read = [
            (t.name, t.context, t.context_costs, t.words, t.word_costs, t.condition)
            for t in self.texts
        ]
        return repr(self.method), self.purpose, PIECE, digest(json.dumps(read)), what
