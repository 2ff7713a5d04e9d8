"""Validation of file names and paths that come from other files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_UNSAFE = re.compile(r"[^-.\w]")
_LONGEST = 128
"""Bytes: file systems take 255, and something comes before and after."""


def safe_name(name: str) -> str:
    """Return a name as a part of a file's name, which leads to no other folder.

    Letters and digits, ``-``, ``_`` and ``.`` stay. A name that has to be changed ends
    with a digest of what it was, so that no two names become one.

    Args:
        name: Of anything.

    Example:
        >>> safe_name("wikitext_2.raw")
        'wikitext_2.raw'
        >>> safe_name("../victim")
        '.._victim-18d36a5a'
    """
    plain = _UNSAFE.sub("_", name).encode()
    unchanged = plain == name.encode("utf-8", "replace") and plain.strip(b".")
    if unchanged and len(plain) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9].decode(errors='ignore')}-{digest}"


def beside(path: Path, name: object) -> Path:
    """Return the file that another one names as lying in its own folder.

    Args:
        path: The file that names it.
        name: What it says.

    Raises:
        ValueError: If it is no name of a file there.
    """
    plain = name if isinstance(name, str) and "\0" not in name else ""
    if plain in ("", "..") or plain != Path(plain).name:
        raise ValueError(f"{path} names {name!r:.60}, which is no file beside it")
    return path.with_name(plain)


def regular(path: Path) -> Path:
    """Return a path that is to be read whole, or refuse a device, which has no end.

    Raises:
        ValueError: If there is something that is no file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file that has an end")
    return path
