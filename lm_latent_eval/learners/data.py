"""What a learner is trained on: a corpus, natural text, or fresh sequences an epoch."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import Language
from lm_latent_eval.learners.sequences import TokenSequences
from lm_latent_eval.learners.vocabulary import Vocabulary
from lm_latent_eval.settings import SETTINGS_FILE
from lm_latent_eval.text.corpora import stream_texts

_TEXTS_AT_ONCE = 1000


class TrainingData(Protocol):
    """Sequences to train on, or to validate with."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What the sequences are made of."""
        ...

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence."""
        ...

    @property
    def num_sequences(self) -> int:
        """How many there are, in every epoch."""
        ...

    @property
    def repeated(self) -> Corpus | None:
        """The corpus that every epoch goes through; None if there is none."""
        ...

    def sequences(self, epoch: int) -> TokenSequences:
        """Return those of an epoch, counted from 0."""
        ...

    def clear(self) -> None:
        """Remove what lies on disk for a training alone, which is over."""
        ...

    def drawn(self, epochs: int) -> tuple[Corpus, range] | None:
        """Say which numbers of which language's sequences the first epochs have."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return what the sequences depend on, for a JSON file."""
        ...


@dataclass(frozen=True)
class CorpusData:
    """The sequences of a corpus, memory-mapped."""

    corpus: Corpus

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """That of the corpus."""
        return Vocabulary.of(self.corpus)

    @property
    def max_length(self) -> int:
        """That of the corpus."""
        return self.corpus.max_length

    @property
    def num_sequences(self) -> int:
        """All of the corpus."""
        return self.corpus.num_sequences

    @property
    def repeated(self) -> Corpus:
        """The corpus."""
        return self.corpus

    def sequences(self, epoch: int) -> TokenSequences:
        """Return the same ones in every epoch."""
        return self._sequences

    def clear(self) -> None:
        """Keep the corpus."""

    def drawn(self, epochs: int) -> tuple[Corpus, range]:
        """Return all numbers of the corpus."""
        return self.corpus, self.corpus.indices

    def settings(self) -> dict[str, Any]:
        """Return those of the corpus."""
        return {"corpus": self.corpus.settings}

    @cached_property
    def _sequences(self) -> TokenSequences:
        return TokenSequences.of_corpus(self.corpus)


@dataclass(frozen=True)
class FreshData:
    """New sequences of a language every epoch: none is ever seen twice.

    Epoch e has the sequences ``first + e n .. first + (e + 1) n - 1`` of the seed of a
    corpus, drawn when the epoch begins and removed when the next one does. This is the
    "ideal world" of Nakkiran et al. (2020).

    Attributes:
        corpus: Names the seed, the first number and the maximum length.
        language: What it was drawn from.
        num_sequences: n.
        directory: Where the sequences of an epoch lie.
        quiet: Show no progress bar.
    """

    corpus: Corpus
    language: Language
    num_sequences: int
    directory: Path
    quiet: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty epoch.

        Raises:
            ValueError: If it is.
        """
        if self.num_sequences < 1:
            raise ValueError(
                f"{self.num_sequences} fresh sequences an epoch: expected at least 1"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """That of the corpus."""
        return Vocabulary.of(self.corpus)

    @property
    def max_length(self) -> int:
        """That of the corpus."""
        return self.corpus.max_length

    @property
    def repeated(self) -> None:
        """There is no such corpus."""
        return None

    def sequences(self, epoch: int) -> TokenSequences:
        """Draw those of an epoch; an interruption in between goes on where it was."""
        here = self.directory / f"{epoch:05}"
        for other in self.directory.glob("*"):
            if other != here:
                shutil.rmtree(other)
        drawn = Corpus.draw(
            self.language,
            here,
            self.num_sequences,
            seed=int(self.corpus.settings["seed"]),
            first=self.corpus.indices.start + epoch * self.num_sequences,
            max_length=self.max_length,
            quiet=self.quiet,
        )
        return TokenSequences.of_corpus(drawn)

    def clear(self) -> None:
        """Remove what was drawn last."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def drawn(self, epochs: int) -> tuple[Corpus, range]:
        """Return the numbers from the first one of the corpus on."""
        first = self.corpus.indices.start
        return self.corpus, range(first, first + epochs * self.num_sequences)

    def settings(self) -> dict[str, Any]:
        """Return language, seed, first number, maximum length, and how many."""
        names = ("language", "seed", "first", "max_length")
        origin = {name: self.corpus.settings[name] for name in names}
        return {"fresh": self.num_sequences, "corpus": origin}


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
    vocabulary: Vocabulary
    max_length: int = 128
    quiet: bool = False

    def __post_init__(self) -> None:
        """Check that there is something to read, and by what.

        Raises:
            ValueError: If not.
        """
        if not Path(self.path).is_file():
            raise ValueError(f"{self.path}: no such file")
        if self.vocabulary.tokenizer is None:
            raise ValueError(
                f"{self.vocabulary.owner} has no tokenizer to read text by"
            )
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length}: expected at least 1")

    @property
    def num_sequences(self) -> int:
        """How many texts there are."""
        return len(self._sequences)

    @property
    def repeated(self) -> None:
        """There is no corpus of known probabilities."""
        return None

    def sequences(self, epoch: int) -> TokenSequences:
        """Return the same ones in every epoch."""
        return self._sequences

    def clear(self) -> None:
        """Keep the file."""

    def drawn(self, epochs: int) -> None:
        """They are of no language of ours."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return a digest of the file and the maximum length."""
        with Path(self.path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        ids = (self.vocabulary.size, self.vocabulary.begin_id, self.vocabulary.end_id)
        return {"text": digest, "vocabulary": ids, "max_length": self.max_length}

    @cached_property
    def _sequences(self) -> TokenSequences:
        arrays, num_cut = [], 0
        for ids, cut in self._encoded():
            arrays.append(pa.array(ids, pa.list_(pa.int32())))
            num_cut += cut
        sequences = TokenSequences.of(arrays)
        if num_cut and not self.quiet:
            print(
                f"{self.path}: {num_cut} of {len(sequences)} texts have more than "
                f"{self.max_length} tokens, their end included, and are cut",
                file=sys.stderr,
            )
        return sequences

    def _encoded(self) -> Iterator[tuple[list[list[int]], int]]:
        """Yield the ids of some texts, and how many of them were cut."""
        tokenizer: Any = self.vocabulary.tokenizer
        stream = stream_texts(self.path)
        while texts := list(islice(stream, _TEXTS_AT_ONCE)):
            try:
                rows = tokenizer(
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
            ended = [[*row, self.vocabulary.end_id] for row in rows]
            cut = [row[: self.max_length] for row in ended]
            yield cut, sum(len(row) > self.max_length for row in ended)


def open_data(
    path: Path,
    *,
    tokenizer: Path | None = None,
    max_length: int = 128,
    quiet: bool = False,
) -> CorpusData | TextData:
    """Open the folder of a corpus, or a file of texts.

    Args:
        path: Either.
        tokenizer: Directory of what cuts texts.
        max_length: The most tokens of a text.
        quiet: Do not say how many texts were cut.

    Raises:
        ValueError: If it is neither, or texts have no tokenizer.
    """
    if (Path(path) / SETTINGS_FILE).is_file():
        return CorpusData(Corpus.open(path))
    if Path(path).is_dir():
        raise ValueError(f"{path} is not a corpus: it has no {SETTINGS_FILE}")
    if tokenizer is None:
        raise ValueError(f"{path} is not a corpus: name the tokenizer of a text")
    return TextData(path, Vocabulary.read(tokenizer), max_length, quiet)


def check_apart(data: TrainingData, epochs: int, others: dict[str, Corpus]) -> None:
    """Raise if sequences of training are among those of other corpora.

    Raises:
        ValueError: If a corpus of the same language and seed has a number of them.
    """
    drawn = data.drawn(epochs)
    if drawn is None:
        return
    corpus, numbers = drawn
    for name, other in others.items():
        first = max(numbers.start, other.indices.start)
        stop = min(numbers.stop, other.indices.stop)
        if first < stop and _origin(corpus) == _origin(other):
            raise ValueError(
                f"the {name} sequences {first} .. {stop - 1} of {other.directory} are "
                "trained on: draw others, with another --first or --seed"
            )


def _origin(corpus: Corpus) -> tuple[Any, ...]:
    language = {k: v for k, v in corpus.settings["language"].items() if k != "name"}
    return language, corpus.settings["seed"]
