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
not become ``EXPANSION`` times as long as the file (weights hardly shrink). Python's
``tarfile`` reads what headers declare before they can be checked: a pax header of
digits takes it quadratic time (CVE-2024-6232), a map of holes no end. Here a header
beyond the usual one has at most ``LONGEST`` bytes, and nothing is read twice.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from torch import Tensor

from lm_latent_eval.convert.originals import OriginalError, refusing
from lm_latent_eval.convert.torch_files import read_torch
from lm_latent_eval.files import regular

BLOCK = 512
LONGEST = 1 << 14
"""Bytes of a header that says more of the next member: a long name, times."""
AT_ONCE = 1 << 20
"""Bytes read at a time where they are not kept."""
_FILE, _DIRECTORY = b"0\0", b"5"
_PAX, _PAX_OF_ALL, _LONG_NAME = b"x", b"g", b"L"


class TarError(ValueError):
    """An archive with a member or header that no model needs."""


def read_tar(
    read: Callable[[int], bytes], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files that are wanted.

    Args:
        read: Returns the next bytes of the archive, as many unless it ends.
        wanted: Whether a file is kept, by its name within the archive.

    Raises:
        TarError: If a member is no plain file or directory or leads out of the archive,
            or a header is longer than any has to be.
        ValueError: If the archive is damaged.
    """
    long_name: str | None = None
    while any(header := _exactly(read, BLOCK)):
        kind, size = header[156:157], _number(header[124:136])
        if _number(header[148:156]) != sum(header[:148]) + 8 * 32 + sum(header[156:]):
            raise ValueError("a header is not what its sum says")
        if kind in (_PAX, _PAX_OF_ALL, _LONG_NAME):
            if size > LONGEST:
                raise TarError(f"a header has {size:,} bytes: none needs so many")
            content = _padded(read, size)
            if kind == _PAX:
                long_name = _pax(content).get(b"path", b"").decode() or long_name
            elif kind == _LONG_NAME:
                long_name = content.rstrip(b"\0").decode()
            continue
        name = PurePosixPath(long_name or _name(header))
        long_name = None
        shown = repr(str(name)[:200])[1:-1]
        if name.is_absolute() or ".." in name.parts:
            raise TarError(f"{shown} leads out of it")
        if kind not in _FILE and kind != _DIRECTORY:
            raise TarError(f"{shown} is no plain file")
        if kind == _DIRECTORY:
            continue
        if wanted(str(name)):
            yield str(name), _padded(read, size)
        else:
            _skip(read, size)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """Read bytes in parts, so that a false declared size takes no memory."""
    parts = []
    while size:
        part = read(min(size, AT_ONCE))
        if not part:
            raise ValueError("it ends before its end")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _padded(read: Callable[[int], bytes], size: int) -> bytes:
    content = _exactly(read, size)
    _exactly(read, -size % BLOCK)
    return content


def _skip(read: Callable[[int], bytes], size: int) -> None:
    size += -size % BLOCK
    while size:
        size -= len(_exactly(read, min(size, AT_ONCE)))


def _number(field: bytes) -> int:
    """Read a number in octal digits, or a large one in bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if not re.fullmatch(rb" *[0-7]*[ \0]*", field):
        raise ValueError("a header has a number that is none")
    return int(field.strip(b" \0") or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0].decode()
    if header[257:263] != b"ustar\0":
        return name
    prefix = header[345:500].partition(b"\0")[0].decode()
    return f"{prefix}/{name}" if prefix else name


def _pax(content: bytes) -> dict[bytes, bytes]:
    """Read records ``LENGTH KEY=VALUE``, each a line of so many bytes."""
    found, start = {}, 0
    while start < len(content):
        digits = content[start : start + len(str(LONGEST))].partition(b" ")[0]
        end = start + int(digits) if digits.isdigit() else 0
        key, equals, value = content[start + len(digits) + 1 : end].partition(b"=")
        if not (equals and value.endswith(b"\n") and end <= len(content)):
            raise ValueError("a pax header is damaged")
        if key == b"size" or key.startswith(b"GNU.sparse"):
            raise TarError("a member is too large, or sparse")
        found[key], start = value[:-1], end
    return found


PADDING, UNKNOWN = "@@PADDING@@", "@@UNKNOWN@@"
_NEWLINE = "@@NEWLINE@@"
"""Escape of a line end within an entry."""

_CONFIG, _WEIGHTS = "config.json", "weights.th"
_PATTERNS = "vocabulary/non_padded_namespaces.txt"

EXPANSION, SMALL = 20, 1 << 24
"""An archive may unpack to this many times its size, or to this many bytes."""


@dataclass(frozen=True)
class Archive:
    """Configuration, vocabularies and weights of an AllenNLP model."""

    path: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    vocabulary: dict[str, list[str]]
    """Namespace -> entries in the order of their ids, the padding included."""

    def namespace(self, name: str) -> list[str]:
        """Return a vocabulary.

        Raises:
            OriginalError: If there is none of that name.
        """
        if name not in self.vocabulary:
            raise OriginalError(
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
        OriginalError: If a part is missing or damaged, a weight is not a number, or a
            tar member is no plain file within the archive.
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
    except OriginalError:
        raise
    except TarError as err:
        raise OriginalError(f"{path} is refused: {err}") from err
    except Exception as err:  # a damaged archive can raise nearly anything
        raise OriginalError(
            f"{path} is not a readable archive ({err!r:.200}): copy or download it "
            "again"
        ) from err


class _AtMost:
    """A stream with a maximum length."""

    def __init__(self, path: Path, file: BinaryIO, limit: int) -> None:
        self.path, self.file, self.limit = path, file, limit
        self.size = 0

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.size += len(content)
        if self.size > self.limit:
            raise OriginalError(
                f"{self.path} is refused: it unpacks to more than {self.limit:,} "
                "bytes, which weights never do. If you trust it, unpack it yourself "
                "and give the directory"
            )
        return content


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
        saved = read_torch(content)
        return saved.tensors(saved.content)


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
