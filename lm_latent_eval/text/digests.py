"""Digests that identify texts."""

from __future__ import annotations

import hashlib


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
