"""What resumable results depend on, in a file beside them: only the same goes on.

Example:
    >>> differences({"seed": 0, "unk": None}, {"seed": 1, "unk": None})
    'seed is 0 there and 1 here'
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lm_latent_eval.durable import write_text

SETTINGS_FILE = "settings.json"

Settings = dict[str, Any]


def claim(directory: Path, settings: Settings, kind: str) -> None:
    """Put settings into a folder, or see that it already has the same ones.

    Args:
        directory: New, or of an interrupted run.
        settings: What its results depend on, as JSON takes it.
        kind: What the folder holds, for messages: "study", say.

    Raises:
        ValueError: If the folder has other settings, or a file that is none.
    """
    path = directory / SETTINGS_FILE
    settings = json.loads(json.dumps(settings))  # tuples are lists there
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(settings, indent=2) + "\n")
    elif different := differences(read(directory, kind), settings):
        raise ValueError(
            f"{directory} is of another {kind} ({different}): repeat its settings to "
            "go on with it, or give another folder to start anew"
        )


def read(directory: Path, kind: str, *, having: str | None = None) -> Settings:
    """Read the settings of a folder.

    Args:
        directory: The folder.
        kind: What it holds, for messages.
        having: A name without which they are of something else.

    Raises:
        ValueError: If it has none.
    """
    path = directory / SETTINGS_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or (having and having not in settings):
            raise ValueError(f"it names no {having or 'settings'}")
    except (OSError, ValueError) as err:
        raise ValueError(f"{path} is not the settings of a {kind} ({err})") from err
    return settings


def differences(theirs: Settings, ours: Settings) -> str:
    """Say which settings differ, and how; "" if none does."""
    found = []
    for key in sorted(theirs | ours):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, dict) and isinstance(here, dict):
            inner = differences(there, here)
            found += [f"{key}.{each}" for each in inner.split("; ") if each]
        elif there != here:
            found.append(f"{key} is {there} there and {here} here")
    return "; ".join(found)
