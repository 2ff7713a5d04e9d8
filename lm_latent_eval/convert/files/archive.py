"""AllenNLP archives: configuration, vocabularies and weights.

An archive is a ``tar.gz`` or the directory that it unpacks to::

    config.json
    weights.th                            a torch pickle, name -> tensor
    vocabulary/non_padded_namespaces.txt  patterns such as *labels, one a line
    vocabulary/NAMESPACE.txt              one entry a line, in the order of the ids

In a padded namespace, one that no pattern matches, id 0 is the padding, which is not
in the file, and the first line is id 1; in the others the first line is id 0. The last
line may lack its end. Nothing is unpacked to disk and no code of the archive is run.

What a packed file says of its sizes is not believed: it is read as a stream that may
not become ``EXPANSION`` times as long as the file (weights hardly shrink).
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from reprlib import repr as shown
from typing import Any, BinaryIO, cast

from torch import Tensor

from lm_latent_eval.convert.files.tar import AT_ONCE, TarError, read_tar
from lm_latent_eval.convert.files.torch_files import Stored, read_torch
from lm_latent_eval.convert.files.unpickling import PickleError
from lm_latent_eval.file_names import regular

PADDING, UNKNOWN = "@@PADDING@@", "@@UNKNOWN@@"
_NEWLINE = "@@NEWLINE@@"
"""How a line end within an entry is written."""

_CONFIG, _WEIGHTS = "config.json", "weights.th"
_PATTERNS = "vocabulary/non_padded_namespaces.txt"

EXPANSION, SMALL = 20, 1 << 24
"""An archive may unpack to this many times its size, or to this many bytes."""


class ArchiveError(ValueError):
    """An archive that is missing something, damaged, or unsafe."""


@dataclass(frozen=True)
class Archive:
    """A model as AllenNLP left it."""

    path: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    vocabulary: dict[str, list[str]]
    """Namespace -> entries in the order of their ids, the padding included."""

    def namespace(self, name: str) -> list[str]:
        """Return a vocabulary.

        Raises:
            ArchiveError: If there is none of that name.
        """
        if name not in self.vocabulary:
            raise ArchiveError(
                f"{self.path} lacks vocabulary/{name}.txt: archive the model again"
            )
        return self.vocabulary[name]

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the configuration; it is empty if there is none."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}


def read_archive(path: Path) -> Archive:
    """Read an archive or an unpacked one.

    Raises:
        ArchiveError: If a part is missing or damaged, a weight is not a number, or a
            tar member is no plain file within the archive.
    """
    path = Path(path)
    files = dict(_files_of_directory(path) if path.is_dir() else _files_of_tar(path))
    for name in (_CONFIG, _WEIGHTS, _PATTERNS):
        if name not in files:
            raise ArchiveError(
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
    limit = max(EXPANSION * path.stat().st_size, SMALL)
    try:
        with regular(path).open("rb") as packed:
            gzipped = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            file = gzip.GzipFile(fileobj=packed) if gzipped else packed
            stream = _AtMost(path, cast(BinaryIO, file), limit)
            yield from read_tar(stream.read, _is_wanted)
            while stream.read(AT_ONCE):
                pass  # up to gzip's checksum, at the end
    except ArchiveError:
        raise
    except TarError as err:
        raise ArchiveError(f"{path} is refused: {err}") from err
    except Exception as err:  # a damaged archive can raise nearly anything
        raise ArchiveError(
            f"{path} is not a readable archive ({err!r:.200}): copy or download it "
            "again"
        ) from err


class _AtMost:
    """A stream that is refused where it becomes longer than it may."""

    def __init__(self, path: Path, file: BinaryIO, limit: int) -> None:
        self.path, self.file, self.limit = path, file, limit
        self.size = 0

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.size += len(content)
        if self.size > self.limit:
            raise _too_large(self.path, self.limit)
        return content


def _too_large(path: Path, limit: int) -> ArchiveError:
    return ArchiveError(
        f"{path} is refused: it unpacks to more than {limit:,} bytes, which weights "
        "never do. If you trust it, unpack it yourself and give the directory"
    )


def _config(path: Path, content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
        if not isinstance(config["model"]["type"], str):
            raise TypeError("the type is no name")
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise ArchiveError(
            f"{path}: {_CONFIG} is no configuration of an AllenNLP model ({err!r:.200})"
        ) from err
    return dict(config)


def _weights(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        saved = read_torch(content)
        table = saved.content
        if not isinstance(table, dict):
            raise PickleError("it holds no table of tensors")
        for name, tensor in table.items():
            if not (isinstance(name, str) and isinstance(tensor, Stored)):
                raise PickleError(f"{shown(name)} is no name of a tensor")
        weights = saved.tensors(table)
    except PickleError as err:
        raise ArchiveError(
            f"{path}: {_WEIGHTS} is damaged or holds more than tensors: {err}"
        ) from err
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise ArchiveError(
                f"{path}: tensor {name!r} in {_WEIGHTS} holds NaN or infinity: the "
                "training diverged or the file is damaged"
            )
    return weights


def _vocabulary(path: Path, files: dict[str, bytes]) -> dict[str, list[str]]:
    patterns = _lines(path, _PATTERNS, files)
    vocabulary = {}
    for name in files.keys() - {_CONFIG, _WEIGHTS, _PATTERNS}:
        namespace = PurePosixPath(name).stem
        entries = [line.replace(_NEWLINE, "\n") for line in _lines(path, name, files)]
        if not any(_matches(pattern, namespace) for pattern in patterns):
            entries = [PADDING, *entries]
            if entries[1:2] != [UNKNOWN]:
                raise ArchiveError(
                    f"{path}: the first line of {name} is not {UNKNOWN}: is its "
                    "namespace missing in non_padded_namespaces.txt?"
                )
        twice, count = Counter(entries).most_common(1)[0]
        if count > 1:
            raise ArchiveError(f"{path}: {name} lists {twice!r:.200} twice")
        vocabulary[namespace] = entries
    return vocabulary


def _matches(pattern: str, namespace: str) -> bool:
    if pattern.startswith("*"):
        return namespace.endswith(pattern[1:])
    return namespace == pattern


def _lines(path: Path, name: str, files: dict[str, bytes]) -> list[str]:
    try:
        # Only \n ends a line: an entry may well be another kind of white space.
        return files[name].decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as err:
        raise ArchiveError(f"{path}: {name} is not UTF-8 ({err})") from err
