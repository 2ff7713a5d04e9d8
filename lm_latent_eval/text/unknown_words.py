"""Policies of unknown words: spelled, penalized, closed."""

from __future__ import annotations

from enum import StrEnum


class UnknownWords(StrEnum):
    """Policy of unknown words: their cost besides p(unknown)."""

    SPELLED = "spelled"
    """Cost of the spelling, and of white space: a distribution over strings."""
    PENALIZED = "penalized"
    """Cost 1 / number of unknown types: the unknown-penalised perplexity."""
    CLOSED = "closed"
    """No cost: the vocabulary is closed, as in the papers."""
