"""Sources of sequences to measure, with their true log-probabilities.

A corpus as it is; each of its sequences after 0, 1, .. S perturbations; random
sequences of its alphabet.

Perturbations, one edit at a time:

    x_0 = x      x_s = perturb(x_{s-1})

One perturbation swaps two tokens, deletes, inserts or substitutes one, each kind with
the same probability among those that can be done; its places and tokens are uniform. It
always gives another sequence: swapped tokens differ, and so does a substitute. The end
of a sequence stays where it is.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and table 3.
Departures: none known; whether their substitutes can be the same token is not said.

Random sequences:

    l ~ Poisson(lambda), x_1 .. x_l uniform over Sigma, then the end

Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.4; lambda = 10 is theirs.
Departures: lengths that a maximum does not leave room for are not drawn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    cumulative,
    endless_uniforms,
)
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.options import positive, whole
from lm_latent_eval.uniforms import stream_key, uniforms


@dataclass(frozen=True)
class Perturbation:
    """Random edits of the sequences of a language.

    Attributes:
        alphabet: Sigma, the tokens that are inserted, in ascending order; neither begin
            nor end.
        end_id: What sequences end with.
        max_length: The most tokens of a sequence, its end included.

    Example:
        >>> perturbation = Perturbation([2, 3, 4], end_id=1, max_length=5)
        >>> perturbation.steps([2, 3, 4, 1], 4, seed=0, index=9)
        [[2, 3, 4, 1], [3, 2, 3, 4, 1], [4, 2, 3, 4, 1], [4, 3, 4, 1], [4, 4, 1]]
    """

    alphabet: Sequence[int]
    end_id: int
    max_length: int

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise ValueError(
                f"max_length={self.max_length}: perturbations need at least 2, a token "
                "and the end"
            )
        if len(self.alphabet) < 2:
            raise ValueError(
                "perturbations need a language of at least two tokens; it has "
                f"{len(self.alphabet)}"
            )

    def steps(
        self, ids: Sequence[int], num_edits: int, *, seed: int, index: int
    ) -> list[list[int]]:
        """Return a sequence after 0, 1, .. ``num_edits`` perturbations.

        A function of its arguments alone; more edits change nothing about the first.
        The sequence has its end or is cut, and has an index in its corpus.
        """
        ended = ids[-1] == self.end_id
        tail = [self.end_id] if ended else []
        words = list(ids[:-1]) if ended else list(ids)
        # A beginning of no tokens is no event, so that a cut sequence keeps one.
        fewest, most = (0, self.max_length - 1) if ended else (1, self.max_length)
        numbers = uniforms(stream_key(seed, f"edits/{index}"), (0,), num_edits)
        found = [[*words, *tail]]
        for kind, place, other, token in numbers.tolist():
            possible = {
                "swap": len({*words}) > 1,
                "delete": len(words) > fewest,
                "insert": len(words) < most,
                "substitute": bool(words),
            }
            kinds = [name for name, can_be in possible.items() if can_be]
            self._edit(words, kinds[int(kind * len(kinds))], place, other, token)
            found.append([*words, *tail])
        return found

    def _edit(
        self, words: list[int], kind: str, place: float, other: float, token: float
    ) -> None:
        """Change words in place, by three numbers in (0, 1)."""
        i = int(place * len(words))
        match kind:
            case "swap":
                different = [j for j, word in enumerate(words) if word != words[i]]
                j = different[int(other * len(different))]
                words[i], words[j] = words[j], words[i]
            case "delete":
                del words[i]
            case "insert":
                chosen = self.alphabet[int(token * len(self.alphabet))]
                words.insert(int(place * (len(words) + 1)), chosen)
            case "substitute":
                words[i] = self._other(words[i], token)

    def _other(self, word: int, token: float) -> int:
        """Return a token of the alphabet that is not this one."""
        own = bisect_left(self.alphabet, word)
        if own == len(self.alphabet) or self.alphabet[own] != word:
            return self.alphabet[int(token * len(self.alphabet))]
        number = int(token * (len(self.alphabet) - 1))
        return self.alphabet[number + (number >= own)]


MEAN_LENGTH = 10.0


def random_sequence(
    alphabet: Sequence[int],
    end_id: int,
    *,
    max_length: int,
    seed: int,
    index: int,
    mean_length: float = MEAN_LENGTH,
) -> list[int]:
    """Draw a sequence; a function of its arguments alone.

    The maximum length counts the end, the mean (lambda) does not; the alphabet (Sigma)
    has neither begin nor end.
    """
    numbers = endless_uniforms(stream_key(seed, f"random/{index}"))
    length = bisect_right(_poisson(mean_length, max_length), next(numbers))
    words = [alphabet[int(u * len(alphabet))] for u in islice(numbers, length)]
    return [*words, end_id]


@cache
def _poisson(mean: float, count: int) -> list[float]:
    """Return the distribution function over 0 .. count - 1, truncated there."""
    logs = [k * math.log(mean) - math.lgamma(k + 1) for k in range(count)]
    largest = max(logs)
    return cumulative([math.exp(log - largest) for log in logs])


@dataclass(frozen=True)
class Source(ABC):
    """Base class of numbered sequences: those of a corpus, or made from it.

    Attributes:
        corpus: The sequences, or what names tokens and lengths.
        num_sequences: Only the first so many; None is as many as the corpus has.
    """

    corpus: Corpus
    num_sequences: int | None = field(default=None, kw_only=True)

    @property
    def indices(self) -> range:
        """Their numbers.

        Raises:
            ValueError: If the corpus has not so many.
        """
        corpus, number = self.corpus, self.num_sequences
        if number is None:
            return corpus.indices
        if not 1 <= number <= corpus.num_sequences:
            raise ValueError(
                f"num_sequences={number}: {corpus.directory} has {corpus.num_sequences}"
            )
        return corpus.indices[:number]

    @property
    def rows_each(self) -> int:
        """In how many forms there is a sequence."""
        return 1

    @abstractmethod
    def settings(self) -> Settings:
        """Return what they depend on besides the corpus."""

    @abstractmethod
    def read(self, indices: range) -> Sample:
        """Return all forms of some sequences, one after the other, with log p_L."""


@dataclass(frozen=True)
class Unchanged(Source):
    """The sequences of a corpus, with what it says of them."""

    def settings(self) -> Settings:
        return {"sequences": "corpus"}

    def read(self, indices: range) -> Sample:
        return self.corpus.read(indices)


@dataclass(frozen=True)
class Perturbed(Source):
    """The sequences of a corpus after 0, 1, .. ``num_edits`` perturbations.

    Attributes:
        language: What they were drawn from, for the log-probabilities of what is new.
        num_edits: The most perturbations of a sequence.
        seed: Of the perturbations.
    """

    language: Language
    num_edits: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        whole("num_edits", self.num_edits, 1)

    @property
    def rows_each(self) -> int:
        """The sequence itself and each of its perturbed forms."""
        return self.num_edits + 1

    def settings(self) -> Settings:
        return {"sequences": "perturbed", "perturbation_seed": self.seed}

    def read(self, indices: range) -> Sample:
        steps = self._perturbation.steps
        sequences = self.corpus.read(indices).sequences
        found = [
            form
            for index, ids in zip(indices, sequences, strict=True)
            for form in steps(ids, self.num_edits, seed=self.seed, index=index)
        ]
        return Sample(found, self.language.log_p(found))

    @cached_property
    def _perturbation(self) -> Perturbation:
        corpus = self.corpus
        return Perturbation(corpus.alphabet(), corpus.end_id, corpus.max_length)


@dataclass(frozen=True)
class Random(Source):
    """Random sequences of a corpus' alphabet, of its maximum length.

    Attributes:
        language: What the corpus was drawn from.
        mean_length: Of their lengths without the end, which are Poisson.
        seed: Of the sequences.
    """

    language: Language
    mean_length: float = MEAN_LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        positive("mean_length", self.mean_length)

    @property
    def indices(self) -> range:
        """Their numbers.

        Raises:
            ValueError: If there is nothing to do.
        """
        number = self.num_sequences
        return range(
            self.corpus.num_sequences
            if number is None
            else whole("num_sequences", number, 1)
        )

    def settings(self) -> Settings:
        return {
            "sequences": "random",
            "random_seed": self.seed,
            "mean_length": self.mean_length,
        }

    def read(self, indices: range) -> Sample:
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
        return Sample(found, self.language.log_p(found))

    @cached_property
    def _alphabet(self) -> list[int]:
        return self.corpus.alphabet()
