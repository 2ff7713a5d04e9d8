"""Regions of a text, such as its words, and their scores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.scoring.texts import Query

MARK = "|"
"""The border of two regions, where texts are read with marks."""


@dataclass(frozen=True)
class Regions:
    """A text that is divided into regions."""

    query: Query
    ends: tuple[int, ...]
    """End of each region in the text, in characters, ascending."""

    @classmethod
    def of_words(cls, query: Query) -> Self:
        """Divide a text at its white space."""
        return cls(query, tuple(word.end() for word in re.finditer(r"\S+", query.text)))

    @classmethod
    def of_marks(cls, index: int, name: str, marked: str) -> Self:
        """Divide a text where ``|`` stands in it; the marks are no part of the text.

        White space around a mark is one space.

        Raises:
            ValueError: If a region has no word.

        Example:
            >>> regions = Regions.of_marks(0, "text/0", "The horse | raced past")
            >>> regions.query.text, regions.strings
            ('The horse raced past', ['The horse', 'raced past'])
        """
        parts = re.split(rf"(\s*{re.escape(MARK)}\s*)", marked.strip())
        if not all(part.strip() for part in parts[::2]):
            raise ValueError(
                f"{name} ({marked!r:.80}): a region between marks is empty"
            )
        pieces = [
            " " if n % 2 and part != MARK else part for n, part in enumerate(parts)
        ]
        pieces = ["" if piece == MARK else piece for piece in pieces]
        ends = [*accumulate(map(len, pieces))]
        return cls(Query(index, name, "".join(pieces)), tuple(ends[::2]))

    @property
    def strings(self) -> list[str]:
        """The text of each region, without the white space around it."""
        borders = pairwise((0, *self.ends))
        return [self.query.text[a:b].strip() for a, b in borders]


@dataclass(frozen=True)
class RegionScore:
    """Estimate of log p of one region, or of an end, after all that stands before."""

    number: int | None
    """The region, counted from 0; None: the end of a sentence or of the text."""
    estimate: Estimate
    """Estimate whose ``log_evidence`` is log p(region | text before it) in nats."""
    unknown: int = 0
    """Unknown words in the region."""
