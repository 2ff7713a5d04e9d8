"""Words of a text within a topic model's vocabulary; unknown ones are logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lm_latent_eval.text.encoder import Encoder, Reading
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import END, START, WordTokenizer

logger = logging.getLogger(__name__)

NAMED = 10
"""Largest number of unknown words that a warning lists."""


def lowered(text: str) -> str:
    """Write a text in lower case, each character in its place.

    A Greek sigma takes the form of its position in the word. Python's lower case of the
    dotted capital I is two characters, so that letter is replaced first.

    Example:
        >>> lowered("ΛΟΓΟΣ, İZMİR")
        'λογος, izmir'
    """
    return text.replace("İ", "i").lower()


@dataclass(frozen=True)
class KnownWords(Encoder):
    """Encoder for topic models: only known words are scored and counted."""

    tokenizer: WordTokenizer
    lowercase: bool = False
    """Whether words are looked up in lower case."""
    named: set[str] = field(default_factory=set, compare=False)
    """Unknown words already logged."""
    units = "known words"
    policy = UnknownWords.CLOSED
    start, end = START, END

    def __call__(self, text: str) -> Reading:
        words = self.tokenizer(lowered(text) if self.lowercase else text)
        ids, ends, left_out, missing = [], [], [0], []
        for i, start, end in zip(words.ids, words.starts, words.ends, strict=True):
            if self.tokenizer.is_unknown(i):
                left_out[-1] += 1
                missing.append(text[start:end])
            else:
                ids.append(i)
                ends.append(end)
                left_out.append(0)
        self._name(missing)
        respaced = [True] * len(left_out)
        reading = Reading.of_all(ids, ends)
        return replace(reading, respaced=respaced, left_out=left_out)

    def _name(self, missing: Sequence[str]) -> None:
        new = [word for word in dict.fromkeys(missing) if word not in self.named]
        self.named.update(new)
        if new:
            more = f" and {len(new) - NAMED} more" * (len(new) > NAMED)
            logger.warning(
                "the topics have no word %s%s: left out, and not counted",
                ", ".join(map(repr, new[:NAMED])),
                more,
            )

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)
