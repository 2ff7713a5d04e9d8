"""Encoders of strings to units and back: words, bytes or subwords.

A model of words gives one probability to all unknown words together, and none to the
white space between words. What is charged for them is a matter of policy
(``UnknownWords``); what is not charged is counted.

Words with reserved ids, unknown ones among them, are what checkpoints have unless
their model brings an encoder of its own (``LatentLM.load_encoder``).
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
    """A text of T words or other units, with what its string costs beside them."""

    ids: list[int]
    """Extended ids of the words, T."""
    ends: list[int]
    """Where each word ends in the string, in characters, T."""
    log_unknown: list[float]
    """Cost of each unknown word beside p(unknown), nats, T."""
    log_spacing: list[float]
    """Cost of the white space before each word and after the last, nats, T + 1."""
    unspelled: Sequence[bool]
    """Which words are unknown ones that are charged as a class, T: the string is not
    scored."""
    respaced: list[bool]
    """Which gaps of white space are neither charged nor what one would write between
    those words, T + 1: what the words cannot restore."""
    left_out: Sequence[int] = ()
    """How many unknown words stand before each word and after the last that nothing is
    charged for, T + 1; empty: none anywhere."""

    @classmethod
    def of_all(cls, ids: list[int], ends: list[int]) -> Self:
        """Return the reading of units that restore their string: no extra costs."""
        none, gaps = [0.0] * len(ids), [0.0] * (len(ids) + 1)
        return cls(ids, ends, none, gaps, [False] * len(ids), [False] * len(gaps))


class Encoder(ABC):
    """Cuts strings into units that a model knows, and writes units as strings."""

    units: str
    """Name of the units."""
    policy: UnknownWords
    """What an unknown unit costs; ``spelled`` where all of the string is scored."""
    start: int
    """The unit that stands before every text."""
    end: int
    """The unit that ends one."""

    @property
    def unknown(self) -> int | None:
        """The unit that stands for many strings: it is neither greedy nor written."""
        return None

    @abstractmethod
    def __call__(self, text: str, /) -> Reading:
        """Cut a string: units, where each ends, and what the string costs beside them.

        Raises:
            ValueError: If it has no units that the model knows.
        """

    def price(self, ids: Sequence[int], /) -> list[float]:
        """Return what units cost beside their probability, nats: nothing."""
        return [0.0] * len(ids)

    @abstractmethod
    def decode(self, ids: Sequence[int], /) -> str:
        """Write units as a string; start and end are nothing."""


@dataclass(frozen=True)
class _WordReader(Encoder):
    """Base class of readers of words."""

    tokenizer: WordTokenizer
    units = "words"
    start, end, unknown = START, END, UNKNOWN

    def decode(self, ids: Sequence[int]) -> str:
        """Write words as a string, punctuation attached the usual way."""
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class ClassReader(_WordReader):
    """Charges unknown words as one class: closed or penalized."""

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
            # One that an alias may copy counts as well: it need not have been copied.
            [self.tokenizer.is_unknown(i) for i in words.ids],
            self._respaced(text, words),
        )

    @staticmethod
    def _respaced(text: str, words: Words) -> list[bool]:
        strings = [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)]
        usual = ["", *(_usual_gap(*pair) for pair in pairwise(strings)), ""]
        gaps = words.gaps(text)
        # Without any word there is one gap, not two.
        return [gap != wont for gap, wont in zip(gaps, usual, strict=False)]

    def price(self, ids: Sequence[int]) -> list[float]:
        """Return what words of the tokenizer cost as unknown ones; 0 if known."""
        return [self.log_unknown if self.tokenizer.is_unknown(i) else 0.0 for i in ids]


@lru_cache(1 << 16)  # pairs of words: a corpus has as many as it likes
def _usual_gap(left: str, right: str) -> str:
    joined = join((left, right))
    return joined[len(left) : len(joined) - len(right)]


@dataclass(frozen=True)
class StringReader(_WordReader):
    """Charges the spelling of unknown words and all white space."""

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
        """Return what words of the tokenizer cost as unknown ones; 0 if known."""
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
    """Return the reader of a policy.

    Args:
        tokenizer: The model's words.
        policy: None is ``spelled`` where there is an orthography, else ``penalized``
            where the number of types is known, else ``closed``.
        num_unknown_types: Distinct unknown words of the training text; 0: not known.
        orthography: Spelling and spacing, if the checkpoint has them.

    Raises:
        ValueError: If there is no such policy, or what it needs is missing.
    """
    if policy is None:
        known = UnknownWords.PENALIZED if num_unknown_types else UnknownWords.CLOSED
        policy = UnknownWords.SPELLED if orthography else known
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
    """UTF-8: nothing is unknown, and nothing costs anything beside the bytes.

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
        """Cut a string; each byte of a character ends where that does."""
        sizes = [len(character.encode()) for character in text]
        ends = [n for n, size in enumerate(sizes, start=1) for _ in range(size)]
        return Reading.of_all(list(text.encode()), ends)

    def decode(self, ids: Sequence[int]) -> str:
        """Write bytes as a string, replacing what is no UTF-8."""
        return bytes(i for i in ids if i < self.start).decode(errors="replace")


@dataclass(frozen=True)
class SubwordEncoder(Encoder):
    """The tokens of a Hugging Face tokenizer that knows every string.

    A string has one probability here, that of its tokens as the tokenizer cuts it;
    other cuts of the same string are left out, so the model is sub-normalised. Where
    those tokens write another string (in lower case, say), several strings share one
    probability: then no gap of the text counts as charged, and it has no rate a byte.
    Tokens that write a space before every text write the text after it; one that begins
    with a space has the tokens of another text, then.
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
            start: The token that stands before every text.
            end: The token that ends one.

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
        """What its tokens write before every text: a space, or nothing."""
        ids = self.tokenizer.encode("a", add_special_tokens=False).ids
        return " " if self.tokenizer.decode(ids) == " a" else ""

    @property
    def unknown(self) -> int | None:
        """Its unknown token, if it has one."""
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
        found = Reading.of_all(encoding.ids, list(ends))
        lost = self.decode(encoding.ids) != text
        return replace(found, respaced=[lost] * len(found.respaced))

    def decode(self, ids: Sequence[int]) -> str:
        """Write tokens as a string."""
        kept = [i for i in ids if i not in (self.start, self.end)]
        return str(self.tokenizer.decode(kept)).removeprefix(self._first)
