"""Training data of learners: a corpus, natural text, or fresh samples; its batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.distortion.languages.corpus import Corpus, TokenIds
from lm_latent_eval.distortion.languages.language import Language
from lm_latent_eval.distortion.learners.options import TrainingOptions
from lm_latent_eval.files import digest, file_digest
from lm_latent_eval.ledger.files import SETTINGS_FILE
from lm_latent_eval.options import whole
from lm_latent_eval.text.corpora import stream_texts

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
        data: The sequences.
        options: Sequences a batch, and the seed.
        quiet: Show no progress bar.
        epoch: Which, counted from 0.
    """

    data: TrainingData
    options: TrainingOptions
    quiet: bool = False
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, counted from 0; the Trainer says which."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.data.num_sequences // self.options.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs and labels of the batches."""
        sequences = self.data.sequences(self.epoch)
        begin_id = self.data.vocabulary.begin_id
        for places in tqdm(
            self.order(sequences.lengths),
            desc=f"epoch {self.epoch + 1}",
            unit=" batches",
            leave=False,
            disable=self.quiet or None,  # None: quiet but on a terminal
        ):
            yield padded([sequences[place] for place in places], begin_id)

    def order(self, lengths: NDArray[np.int32]) -> list[NDArray[np.int64]]:
        """Return the places of each batch's sequences."""
        generator = np.random.default_rng((self.options.seed, self.epoch))
        shuffled, size = generator.permutation(len(lengths)), self.options.batch_size
        whole = len(lengths) // size * size
        batches = [shuffled[whole:]] if whole < len(lengths) else []
        for start in range(0, whole, window := size * _WINDOW):
            some = shuffled[start : min(start + window, whole)]
            by_length = some[np.argsort(lengths[some], kind="stable")]
            batches += np.split(by_length, len(some) // size)
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


_ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class TextData:
    """Natural text, a sequence a text: what a language is trained on.

    A text's tokens are followed by the end. A longer one than ``max_length`` is cut
    and has no end; how many are is said. Strings that look like special tokens are
    text. All ids are kept in memory, four bytes each.

    Attributes:
        path: JSON lines, or one text a line.
        vocabulary: Its tokenizer cuts the texts.
        max_length: The most tokens of a sequence, its end included.
        quiet: Do not say how many texts were cut.
    """

    path: Path
    vocabulary: TokenIds
    max_length: int = 128
    quiet: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def sequences(self, epoch: int) -> TokenSequences:
        """Return the same ones in every epoch."""
        return self._sequences

    def settings(self) -> dict[str, Any]:
        """Return digests of file and tokenizer, begin, end and the maximum length."""
        tokenizer: Any = self.vocabulary.tokenizer
        return {
            "text": file_digest(Path(self.path))[:16],
            "tokenizer": digest(tokenizer.backend_tokenizer.to_str()),
            "begin_id": self.vocabulary.begin_id,
            "end_id": self.vocabulary.end_id,
            "max_length": self.max_length,
        }

    @cached_property
    def _sequences(self) -> TokenSequences:
        arrays, num_cut, stream = [], 0, stream_texts(self.path)
        while texts := list(islice(stream, _ROWS_AT_ONCE)):
            rows = [[*row, self.vocabulary.end_id] for row in self._ids(texts)]
            num_cut += sum(len(row) > self.max_length for row in rows)
            cut = [row[: self.max_length] for row in rows]
            arrays.append(pa.array(cut, pa.list_(pa.int32())))
        sequences = TokenSequences.of(arrays)
        if num_cut and not self.quiet:
            print(
                f"{self.path}: {num_cut} of {len(sequences)} texts have more than "
                f"{self.max_length} tokens, their end included, and are cut",
                file=sys.stderr,
            )
        return sequences

    def _ids(self, texts: list[str]) -> list[list[int]]:
        tokenizer: Any = self.vocabulary.tokenizer
        try:
            found: list[list[int]] = tokenizer(
                texts,
                add_special_tokens=False,
                split_special_tokens=True,
                return_attention_mask=False,
                verbose=False,
            ).input_ids
        except Exception as err:  # the Rust library raises nothing narrower
            raise ValueError(
                f"the tokenizer of {self.vocabulary.owner} cannot read "
                f"{self.path} ({err})"
            ) from err
        return found


@dataclass(frozen=True)
class _LikeCorpus:
    """Base class of data with the token ids and the maximum length of a corpus."""

    corpus: Corpus

    @cached_property
    def vocabulary(self) -> TokenIds:
        return TokenIds.of(self.corpus)

    @property
    def max_length(self) -> int:
        return self.corpus.max_length


@dataclass(frozen=True)
class CorpusData(_LikeCorpus):
    """The sequences of a corpus, memory-mapped."""

    @property
    def num_sequences(self) -> int:
        return self.corpus.num_sequences

    def sequences(self, epoch: int) -> TokenSequences:
        """Return the same ones in every epoch."""
        return self._sequences

    def drawn(self, epochs: int) -> range:
        """Return the numbers of the sequences in so many epochs."""
        return self.corpus.indices

    def settings(self) -> dict[str, Any]:
        return {"corpus": self.corpus.settings}

    @cached_property
    def _sequences(self) -> TokenSequences:
        batches = self.corpus.record_batches()
        return TokenSequences.of([batch["ids"] for batch in batches])


@dataclass(frozen=True)
class FreshData(_LikeCorpus):
    """New sequences of a language every epoch: none is ever seen twice.

    Epoch e has the sequences ``first + e n .. first + (e + 1) n - 1`` of the seed of a
    corpus, drawn when the epoch begins and kept in memory, four bytes a token. This is
    the "ideal world" of Nakkiran et al. (2020).

    Attributes:
        corpus: Names the seed, the first number and the maximum length.
        language: What it was drawn from.
        num_sequences: n.
    """

    language: Language
    num_sequences: int

    def __post_init__(self) -> None:
        whole("fresh sequences an epoch", self.num_sequences, 1)

    def sequences(self, epoch: int) -> TokenSequences:
        """Draw those of an epoch."""
        seed = int(self.corpus.settings["seed"])
        last = self.drawn(epoch + 1).stop
        arrays = []
        for first in range(last - self.num_sequences, last, _ROWS_AT_ONCE):
            some = range(first, min(first + _ROWS_AT_ONCE, last))
            drawn = self.language.sample(seed, some, self.max_length).sequences
            arrays.append(pa.array(drawn, pa.list_(pa.int32())))
        return TokenSequences.of(arrays)

    def drawn(self, epochs: int) -> range:
        """Return the numbers of the sequences in so many epochs."""
        first = self.corpus.indices.start
        return range(first, first + epochs * self.num_sequences)

    def settings(self) -> dict[str, Any]:
        """Return language, seed, first number, maximum length, and how many."""
        names = ("language", "seed", "first", "max_length")
        origin = {name: self.corpus.settings[name] for name in names}
        return {"fresh": self.num_sequences, "corpus": origin}


TrainingData = CorpusData | TextData | FreshData
"""Sequences to train on, or to validate with: as many in every epoch."""


def open_data(
    path: Path, *, tokenizer: Path | None = None, max_length: int = 128
) -> CorpusData | TextData:
    """Open the folder of a corpus, or a file of texts that a tokenizer cuts.

    Raises:
        ValueError: If it is neither, texts have no tokenizer, or no token fits.
    """
    if (Path(path) / SETTINGS_FILE).is_file():
        return CorpusData(Corpus.open(path))
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is not a corpus: it has no {SETTINGS_FILE}, which "
            "`lm-latent-eval distort sample` writes"
        )
    if not Path(path).exists():
        raise ValueError(f"{path}: no such corpus or text")
    if tokenizer is None:
        raise ValueError(f"{path} is not a corpus: name the tokenizer of a text")
    whole("max_length", max_length, 1)
    return TextData(path, TokenIds.read(tokenizer), max_length)


def check_apart(
    data: TrainingData, epochs: int, others: dict[str, Corpus], used: str
) -> None:
    """Refuse named corpora of the same language and seed that share sequences.

    Args:
        data: The sequences.
        epochs: How many of it.
        others: Name -> corpus.
        used: What the sequences are, for messages: "trained on".

    Raises:
        ValueError: If there is such a corpus.
    """
    if isinstance(data, TextData):
        return  # of no language of ours
    corpus, numbers = data.corpus, data.drawn(epochs)
    for name, other in others.items():
        first = max(numbers.start, other.indices.start)
        stop = min(numbers.stop, other.indices.stop)
        names = ("language", "seed")
        same = all(corpus.settings[n] == other.settings[n] for n in names)
        if first < stop and same:
            raise ValueError(
                f"the {name} sequences {first} .. {stop - 1} of {other.directory} are "
                f"{used}: draw others, with another --first or --seed"
            )
