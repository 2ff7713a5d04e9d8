"""What no file of an original program may be."""

from __future__ import annotations


class OriginalError(ValueError):
    """A file that is none of the original program's, or is damaged."""
