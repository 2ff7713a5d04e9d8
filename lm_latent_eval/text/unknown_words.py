"""Policies of unknown words: spelled, penalized, closed."""

from __future__ import annotations

from enum import StrEnum


class UnknownWords(StrEnum):
    """Policy of unknown words: their cost beside p(unknown)."""

    SPELLED = "spelled"
    """Its spelling, and white space is charged as well: a distribution over strings."""
    PENALIZED = "penalized"
    """1 / number of unknown types: the unknown-penalised perplexity."""
    CLOSED = "closed"
    """Nothing: the vocabulary is closed, as in the papers."""
