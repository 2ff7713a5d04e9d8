"""Sources of sequences to measure, with their true log-probabilities.

A corpus as it is, or its short sequences; each after 0, 1, .. S perturbations; random
sequences of its alphabet; and texts that someone wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

from torch import Tensor

from lm_latent_eval.distortion.edits import Perturbation
from lm_latent_eval.distortion.languages.corpus import Corpus, Sequences
from lm_latent_eval.distortion.languages.language import Language
from lm_latent_eval.distortion.random_sequences import MEAN_LENGTH, random_sequence
from lm_latent_eval.ledger.settings import Settings


class SequenceSource(Protocol):
    """Numbered sequences, each in ``rows_each`` forms."""

    @property
    def corpus(self) -> Corpus:
        """What they are, or are made from."""
        ...

    @property
    def indices(self) -> range:
        """Their numbers."""
        ...

    @property
    def rows_each(self) -> int:
        """Forms of a sequence: after 0, 1, .. perturbations."""
        ...

    def settings(self) -> Settings:
        """Return what they depend on besides the corpus."""
        ...

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Return all forms of some sequences, one after the other, and log p_L."""
        ...


@dataclass(frozen=True)
class Unchanged:
    """The sequences of a corpus, or the first of them."""

    corpus: Corpus
    num_sequences: int | None = None
    rows_each: ClassVar[int] = 1

    @property
    def indices(self) -> range:
        """Their numbers.

        Raises:
            ValueError: If the corpus has not so many.
        """
        return _first(self.corpus, self.num_sequences)

    def settings(self) -> Settings:
        return {"sequences": "corpus"}

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Read them, and what the corpus says of them."""
        found = self._read(indices)
        return found.ids, found.log_p

    @cached_property
    def _read(self) -> Callable[[range], Sequences]:
        return self.corpus.reader()


@dataclass(frozen=True)
class Short:
    """The first sequences of a corpus that have no more than so many tokens.

    They are numbered anew, from 0 on.

    Attributes:
        corpus: The sequences.
        max_tokens: The end included.
        num_sequences: How many.
    """

    corpus: Corpus
    max_tokens: int
    num_sequences: int
    rows_each: ClassVar[int] = 1

    @property
    def indices(self) -> range:
        return range(self.num_sequences)

    def settings(self) -> Settings:
        """Return their kind and the most tokens."""
        return {"sequences": "short", "max_tokens": self.max_tokens}

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Read them, and what the corpus says of them.

        Raises:
            ValueError: If the corpus has not so many.
        """
        ids, log_p = self._found
        return [ids[index] for index in indices], log_p[list(indices)]

    @cached_property
    def _found(self) -> tuple[list[list[int]], Tensor]:
        all_ = self.corpus.reader()(self.corpus.indices)
        places = [n for n, ids in enumerate(all_.ids) if len(ids) <= self.max_tokens]
        if len(places) < self.num_sequences:
            raise ValueError(
                f"{self.corpus.directory} has {len(places)} sequences of at most "
                f"{self.max_tokens} tokens, not {self.num_sequences}: draw more"
            )
        places = places[: self.num_sequences]
        return [all_.ids[n] for n in places], all_.log_p[places]


@dataclass(frozen=True)
class Perturbed:
    """The sequences of a corpus after 0, 1, .. ``num_edits`` perturbations.

    Attributes:
        corpus: The sequences.
        language: What they were drawn from, for the log-probabilities of what is new.
        num_edits: The most perturbations of a sequence.
        seed: Of the perturbations.
        num_sequences: Only the first so many; None is all.
    """

    corpus: Corpus
    language: Language
    num_edits: int = 30
    seed: int = 0
    num_sequences: int | None = None

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ValueError: If there is nothing to do.
        """
        if self.num_edits < 1:
            raise ValueError(f"num_edits={self.num_edits}: expected at least 1")

    @property
    def indices(self) -> range:
        """Their numbers.

        Raises:
            ValueError: If the corpus has not so many.
        """
        return _first(self.corpus, self.num_sequences)

    @property
    def rows_each(self) -> int:
        """The sequence itself and each of its perturbed forms."""
        return self.num_edits + 1

    def settings(self) -> Settings:
        """Return their kind and the seed."""
        return {"sequences": "perturbed", "perturbation_seed": self.seed}

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Perturb them, and ask the language."""
        steps = self._perturbation.steps
        found = [
            form
            for index, ids in zip(indices, self._read(indices).ids, strict=True)
            for form in steps(ids, self.num_edits, seed=self.seed, index=index)
        ]
        return found, self.language.log_p(found)

    @cached_property
    def _read(self) -> Callable[[range], Sequences]:
        return self.corpus.reader()

    @cached_property
    def _perturbation(self) -> Perturbation:
        corpus = self.corpus
        return Perturbation(corpus.alphabet(), corpus.end_id, corpus.max_length)


@dataclass(frozen=True)
class Random:
    """Random sequences of a corpus' alphabet.

    Attributes:
        corpus: Names the alphabet and the maximum length.
        language: What it was drawn from.
        num_sequences: How many.
        mean_length: Of their lengths without the end, which are Poisson.
        seed: Of the sequences.
    """

    corpus: Corpus
    language: Language
    num_sequences: int
    mean_length: float = MEAN_LENGTH
    seed: int = 0
    rows_each: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ValueError: If there is nothing to do.
        """
        if self.num_sequences < 1:
            raise ValueError(f"num_sequences={self.num_sequences}: expected at least 1")

    @property
    def indices(self) -> range:
        return range(self.num_sequences)

    def settings(self) -> Settings:
        """Return their kind, seed and lengths."""
        return {
            "sequences": "random",
            "random_seed": self.seed,
            "mean_length": self.mean_length,
        }

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Draw them, and ask the language."""
        how: dict[str, Any] = {
            "max_length": self.corpus.max_length,
            "mean_length": self.mean_length,
            "seed": self.seed,
        }
        end_id = self.corpus.end_id
        found = [
            random_sequence(self._alphabet, end_id, index=index, **how)
            for index in indices
        ]
        return found, self.language.log_p(found)

    @cached_property
    def _alphabet(self) -> list[int]:
        return self.corpus.alphabet()


@dataclass(frozen=True)
class Texts:
    """Texts that the language did not draw, cut by its tokenizer.

    Attributes:
        corpus: Names the tokenizer and the maximum length; a longer text is cut there
            and compared as a beginning.
        language: What the corpus was drawn from.
        texts: What was written.
    """

    corpus: Corpus
    language: Language
    texts: Sequence[str]
    rows_each: ClassVar[int] = 1

    @property
    def indices(self) -> range:
        return range(len(self.texts))

    def settings(self) -> Settings:
        """Return their kind and a digest."""
        digest = hashlib.sha256(json.dumps([*self.texts]).encode()).hexdigest()[:16]
        return {"sequences": "texts", "texts": digest}

    def read(self, indices: range) -> tuple[list[list[int]], Tensor]:
        """Cut them, and ask the language."""
        corpus = self.corpus
        found = [
            [*self._cut(self.texts[index]), corpus.end_id][: corpus.max_length]
            for index in indices
        ]
        return found, self.language.log_p(found)

    @cached_property
    def _cut(self) -> Callable[[str], list[int]]:
        tokenizer = self.corpus.tokenizer()
        if tokenizer is None:
            raise ValueError(
                f"{self.corpus.directory} has no tokenizer, so that no text can be read"
            )
        return partial(
            tokenizer.encode, add_special_tokens=False, split_special_tokens=True
        )


def _first(corpus: Corpus, num_sequences: int | None) -> range:
    """Return the numbers of the first sequences of a corpus."""
    if num_sequences is None:
        return corpus.indices
    if not 1 <= num_sequences <= corpus.num_sequences:
        raise ValueError(
            f"num_sequences={num_sequences}: {corpus.directory} has "
            f"{corpus.num_sequences}"
        )
    return corpus.indices[:num_sequences]
