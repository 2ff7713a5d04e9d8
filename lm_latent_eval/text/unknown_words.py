"""Policies of unknown words: spelled, penalized, closed."""

from __future__ import annotations

import difflib
from enum import StrEnum


class UnknownWords(StrEnum):
    """Policy of unknown words: their cost beside p(unknown)."""

    SPELLED = "spelled"
    """Its spelling, and white space is charged as well: a distribution over strings."""
    PENALIZED = "penalized"
    """1 / number of unknown types: the unknown-penalised perplexity."""
    CLOSED = "closed"
    """Nothing: the vocabulary is closed, as in the papers."""

    @classmethod
    def parse(cls, name: str) -> UnknownWords:
        """Read a policy's name.

        Raises:
            ValueError: If there is no such policy.
        """
        try:
            return cls(name)
        except ValueError:
            near = difflib.get_close_matches(name, list(cls))
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"unk={name!r}: expected one of {', '.join(cls)}{hint}"
            ) from None
