"""What a directory is made of: a list of its files that loading holds them against.

``manifest.json`` names every file that a number depends on (JSON and safetensors, its
own aside) with its size and SHA-256. A directory in which one of them is another, or
missing, or that has one more, is refused: a single changed bit, or a lost file that
loading can do without, would otherwise give other numbers in silence.

Large files are hashed once a state: their SHA-256 is remembered, with their size, times
and inode, in the user's cache directory, so that a large one is not read each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lm_latent_eval.durable import write_text
from lm_latent_eval.values import Matching, Rules, Whole, check

FILE_NAME = "manifest.json"
FORMAT = "lm-latent-eval-manifest-1"
SUFFIXES = (".json", ".safetensors")
LARGE = 1 << 26
"""Bytes from which on a file is hashed once a state; fewer take 0.2 seconds at most."""
SETTLED = 2_000_000_000
"""Nanoseconds after which a change can no longer hide in the same tick of a clock."""


class ManifestError(ValueError):
    """A directory that is not what its manifest says."""


@dataclass(frozen=True)
class Entry:
    """One file."""

    sha256: str
    size: int
    """In bytes."""


_RULES: Rules = {"sha256": Matching("[0-9a-f]{64}", "64 hex digits"), "size": Whole(0)}
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)
"""What reading a file of any content ends in."""


def write(directory: Path) -> str:
    """Write the manifest of a directory as it is; return its digest."""
    entries = {path.name: _entry(path) for path in _members(directory)}
    _write(directory, entries)
    return _digest(entries)


def _write(directory: Path, entries: Mapping[str, Entry]) -> None:
    content = {
        "format": FORMAT,
        "files": {name: asdict(entry) for name, entry in entries.items()},
    }
    write_text(directory / FILE_NAME, json.dumps(content, indent=2) + "\n")


def verify(directory: Path) -> str:
    """Hold a directory against its manifest; return its digest.

    Raises:
        ManifestError: If there is no manifest, or a file is missing, unlisted or
            altered.
    """
    listed = _read(directory)
    found = {path.name: path for path in _members(directory)}
    for name in sorted(listed.keys() | found.keys()):
        if name not in found:
            wrong = f"is missing, though {FILE_NAME} lists it"
        elif name not in listed:
            wrong = f"belongs to something else: {FILE_NAME} does not list it"
        elif found[name].stat().st_size != listed[name].size:
            size = found[name].stat().st_size
            wrong = f"has {size} bytes, but {listed[name].size} by {FILE_NAME}"
        elif _sha256(found[name]) != listed[name].sha256:
            wrong = f"is altered: its SHA-256 is not that of {FILE_NAME}"
        else:
            continue
        raise ManifestError(f"{directory / name} {wrong}; {_remedy(directory)}")
    return _digest(listed)


def files(directory: Path) -> list[Path]:
    """Return the files that a directory is made of: the listed ones, and the list."""
    return [*_members(directory), directory / FILE_NAME]


def _members(directory: Path) -> list[Path]:
    """Return the files that have to be listed, by name."""
    return sorted(
        path
        for path in directory.glob("[!.]*")
        if path.suffix in SUFFIXES and path.name != FILE_NAME and path.is_file()
    )


def _read(directory: Path) -> dict[str, Entry]:
    """Return the entries of the files."""
    path = directory / FILE_NAME
    if not path.is_file():
        raise ManifestError(
            f"{path} is missing, without which nobody knows whether {directory} is "
            f"complete: was its writing interrupted? {_remedy(directory)}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
        files = _entries(content["files"])
    except _UNREADABLE as err:
        raise ManifestError(
            f"{path} is not a readable manifest ({err}): {_remedy(directory)}"
        ) from err
    return files


def _entries(content: Mapping[str, Any]) -> dict[str, Entry]:
    for entry in content.values():
        check(entry, _RULES)
    return {name: Entry(**entry) for name, entry in content.items()}


def _digest(entries: Mapping[str, Entry]) -> str:
    """Return a short digest of files by what their manifest says of them."""
    sha = hashlib.sha256()
    for name in sorted(entries):
        sha.update(name.encode() + b"\0" + bytes.fromhex(entries[name].sha256))
    return sha.hexdigest()[:16]


def _remedy(directory: Path) -> str:
    return (
        "copy or train it again, or, if you changed it yourself, accept it as it is by "
        f"`lm-latent-eval seal {directory}`"
    )


# -- hashes ---------------------------------------------------------------------------

State = list[str | int]
"""The path of a file, its size, times and inode."""


def _entry(path: Path) -> Entry:
    return Entry(_sha256(path), path.stat().st_size)


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file; of a large one once a state."""
    stat = path.stat()
    if stat.st_size < LARGE:
        return _hashed(path)
    times = stat.st_mtime_ns, stat.st_ctime_ns
    state: State = [str(path.resolve()), stat.st_size, *times, stat.st_ino]
    if (known := _recall(state)) is not None:
        return known
    settled = time.time_ns() - max(times) > SETTLED
    found = _hashed(path)
    if settled:
        _remember(state, found)
    return found


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recall(state: State) -> str | None:
    # A memory that cannot be read or written costs time, and nothing else.
    with contextlib.suppress(*_UNREADABLE, RuntimeError):
        content = json.loads(_memory(state).read_text(encoding="utf-8"))
        if content["state"] == state:
            return str(content["sha256"])
    return None


def _remember(state: State, sha256: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        path = _memory(state)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"state": state, "sha256": sha256}), "utf-8")
        partial.replace(path)


def _memory(state: State) -> Path:
    """Return where the hash of a file is remembered: a small file a path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(state[0]).encode()).hexdigest()
    return cache / "lm_latent_eval" / f"{name}.json"
