"""Digests of rows, which reveal edited ones and the field that changed.

A row carries six hexadecimal digits for each of its fields, which follow from the
field's name and value and from the settings of its run. They tell damage and edits, not
who made a file: whoever changes a row can compute them again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lm_latent_eval.ledger.settings import Settings, plain

DIGEST = "digest"
"""The name of the field."""
_DIGITS = 6
_NAMED = 3
"""Fields at most that a message names."""


class NoDigestError(ValueError):
    """A row without a digest."""


class RowDigests:
    """Digests of the rows of one run."""

    def __init__(self, settings: Settings) -> None:
        """Take what the rows depend on."""
        self._run = hashlib.sha256(_written(settings).encode())

    def added(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its digest."""
        return {**row, DIGEST: "".join(self._of(row))}

    def checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row without its digest.

        Raises:
            NoDigestError: If it has none.
            ValueError: If it is of another row or run.
        """
        row = dict(row)
        said = row.pop(DIGEST, None)
        if said is None:
            raise NoDigestError("it has no digest, as rows of other versions have none")
        found = self._of(row)
        if said == "".join(found):
            return row
        if not isinstance(said, str) or len(said) != _DIGITS * len(found):
            raise ValueError("it has more or fewer fields than its digest")
        pairs = zip(sorted(row), found, range(0, len(said), _DIGITS), strict=True)
        changed = [name for name, digits, n in pairs if said[n : n + _DIGITS] != digits]
        if len(changed) == len(found):
            raise ValueError("its digest is of another row, or of other settings")
        names = ", ".join(f"{name!a:.40}" for name in changed[:_NAMED])
        raise ValueError(f"its digest is of other values of {names}")

    def _of(self, row: dict[str, Any]) -> list[str]:
        found = []
        for name in sorted(row):
            digest = self._run.copy()
            digest.update(_written([name, row[name]]).encode())
            found.append(digest.hexdigest()[:_DIGITS])
        return found


def _written(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)
