"""Tokenization into words, with the cost of spelling and spacing.

A model of words gives one probability to all unknown words together, and none to the
white space between words. What is charged for them is a matter of policy
(``UnknownWords``); what is not charged is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, pairwise
from typing import Self

from lm_latent_eval.text.orthography import Orthography
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import (
    END,
    LITERAL_UNKNOWN,
    START,
    UNKNOWN,
    Words,
    WordTokenizer,
    encodable,
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
    """What each word costs on top of p(unknown) if it is unknown, nats, T."""
    log_spacing: list[float]
    """What the white space before each word and after the last costs, nats, T + 1."""
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
        """Return what units say that restore their string: nothing costs extra."""
        none, gaps = [0.0] * len(ids), [0.0] * (len(ids) + 1)
        return cls(ids, ends, none, gaps, [False] * len(ids), [False] * len(gaps))


@dataclass(frozen=True)
class _WordReader:
    """What readers of words share."""

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
    """What any unknown word costs, nats."""

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
        text, words = encodable(text), self.tokenizer(text)
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
    policy = UnknownWords.parse(policy)
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
