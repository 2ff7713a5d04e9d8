"""Token sequences, end to end in arrays of Arrow, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.distortion.languages.corpus import Corpus

IGNORED = -100
"""A place without a target."""
_WINDOW = 50
"""Batches whose sequences are sorted by length together."""


@dataclass(frozen=True)
class TokenSequences:
    """Sequences of token ids, end to end in one array a piece.

    Attributes:
        pieces: The ids of a piece, and where each of its sequences begins, with the
            end of the last one.
        firsts: The place of the first sequence of each piece.
        lengths: Tokens of each sequence, (N,).
    """

    pieces: tuple[tuple[NDArray[np.int32], NDArray[np.int32]], ...]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int32]

    @classmethod
    def of(cls, arrays: Sequence[pa.ListArray]) -> TokenSequences:
        """Take the sequences of Arrow arrays, which are not copied."""
        pieces = tuple(
            (array.values.to_numpy(), array.offsets.to_numpy()) for array in arrays
        )
        sizes = [len(starts) - 1 for _, starts in pieces]
        lengths = [np.diff(starts) for _, starts in pieces]
        return cls(pieces, np.cumsum([0, *sizes[:-1]]), np.concatenate(lengths))

    @classmethod
    def of_corpus(cls, corpus: Corpus) -> TokenSequences:
        """Map the files of a corpus into memory."""
        arrays: list[pa.ListArray] = []
        for shard in corpus.shards():
            with pa.memory_map(str(shard.path)) as file:
                arrays += pa.ipc.open_stream(file).read_all()["ids"].chunks
        return cls.of(arrays)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> NDArray[np.int32]:
        """Return the ids of a sequence."""
        piece = int(self.firsts.searchsorted(place, "right")) - 1
        ids, starts = self.pieces[piece]
        row = place - int(self.firsts[piece])
        return ids[starts[row] : starts[row + 1]]


@dataclass
class Batches:
    """The batches of an epoch, in an order that follows from the seed and its number.

    Sequences are shuffled, sorted by length within windows of 50 batches, cut into
    batches, and the batches are shuffled: those of similar lengths go together, but an
    epoch has no order of lengths. The last, smaller batch is of random sequences.

    Attributes:
        sequences: Those of an epoch, counted from 0.
        num_sequences: How many, in every epoch.
        batch_size: Sequences a batch.
        begin_id: What a sequence follows.
        seed: Of the order.
        quiet: Show no progress bar.
    """

    sequences: Callable[[int], TokenSequences]
    num_sequences: int
    batch_size: int
    begin_id: int
    seed: int
    quiet: bool = False
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, counted from 0; the Trainer says which."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.num_sequences // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs and labels of the batches."""
        sequences = self.sequences(self.epoch)
        for places in tqdm(
            self.order(sequences.lengths),
            desc=f"epoch {self.epoch + 1}",
            unit=" batches",
            leave=False,
            disable=self.quiet or None,  # None: quiet but on a terminal
        ):
            yield padded([sequences[place] for place in places], self.begin_id)

    def order(self, lengths: NDArray[np.int32]) -> list[NDArray[np.int64]]:
        """Return the places of each batch's sequences."""
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = generator.permutation(len(lengths))
        whole = len(lengths) // self.batch_size * self.batch_size
        batches = [shuffled[whole:]] if whole < len(lengths) else []
        for start in range(0, whole, window := self.batch_size * _WINDOW):
            some = shuffled[start : min(start + window, whole)]
            by_length = some[np.argsort(lengths[some], kind="stable")]
            batches += np.split(by_length, len(some) // self.batch_size)
        return [batches[number] for number in generator.permutation(len(batches))]


def padded(sequences: Sequence[NDArray[np.int32]], begin_id: int) -> dict[str, Tensor]:
    """Return ``input_ids``, begin and all tokens but the last, and ``labels``, (n, T).

    A sequence that was cut has no end to learn: its labels are its tokens. What stands
    after a sequence has no label, and a causal model does not see it.

    Example:
        >>> rows = padded([np.array([5, 1]), np.array([6])], begin_id=0)
        >>> rows["input_ids"].tolist(), rows["labels"].tolist()
        ([[0, 5], [0, 6]], [[5, 1], [6, -100]])
    """
    lengths = torch.tensor([len(ids) for ids in sequences])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    labels = torch.full(inside.shape, IGNORED)
    labels[inside] = torch.from_numpy(np.concatenate(sequences)).long()
    begin = torch.full_like(labels[:, :1], begin_id)
    inputs = torch.cat([begin, labels[:, :-1]], 1)
    return {"input_ids": inputs.where(inputs != IGNORED, begin_id), "labels": labels}
