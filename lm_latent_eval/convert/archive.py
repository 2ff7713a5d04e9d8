"""AllenNLP archives: configuration, vocabularies and weights.

An archive is a ``tar.gz`` or its unpacked folder::

    config.json
    weights.th                            a torch pickle, name -> tensor
    vocabulary/non_padded_namespaces.txt  patterns such as *labels, one a line
    vocabulary/NAMESPACE.txt              one entry a line, in the order of the ids

In a padded namespace, one that no pattern matches, id 0 is the padding, which is not
in the file, and the first line is id 1; in the others the first line is id 0. The last
line may lack its end. Nothing is unpacked to disk and no code of the archive is run.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from torch import Tensor

from lm_latent_eval.convert.originals import OriginalError, refusing
from lm_latent_eval.convert.pickles import read_torch, tensors
from lm_latent_eval.files import regular

PADDING, UNKNOWN = "@@PADDING@@", "@@UNKNOWN@@"
_NEWLINE = "@@NEWLINE@@"
"""Escape of a line end within an entry."""

_CONFIG, _WEIGHTS = "config.json", "weights.th"
_PATTERNS = "vocabulary/non_padded_namespaces.txt"


@dataclass(frozen=True)
class Archive:
    """Configuration, vocabularies and weights of an AllenNLP model."""

    path: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    vocabulary: dict[str, list[str]]
    """Namespace -> entries in the order of their ids, the padding included."""

    def namespace(self, name: str) -> list[str]:
        """Vocabulary of a namespace.

        Raises:
            OriginalError: If there is none of that name.
        """
        if name not in self.vocabulary:
            raise OriginalError(
                f"{self.path} lacks vocabulary/{name}.txt: archive the model again"
            )
        return self.vocabulary[name]

    def section(self, name: str) -> dict[str, Any]:
        """Section of the configuration; empty if missing."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}


def read_archive(path: Path) -> Archive:
    """Read an archive or an unpacked one.

    Raises:
        OriginalError: If a part is missing or damaged, or a weight is not a number.
    """
    path = Path(path)
    files = dict(_files_of_directory(path) if path.is_dir() else _files_of_tar(path))
    for name in (_CONFIG, _WEIGHTS, _PATTERNS):
        if name not in files:
            raise OriginalError(
                f"{path} lacks {name}: it is no archive of an AllenNLP model"
            )
    return Archive(
        path,
        _config(path, files[_CONFIG]),
        _weights(path, files[_WEIGHTS]),
        _vocabulary(path, files),
    )


def _is_wanted(name: str) -> bool:
    return name in (_CONFIG, _WEIGHTS) or (
        PurePosixPath(name).parent == PurePosixPath("vocabulary")
        and name.endswith(".txt")
    )


def _files_of_directory(path: Path) -> Iterator[tuple[str, bytes]]:
    for file in [path / _CONFIG, path / _WEIGHTS, *path.glob("vocabulary/*.txt")]:
        if file.is_file():
            yield file.relative_to(path).as_posix(), file.read_bytes()


def _files_of_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    regular(path)
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name = PurePosixPath(member.name).as_posix()  # without a leading ./
                if _is_wanted(name) and (content := tar.extractfile(member)):
                    yield name, content.read()
            # An end of zeros; beyond it, gzip's checksum.
            if cast(BinaryIO, tar.fileobj).read().strip(b"\0"):
                raise tarfile.ReadError("a header is damaged")
    except Exception as err:  # a damaged archive can raise nearly anything
        if getattr(err, "filename", None):
            raise
        raise OriginalError(
            f"{path} is not a readable archive ({err!r:.200}): copy or download it "
            "again"
        ) from err


def _config(path: Path, content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
        if not isinstance(config["model"]["type"], str):
            raise TypeError("the type is no name")
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise OriginalError(
            f"{path}: {_CONFIG} is no configuration of an AllenNLP model ({err!r:.200})"
        ) from err
    return dict(config)


def _weights(path: Path, content: bytes) -> dict[str, Tensor]:
    with refusing(f"{path}: {_WEIGHTS}"):
        return tensors(read_torch(content))


def _vocabulary(path: Path, files: dict[str, bytes]) -> dict[str, list[str]]:
    patterns = _lines(path, _PATTERNS, files)
    vocabulary = {}
    for name in files.keys() - {_CONFIG, _WEIGHTS, _PATTERNS}:
        namespace = PurePosixPath(name).stem
        entries = [line.replace(_NEWLINE, "\n") for line in _lines(path, name, files)]
        if not any(_matches(pattern, namespace) for pattern in patterns):
            entries = [PADDING, *entries]
            if entries[1:2] != [UNKNOWN]:
                raise OriginalError(
                    f"{path}: the first line of {name} is not {UNKNOWN}: is its "
                    "namespace missing in non_padded_namespaces.txt?"
                )
        twice, count = Counter(entries).most_common(1)[0]
        if count > 1:
            raise OriginalError(f"{path}: {name} lists {twice!r:.200} twice")
        vocabulary[namespace] = entries
    return vocabulary


def _matches(pattern: str, namespace: str) -> bool:
    if pattern.startswith("*"):
        return namespace.endswith(pattern[1:])
    return namespace == pattern


def _lines(path: Path, name: str, files: dict[str, bytes]) -> list[str]:
    try:
        # Only \n ends a line: an entry may well be another kind of white space.
        lines = files[name].decode("utf-8-sig").removesuffix("\n").split("\n")
        if all(line.endswith("\r") for line in lines):  # written on Windows
            lines = [line.removesuffix("\r") for line in lines]
        return lines
    except UnicodeDecodeError as err:
        raise OriginalError(f"{path}: {name} is not UTF-8 ({err})") from err
