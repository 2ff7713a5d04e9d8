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


def differences(old: Settings, new: Settings) -> str:
    """Say which settings differ, and how; "" if none does.

    Example:
        >>> differences({"seed": 0, "unk": None}, {"seed": 1, "unk": None})
        'seed is 0 there and 1 here'
    """
    texts = []
    for key in sorted(old | new):
        before, here = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(here, dict):
            inner = differences(before, here)
            texts += [f"{key}.{each}" for each in inner.split("; ") if each]
        elif before != here:
            texts.append(
                f"{_shown(key)} is {_shown(before)} there and {_shown(here)} here"
            )
    return "; ".join(texts)


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
    if (written := settings.get("format", 1)) != expected:
        raise ValueError(
            f"{where} is in format {written!a:.20}, of "
            f"{_wrote(settings.get(VERSION))}, and this one reads format {expected}: "
            "finish it with that version, or run the command again, with another path "
            "for its output"
        )


def _wrote(version: Any) -> str:
    is_version = isinstance(version, str) and re.fullmatch(r"[\w.+]{1,20}", version)
    return f"lm-latent-eval {version}" if is_version else "another lm-latent-eval"


def parsed(content: bytes, having: str | None) -> Settings:
    """Parse settings.

    Raises:
        ValueError: If they are none, or lack a name that they have to have.
    """
    settings = parse(content.decode(), infinities=True)
    if not isinstance(settings, dict) or (having and having not in settings):
        raise ValueError(f"it names no {having or 'settings'}")
    return settings


def refuse_others(where: Path, old: Settings, new: Settings, kind: str) -> None:
    """Refuse to resume results of other settings.

    Raises:
        ValueError: If other settings are asked for now.
    """
    new = json.loads(json.dumps(plain(new)))  # names are strings there
    version = old.get(VERSION)
    if VERSION in new and version != new[VERSION]:
        raise ValueError(
            f"{where} is of {_wrote(version)}, and this is {new[VERSION]}: finish it "
            "with that version, or give the output another path to start anew"
        )
    if different := differences(plain(old), new):
        raise ValueError(
            f"{where} is of another {kind} ({different}): repeat its settings to go "
            "on with it, or give the output another path to start anew"
        )
