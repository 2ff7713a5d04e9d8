"""Training data of learners: a corpus, natural text, or fresh samples an epoch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import Language
from lm_latent_eval.distortion.learners.sequences import TokenSequences
from lm_latent_eval.distortion.learners.text_data import TextData
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.ledger.files import SETTINGS_FILE


class TrainingData(Protocol):
    """Sequences to train on, or to validate with."""

    @property
    def vocabulary(self) -> TokenIds:
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
    def vocabulary(self) -> TokenIds:
        return TokenIds.of(self.corpus)

    @property
    def max_length(self) -> int:
        return self.corpus.max_length

    @property
    def num_sequences(self) -> int:
        return self.corpus.num_sequences

    @property
    def repeated(self) -> Corpus:
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
    def vocabulary(self) -> TokenIds:
        return TokenIds.of(self.corpus)

    @property
    def max_length(self) -> int:
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
        raise ValueError(
            f"{path} is not a corpus: it has no {SETTINGS_FILE}, which "
            "`lm-latent-eval distort sample` writes"
        )
    if not Path(path).exists():
        raise ValueError(f"{path}: no such corpus or text")
    if tokenizer is None:
        raise ValueError(f"{path} is not a corpus: name the tokenizer of a text")
    return TextData(path, TokenIds.read(tokenizer), max_length, quiet)


def check_apart(
    data: TrainingData, epochs: int, others: dict[str, Corpus], used: str
) -> None:
    """Raise if sequences are among those of other corpora.

    Args:
        data: The sequences.
        epochs: How many of it.
        others: Name -> corpus.
        used: What the sequences are, for messages: "trained on".

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
        names = ("language", "seed")
        same = all(corpus.settings[n] == other.settings[n] for n in names)
        if first < stop and same:
            raise ValueError(
                f"the {name} sequences {first} .. {stop - 1} of {other.directory} are "
                f"{used}: draw others, with another --first or --seed"
            )
