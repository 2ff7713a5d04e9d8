"""Tar archives as streams of plain files and directories.

Python's ``tarfile`` reads what headers declare before anybody can look at them: a pax
header of digits takes it quadratic time (CVE-2024-6232), a map of holes no end. Here a
header beyond the usual one has at most ``LONGEST`` bytes, and nothing is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

BLOCK = 512
LONGEST = 1 << 14
"""Bytes of a header that says more of the next member: a long name, times."""
AT_ONCE = 1 << 20
"""Bytes read at a time where they are not kept."""
_FILE, _DIRECTORY = b"0\0", b"5"
_PAX, _PAX_OF_ALL, _LONG_NAME = b"x", b"g", b"L"


class TarError(ValueError):
    """An archive that has what no model needs."""


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
    """Read bytes in parts: what is merely declared takes no memory."""
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
