"""Settings that results depend on, compared when a run goes on."""

from __future__ import annotations

import json
import math
import re
from array import array
from pathlib import Path
from typing import Any

from lm_latent_eval.values import parse

Settings = dict[str, Any]
"""Values that JSON takes, by name."""
VERSION = "lm_latent_eval"
"""Key of settings for the version that computed the results."""


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
        ValueError: If they are.
    """
    if (there := settings.get("format", 1)) != expected:
        raise ValueError(
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
        raise ValueError(
            f"{where} is of {_wrote(version)}, and this is {ours[VERSION]}: finish it "
            "with that version, or give the output another path to start anew"
        )
    if different := differences(plain(theirs), ours):
        raise ValueError(
            f"{where} is of another {kind} ({different}): repeat its settings to go "
            "on with it, or give the output another path to start anew"
        )
