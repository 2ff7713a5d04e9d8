"""Settings that results depend on, checked on resuming, and digests of rows.

A row carries six hexadecimal digits for each of its fields, which follow from the
field's name and value and from the settings of its run. They tell damage and edits, and
which field changed, not who made a file: whoever changes a row can compute them again.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from pathlib import Path
from typing import Any

from lm_latent_eval.values import parse

Settings = dict[str, Any]
"""As JSON takes it."""
VERSION = "lm_latent_eval"
"""Under what name settings say which version found the results."""


class FormatError(ValueError):
    """Results in the format of another version."""


def differences(theirs: Settings, ours: Settings) -> str:
    """Say which settings differ, and how; "" if none does.

    Example:
        >>> differences({"seed": 0, "unk": None}, {"seed": 1, "unk": None})
        'seed is 0 there and 1 here'
    """
    found = []
    for key in sorted(theirs | ours):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, dict) and isinstance(here, dict):
            inner = differences(there, here)
            found += [f"{key}.{each}" for each in inner.split("; ") if each]
        elif there != here:
            found.append(
                f"{_shown(key)} is {_shown(there)} there and {_shown(here)} here"
            )
    return "; ".join(found)


def _shown(value: Any) -> str:
    """Format a value for a message of one line."""
    plain = str(value)
    return plain if len(plain) <= 80 and plain.isprintable() else f"{value!a:.80}"


def plain(value: Any) -> Any:
    """Write infinities as strings: JSON has no number for them.

    Example:
        >>> plain({"stderr": float("inf"), "weights": (0.5, 1.5)})
        {'stderr': 'inf', 'weights': [0.5, 1.5]}
    """
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | array):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def check_format(where: Path, settings: Settings, expected: int) -> None:
    """Refuse the results of another version.

    Raises:
        FormatError: If they are.
    """
    if (there := settings.get("format", 1)) != expected:
        raise FormatError(
            f"{where} is in format {there!a:.20}, of {_wrote(settings.get(VERSION))}, "
            f"and this one reads format {expected}: finish it with that version, or "
            "run the command again, with another path for its output"
        )


def _wrote(version: Any) -> str:
    known = isinstance(version, str) and re.fullmatch(r"[\w.+]{1,20}", version)
    return f"lm-latent-eval {version}" if known else "another lm-latent-eval"


def parsed(content: bytes, having: str | None) -> Settings:
    """Parse settings.

    Raises:
        ValueError: If they are none, or lack a name that they have to have.
    """
    settings = parse(content.decode(), infinities=True)
    if not isinstance(settings, dict) or (having and having not in settings):
        raise ValueError(f"it names no {having or 'settings'}")
    return settings


def refuse_others(where: Path, theirs: Settings, ours: Settings, kind: str) -> None:
    """Refuse to resume results of other settings.

    Raises:
        ValueError: If other settings are asked for now.
    """
    ours = json.loads(json.dumps(plain(ours)))  # names are strings there
    version = theirs.get(VERSION)
    if VERSION in ours and version != ours[VERSION]:
        raise FormatError(
            f"{where} is of {_wrote(version)}, and this is {ours[VERSION]}: finish it "
            "with that version, or give the output another path to start anew"
        )
    if different := differences(plain(theirs), ours):
        raise ValueError(
            f"{where} is of another {kind} ({different}): repeat its settings to go "
            "on with it, or give the output another path to start anew"
        )


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
        """Start from the settings that rows depend on."""
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
        stored = row.pop(DIGEST, None)
        if stored is None:
            raise NoDigestError("it has no digest, as rows of other versions have none")
        found = self._of(row)
        if stored == "".join(found):
            return row
        if not isinstance(stored, str) or len(stored) != _DIGITS * len(found):
            raise ValueError("it has more or fewer fields than its digest")
        pairs = zip(sorted(row), found, range(0, len(stored), _DIGITS), strict=True)
        changed = [
            name for name, digits, n in pairs if stored[n : n + _DIGITS] != digits
        ]
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


_ENCODER = json.JSONEncoder(sort_keys=True)


def _written(value: Any) -> str:
    return _ENCODER.encode(plain(value))
