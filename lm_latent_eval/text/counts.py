"""Lengths of a text in every unit of a rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lm_latent_eval.text.sentences import sentence_starts
from lm_latent_eval.text.words import encodable


@dataclass(frozen=True)
class Counts:
    """The lengths of texts, added up.

    Example:
        >>> Counts.of(["Dr. Ångström left. It rained!"])
        Counts(sentences=2, words=5, characters=29, bytes=31)
    """

    sentences: int
    words: int
    """Between white space."""
    characters: int
    """Code points, white space included."""
    bytes: int
    """Of UTF-8."""

    @classmethod
    def of(cls, texts: Sequence[str], *, language: str = "en") -> Counts:
        """Count the units of texts.

        Args:
            texts: Strings.
            language: Their language's code, for the ends of sentences.

        Raises:
            TypeError: If ``texts`` is one string.
        """
        if isinstance(texts, str):
            raise TypeError("expected a list of strings, not one string")
        return cls(
            sentences=sum(len(sentence_starts(text, language)) for text in texts),
            words=sum(len(text.split()) for text in texts),
            characters=sum(map(len, texts)),
            bytes=sum(len(encodable(text).encode()) for text in texts),
        )
