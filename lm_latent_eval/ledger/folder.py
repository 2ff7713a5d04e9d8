"""Resumable folders of files, each written whole, beside their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lm_latent_eval.durable import write_text
from lm_latent_eval.file_names import regular
from lm_latent_eval.ledger.one_writer import only_writer
from lm_latent_eval.ledger.settings import Settings, parsed, refuse_others

SETTINGS_FILE = "settings.json"


@contextmanager
def going_on(
    directory: Path, settings: Settings, kind: str, kept: str
) -> Iterator[None]:
    """Begin a folder or go on with one, and let no other run write there.

    Args:
        directory: New, or of an interrupted run.
        settings: What its files depend on.
        kind: What the folder holds, for messages: "study", say.
        kept: What an interrupted run leaves behind: "whole shards", say.

    Raises:
        BusyError: If another run is writing there.
        ValueError: If the folder has other settings, or a file that is none.
    """
    with only_writer(directory, kept):
        claim(directory, settings, kind)
        yield


def claim(directory: Path, settings: Settings, kind: str) -> None:
    """Put settings into a folder, or see that it already has the same ones.

    Args:
        directory: New, or of an interrupted run.
        settings: What its results depend on.
        kind: What the folder holds, for messages: "study", say.

    Raises:
        ValueError: If the folder has other settings, or a file that is none.
    """
    path = directory / SETTINGS_FILE
    if path.exists():
        refuse_others(directory, read(directory, kind), settings, kind)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(settings, indent=2) + "\n")


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
        return parsed(regular(path).read_bytes(), having)
    except (OSError, ValueError) as err:
        raise ValueError(f"{path} is not the settings of a {kind} ({err})") from err
