"""Encoders of strings to units and back: words, bytes or subwords.

A model of words gives one probability to all unknown words together, and none to the
white space between words. The policy (``UnknownWords``) sets their costs; parts without
a cost are counted.

Checkpoints have words with reserved ids, unless their model has an encoder of its own
(``LatentLM.load_encoder``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from lm_latent_eval.files import one_line
from lm_latent_eval.options import one_of
from lm_latent_eval.text.orthography import Orthography
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import (
    END,
    LITERAL_UNKNOWN,
    START,
    UNKNOWN,
    Words,
    WordTokenizer,
    join,
)


@dataclass(frozen=True)
class Reading:
    """A text of T words or other units, with costs of its string besides them."""

    ids: list[int]
    """Extended ids of the words, T."""
    ends: list[int]
    """End of each word in the string, in characters, T."""
    log_unknown: list[float]
    """Cost of each unknown word besides p(unknown), nats, T."""
    log_spacing: list[float]
    """Cost of the white space before each word and after the last, nats, T + 1."""
    unspelled: Sequence[bool]
    """Mask of unknown words that are charged as a class, T: the string is not
    scored."""
    respaced: list[bool]
    """Mask of gaps that are neither charged nor the usual ones between those words, T +
    1: the words cannot restore them."""
    left_out: Sequence[int] = ()
    """Number of unknown words without any cost before each word and after the last, T +
    1; empty: none."""

    @classmethod
    def of_all(cls, ids: list[int], ends: list[int]) -> Self:
        """Reading of units that restore their string: no extra costs."""
        none, gaps = [0.0] * len(ids), [0.0] * (len(ids) + 1)
        return cls(ids, ends, none, gaps, [False] * len(ids), [False] * len(gaps))


class Encoder(ABC):
    """Cuts strings into units of a model, and writes units as strings."""

    units: str
    """Name of the units."""
    policy: UnknownWords
    """Cost of unknown units; ``spelled`` if all of the string is scored."""
    start: int
    """Unit before every text."""
    end: int
    """Unit that ends a text."""

    @property
    def unknown(self) -> int | None:
        """Unit that stands for many strings: it is neither greedy nor written."""
        return None

    @abstractmethod
    def __call__(self, text: str, /) -> Reading:
        """Cut a string into units, with their ends and the costs of the string.

        Raises:
            ValueError: If it has no units of the model.
        """

    def price(self, ids: Sequence[int], /) -> list[float]:
        """Costs of units besides their probability, nats; default 0."""
        return [0.0] * len(ids)

    @abstractmethod
    def decode(self, ids: Sequence[int], /) -> str:
        """Write units as a string; start and end are dropped."""


@dataclass(frozen=True)
class _WordReader(Encoder):
    tokenizer: WordTokenizer
    units = "words"
    start, end, unknown = START, END, UNKNOWN

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class ClassReader(_WordReader):
    """Encoder that charges unknown words as one class: closed or penalized."""

    policy: UnknownWords
    log_unknown: float
    """Cost of any unknown word, nats."""

    def __call__(self, text: str) -> Reading:
        words = self.tokenizer(text)
        return Reading(
            words.ids,
            words.ends,
            self.price(words.ids),
            [0.0] * (len(words.ids) + 1),
            # Including words that an alias may copy: they need not be copied.
            [self.tokenizer.is_unknown(i) for i in words.ids],
            self._respaced(text, words),
        )

    @staticmethod
    def _respaced(text: str, words: Words) -> list[bool]:
        strings = [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)]
        usual = ["", *(_usual_gap(*pair) for pair in pairwise(strings)), ""]
        gaps = words.gaps(text)
        # Without any word there is one gap, not two.
        return [gap != other for gap, other in zip(gaps, usual, strict=False)]

    def price(self, ids: Sequence[int]) -> list[float]:
        """Costs of words as unknown ones; 0 if known."""
        return [self.log_unknown if self.tokenizer.is_unknown(i) else 0.0 for i in ids]


@lru_cache(1 << 16)  # pairs of words: a corpus has as many as it likes
def _usual_gap(left: str, right: str) -> str:
    joined = join((left, right))
    return joined[len(left) : len(joined) - len(right)]


@dataclass(frozen=True)
class StringReader(_WordReader):
    """Encoder that charges the spelling of unknown words and all white space."""

    orthography: Orthography
    policy: UnknownWords = UnknownWords.SPELLED

    def __call__(self, text: str) -> Reading:
        words = self.tokenizer(text)
        strings = [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)]
        return Reading(
            words.ids,
            words.ends,
            self._costs(words.ids, strings),
            self.orthography.spacing(text, words),
            [string == LITERAL_UNKNOWN for string in strings],
            [False] * (len(strings) + 1),
        )

    def price(self, ids: Sequence[int]) -> list[float]:
        return self._costs(ids, [self.tokenizer.word(i) for i in ids])

    def _costs(self, ids: Sequence[int], strings: Sequence[str]) -> list[float]:
        # A literal unknown word stands for one whose spelling is lost.
        costly = [
            self.tokenizer.is_unknown(i) and string != LITERAL_UNKNOWN
            for i, string in zip(ids, strings, strict=True)
        ]
        spelled = self.orthography.spelling.log_prob(list(compress(strings, costly)))
        log_prob = iter(spelled)
        return [next(log_prob) if cost else 0.0 for cost in costly]


def reader(
    tokenizer: WordTokenizer,
    policy: UnknownWords | str | None = None,
    *,
    num_unknown_types: int = 0,
    orthography: Orthography | None = None,
) -> ClassReader | StringReader:
    """Build the encoder of a policy.

    Args:
        tokenizer: The model's words.
        policy: None is ``spelled`` with an orthography, else ``penalized`` if the
            number of types is known, else ``closed``.
        num_unknown_types: Distinct unknown words of the training text; 0: not known.
        orthography: Spelling and spacing, if the checkpoint has them.

    Raises:
        ValueError: If the policy is unknown, or lacks what it needs.
    """
    if policy is None:
        classes = UnknownWords.PENALIZED if num_unknown_types else UnknownWords.CLOSED
        policy = UnknownWords.SPELLED if orthography else classes
    policy = UnknownWords(one_of("unk", policy, list(UnknownWords)))
    if policy is UnknownWords.CLOSED:
        return ClassReader(tokenizer, policy, 0.0)
    if policy is UnknownWords.PENALIZED:
        if num_unknown_types < 1:
            raise ValueError(
                "unk=penalized needs the number of unknown word types of the training "
                "text (num_unknown_types in config.json), which this checkpoint lacks: "
                "use unk=closed"
            )
        return ClassReader(tokenizer, policy, -math.log(num_unknown_types))
    if orthography is None:
        raise ValueError(
            "unk=spelled needs a checkpoint with a character model, and this one has "
            "none: add it with `lm-latent-eval train spelling`, or use unk=penalized "
            "or unk=closed"
        )
    return StringReader(tokenizer, orthography)


@dataclass(frozen=True)
class ByteEncoder(Encoder):
    """UTF-8 bytes: none is unknown, and there are no costs besides.

    Example:
        >>> encoder = ByteEncoder()
        >>> encoder("aé").ids, encoder("aé").ends
        ([97, 195, 169], [1, 2, 2])
        >>> encoder.decode([97, 195, 169, encoder.end])
        'aé'
    """

    units = "bytes"
    policy = UnknownWords.SPELLED
    start, end = 256, 257

    def __call__(self, text: str) -> Reading:
        sizes = [len(character.encode()) for character in text]
        ends = [n for n, size in enumerate(sizes, start=1) for _ in range(size)]
        return Reading.of_all(list(text.encode()), ends)

    def decode(self, ids: Sequence[int]) -> str:
        """Write bytes as a string, replacing invalid UTF-8."""
        return bytes(i for i in ids if i < self.start).decode(errors="replace")


@dataclass(frozen=True)
class SubwordEncoder(Encoder):
    """Tokens of a Hugging Face tokenizer that knows every string.

    A string has the probability of its canonical tokens alone; its other tokenizations
    are left out, so the model is sub-normalised. If the canonical tokens write another
    string (in lower case, say), several strings share one probability: then all gaps of
    the text count as not charged, and it has no rate a byte. Tokens that write a space
    before every text write the text after it; a text that begins with a space then has
    the tokens of another text.
    """

    tokenizer: Tokenizer
    start: int
    end: int
    units = "subwords"
    policy = UnknownWords.SPELLED

    @classmethod
    def load(cls, path: Path, *, start: str, end: str) -> SubwordEncoder:
        """Read a ``tokenizer.json``.

        Args:
            path: The file.
            start: Token before every text.
            end: Token that ends a text.

        Raises:
            ValueError: If it is missing, damaged or lacks one of them.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as err:  # the library raises bare exceptions
            raise ValueError(
                f"{path} is not a readable tokenizer ({one_line(err)})"
            ) from err

        def numbered(token: str) -> int:
            index = tokenizer.token_to_id(token)
            if index is None:
                raise ValueError(f"{path} has no token {token!r}")
            return index

        return cls(tokenizer, numbered(start), numbered(end))

    @cached_property
    def _first(self) -> str:
        """String that its tokens write before every text: a space, or none."""
        ids = self.tokenizer.encode("a", add_special_tokens=False).ids
        return " " if self.tokenizer.decode(ids) == " a" else ""

    @property
    def unknown(self) -> int | None:
        name = getattr(self.tokenizer.model, "unk_token", None)
        return None if name is None else self.tokenizer.token_to_id(name)

    def __call__(self, text: str) -> Reading:
        """Cut a string.

        Raises:
            ValueError: If a piece of it is unknown.
        """
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if self.unknown is not None and self.unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unknown)]
            raise ValueError(
                f"the tokenizer has no tokens for {text[start:end]!r}: the text has no "
                "probability as a string"
            )
        # Tokens that share a character end in order.
        ends = accumulate((end for _, end in encoding.offsets), max)
        reading = Reading.of_all(encoding.ids, list(ends))
        lost = self.decode(encoding.ids) != text
        return replace(reading, respaced=[lost] * len(reading.respaced))

    def decode(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in (self.start, self.end)]
        return str(self.tokenizer.decode(kept)).removeprefix(self._first)
