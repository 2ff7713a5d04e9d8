"""Files: atomic and durable writes, safe names, and error messages for users."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, a quota, and a limit of file sizes."""
_IN_WORDS = re.compile(r"\(os error (\d+)\)")
"""Error number in messages of safetensors and tokenizers."""
_TORCH = re.compile(r"inline_container.*unexpected pos")
"""Message of torch for a failed write."""


class NoRoomError(OSError):
    """Error of a file that could not be written because its disk is full."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file; it replaces the target once complete and synced.

    Readers see the old file or the new one, after a power cut as well. An error leaves
    the old one unchanged. The new file's name cannot be guessed, and no existing file
    or link is reused. Files of killed writers are removed.

    Raises:
        NoRoomError: If the disk is full.
    """
    if path.exists() and not path.is_file():  # a pipe or a terminal
        yield path
        return
    path = resolved(path)  # a link goes on pointing to the file
    begin = f".{path.name[:_NAME]}."
    _remove_old(path.parent, begin)
    partial = path.with_name(f"{begin}{secrets.token_hex(8)}{_PARTIAL}")
    mode = _created(partial)
    try:
        yield partial
        partial.chmod(mode)  # safetensors makes its files private
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_names(path.parent)
    except BaseException as err:
        partial.unlink(missing_ok=True)
        if full := no_room(err, path):
            raise full from err
        raise


_NAME = 48
"""Largest length of a file's name in that of its temporary file."""
_PARTIAL = ".partial"
_LEFT = 3600.0
"""Age of a temporary file whose writer is taken for dead, in seconds since the last
write."""


def _created(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)


def new_mode(path: Path) -> int:
    """Permissions of new files beside a file."""
    probe = path.with_name(f".{secrets.token_hex(8)}{_PARTIAL}")
    try:
        return _created(probe)
    finally:
        probe.unlink()


def _remove_old(folder: Path, begin: str) -> None:
    for path in folder.glob(f"{escape(begin)}*{_PARTIAL}"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _LEFT:
                path.unlink()


def resolved(path: Path) -> Path:
    """Path without links.

    Raises:
        OSError: If its links form a loop.
    """
    with suppress(RuntimeError):  # Python before 3.13
        target = path.resolve()
        if not target.is_symlink():
            return target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")  # on any system


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(content: str | bytes) -> str:
    """Short digest of a text or of bytes."""
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:16]


def no_room(err: BaseException, path: Path | None = None) -> NoRoomError | None:
    """Error of a full disk, if that caused an error of any library.

    Args:
        err: The error.
        path: The file, if known.
    """
    cause: BaseException | None = err
    while cause is not None:
        if isinstance(cause, NoRoomError):
            return cause
        if reason := _reason(cause):
            where = f"{path or getattr(cause, 'filename', None) or 'the output'}"
            return NoRoomError(
                f"{where} cannot be written ({reason}): make room and repeat the "
                "command; where it can be resumed, it goes on from what is complete"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(err: BaseException) -> str | None:
    if _TORCH.search(str(err)):
        return "is the disk full?"
    code = err.errno if isinstance(err, OSError) else None
    if code is None and (found := _IN_WORDS.search(str(err))):
        code = int(found[1])
    return os.strerror(code) if code in NO_ROOM else None


def _sync_names(folder: Path) -> None:
    with suppress(PermissionError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_UNSAFE = re.compile(r"[^-.\w]")
_LONGEST = 128
"""Largest length of a safe name in bytes, with room for affixes below 255."""


def safe_name(name: str) -> str:
    """Name that is safe within a file's name: no path separators.

    Letters and digits, ``-``, ``_`` and ``.`` stay. A changed name ends with a digest
    of the original, so names stay distinct.

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
    return f"{plain[: _LONGEST - 9].decode(errors='ignore')}-{digest(name)[:8]}"


def beside(path: Path, name: object) -> Path:
    """Path of a file that another file of the same folder names.

    Args:
        path: The file that names it.
        name: The name.

    Raises:
        ValueError: If it is no file name in that folder.
    """
    plain = name if isinstance(name, str) and "\0" not in name else ""
    if plain in ("", "..") or plain != Path(plain).name:
        raise ValueError(f"{path} names {name!r:.60}, which is no file beside it")
    return path.with_name(plain)


def regular(path: Path) -> Path:
    """Path of a regular file or of a new one.

    Raises:
        ValueError: If it is a pipe, a device or a directory.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(
            f"{path}: not a regular file (pipe, device or directory). Save the data to "
            "a file and pass its path"
        )
    return path


LONGEST = 300


def one_line(err: BaseException) -> str:
    r"""Error message on one line.

    Example:
        >>> one_line(RuntimeError("Error(s) in loading:\n\tsize mismatch"))
        'Error(s) in loading: size mismatch'
    """
    return " ".join(str(err).split())[:LONGEST]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to errors of reading it.

    Raises:
        ValueError: If reading it fails.
    """
    try:
        yield
    except OSError as err:
        if err.filename is not None:
            raise
        raise ValueError(f"{path} cannot be read ({err.strerror or err})") from err
