"""Error raised for an unreadable original checkpoint."""

from __future__ import annotations


class OriginalError(ValueError):
    """A file that is none of the original program's, or is damaged."""
