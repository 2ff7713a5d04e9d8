"""Manifests: the files of a directory with their digests, verified on loading.

``manifest.json`` names every file that a number depends on (JSON and safetensors, its
own aside) with its size and SHA-256. A directory in which one of them is another, or
missing, or that has one more, is refused: a single changed bit, or a lost file that
loading can do without, would otherwise give other numbers in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lm_latent_eval.files import file_digest, write_text
from lm_latent_eval.values import Matching, Rules, Whole, check, parse

FILE_NAME = "manifest.json"
FORMAT = "lm-latent-eval-manifest-1"
POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of files that git-lfs has not fetched."""
SUFFIXES = (".json", ".safetensors")


class ManifestError(ValueError):
    """Error of a directory that differs from its manifest."""


@dataclass(frozen=True)
class Entry:
    sha256: str
    size: int


_RULES: Rules = {"sha256": Matching("[0-9a-f]{64}", "64 hex digits"), "size": Whole(0)}


def write(directory: Path) -> str:
    """Write the manifest of a directory as it is; return its digest."""
    entries = {
        path.name: Entry(file_digest(path), path.stat().st_size)
        for path in _members(directory)
    }
    files = {name: asdict(entry) for name, entry in entries.items()}
    content = {"format": FORMAT, "files": files}
    write_text(directory / FILE_NAME, json.dumps(content, indent=2) + "\n")
    return _digest(entries)


def verify(directory: Path) -> str:
    """Verify a directory against its manifest; return its digest.

    Raises:
        ManifestError: If there is no manifest, or a file is missing, unlisted or
            altered.
    """
    listed = _read(directory)
    present = {path.name: path for path in _members(directory)}
    for name in sorted(listed.keys() | present.keys()):
        if name not in present:
            wrong = f"is missing, though {FILE_NAME} lists it"
        elif name not in listed:
            wrong = f"belongs to something else: {FILE_NAME} does not list it"
        elif present[name].stat().st_size != listed[name].size:
            size = present[name].stat().st_size
            wrong = f"has {size} bytes, but {listed[name].size} by {FILE_NAME}"
        elif file_digest(present[name]) != listed[name].sha256:
            wrong = f"is altered: its SHA-256 is not that of {FILE_NAME}"
        else:
            continue
        remedy = _remedy(directory)
        if name in present and _is_pointer(present[name]):
            wrong = "is a pointer of git-lfs in the place of the file"
            remedy = "fetch it by `git lfs pull`"
        raise ManifestError(f"{directory / name} {wrong}; {remedy}")
    return _digest(listed)


def files(directory: Path) -> list[Path]:
    """Files of a directory: the listed ones, and the list."""
    return [*_members(directory), directory / FILE_NAME]


def _members(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.glob("[!.]*")
        if path.suffix in SUFFIXES and path.name != FILE_NAME and path.is_file()
    )


def _read(directory: Path) -> dict[str, Entry]:
    path = directory / FILE_NAME
    if not path.is_file():
        raise ManifestError(
            f"{path} is missing, without which nobody knows whether {directory} is "
            f"complete: was its writing interrupted? {_remedy(directory)}"
        )
    try:
        content = parse(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
        for entry in content["files"].values():
            check(entry, _RULES)
        return {name: Entry(**entry) for name, entry in content["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
        raise ManifestError(
            f"{path} is not a readable manifest ({err}): {_remedy(directory)}"
        ) from err


def _digest(entries: Mapping[str, Entry]) -> str:
    sha = hashlib.sha256()
    for name in sorted(entries):
        sha.update(name.encode() + b"\0" + bytes.fromhex(entries[name].sha256))
    return sha.hexdigest()[:16]


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER


def _remedy(directory: Path) -> str:
    return (
        "copy or train it again, or, if you changed it yourself, accept it as it is by "
        f"`lm-latent-eval manifest {directory}`"
    )
