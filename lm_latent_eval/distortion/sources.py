"""Sources of sequences to measure, with their true log-probabilities.

A corpus as it is, or its short sequences; each after 0, 1, .. S perturbations; random
sequences of its alphabet; and texts that someone wrote.

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

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import islice
from typing import Any, ClassVar

from torch import Tensor

from lm_latent_eval.distortion.languages.corpus import Corpus, Sequences
from lm_latent_eval.distortion.languages.language import (
    Language,
    cumulative,
    endless_uniforms,
)
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.options import whole
from lm_latent_eval.uniforms import stream_key, uniforms

Edit = Callable[[list[int], float, float, float], None]
"""Changes tokens in place, by three numbers in (0, 1)."""


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
        """Check the alphabet and the length.

        Raises:
            ValueError: If the alphabet has fewer than two tokens, the end among them,
                or is in another order, or no token fits before an end.
        """
        if self.max_length < 2:
            raise ValueError(
                f"max_length={self.max_length}: perturbations need at least 2, a token "
                "and the end"
            )
        distinct = sorted(set(self.alphabet) - {self.end_id})
        if len(distinct) < 2 or distinct != list(self.alphabet):
            raise ValueError(
                "perturbations need at least two distinct tokens in ascending order, "
                f"without the end, {self.end_id}; got {list(self.alphabet)[:10]}"
            )

    def steps(
        self, ids: Sequence[int], num_edits: int, *, seed: int, index: int
    ) -> list[list[int]]:
        """Return a sequence after 0, 1, .. ``num_edits`` perturbations.

        A function of its arguments alone; more edits change nothing about the first.

        Args:
            ids: The sequence, with its end or cut.
            num_edits: How often it is perturbed.
            seed: The user's seed.
            index: Its number in the corpus.
        """
        ended = ids[-1] == self.end_id
        tail = [self.end_id] if ended else []
        words = list(ids[:-1]) if ended else list(ids)
        # A beginning of no tokens is no event, so that a cut sequence keeps one.
        fewest, most = (0, self.max_length - 1) if ended else (1, self.max_length)
        numbers = uniforms(stream_key(seed, f"edits/{index}"), (0,), num_edits)
        found = [[*words, *tail]]
        for kind, place, other, token in numbers.tolist():
            possible = self._possible(words, fewest, most)
            possible[int(kind * len(possible))](words, place, other, token)
            found.append([*words, *tail])
        return found

    def _possible(self, words: list[int], fewest: int, most: int) -> list[Edit]:
        """Return the kinds of perturbation that change these words."""
        edits: list[Edit] = []
        if len(set(words)) > 1:
            edits.append(_swap)
        if len(words) > fewest:
            edits.append(_delete)
        if len(words) < most:
            edits.append(self._insert)
        if words:
            edits.append(self._substitute)
        return edits

    def _insert(self, words: list[int], place: float, _: float, token: float) -> None:
        chosen = self.alphabet[int(token * len(self.alphabet))]
        words.insert(int(place * (len(words) + 1)), chosen)

    def _substitute(
        self, words: list[int], place: float, _: float, token: float
    ) -> None:
        i = int(place * len(words))
        words[i] = self._other(words[i], token)

    def _other(self, word: int, token: float) -> int:
        """Return a token of the alphabet that is not this one."""
        own = bisect_left(self.alphabet, word)
        if own == len(self.alphabet) or self.alphabet[own] != word:
            return self.alphabet[int(token * len(self.alphabet))]
        number = int(token * (len(self.alphabet) - 1))
        return self.alphabet[number + (number >= own)]


def _swap(words: list[int], place: float, other: float, _: float) -> None:
    i = int(place * len(words))
    different = [j for j, word in enumerate(words) if word != words[i]]
    j = different[int(other * len(different))]
    words[i], words[j] = words[j], words[i]


def _delete(words: list[int], place: float, _: float, __: float) -> None:
    del words[int(place * len(words))]


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

    Args:
        alphabet: Sigma; neither begin nor end.
        end_id: What it ends with.
        max_length: The most tokens, the end included.
        seed: The user's seed.
        index: The number of the sequence.
        mean_length: lambda, of the tokens without the end.

    Raises:
        ValueError: If the alphabet is empty, or a number is out of range.
    """
    if not alphabet or not 0 < mean_length < math.inf or max_length < 1:
        raise ValueError(
            "random sequences need an alphabet, a mean length above 0 and room for "
            f"the end; got {len(alphabet)} tokens, {mean_length} and {max_length}"
        )
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
        whole("num_edits", self.num_edits, 1)

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
        whole("num_sequences", self.num_sequences, 1)

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


SequenceSource = Unchanged | Short | Perturbed | Random | Texts
"""Numbered sequences of a corpus or made from it, each in ``rows_each`` forms.

``settings`` are what they depend on besides the corpus; ``read`` returns all forms of
some sequences, one after the other, and log p_L.
"""


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
