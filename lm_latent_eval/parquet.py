"""Parquet files of rows with known columns and bounded size.

A small file may claim any number of rows, and one value may stand for millions. What a
file claims is held against its size before anything is read, and what is read is
counted. Files of ours carry a digest of each column, by which an edited one is known;
as with every digest, whoever edits a file can compute it again.

Footers are checked before Arrow reads a file: it checks them as well, but its Python
classes of metadata do not, and end the process when asked about columns of a damaged
one. A footer is a struct of Thrift's compact protocol, of which a few fields are of
interest here.

Source: apache/parquet-format, ``parquet.thrift``; apache/thrift,
``doc/specs/thrift-compact-protocol.md``.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm_latent_eval.files import naming, regular, replacing
from lm_latent_eval.values import parse

MAGIC = b"PAR1"
_DEEPEST = 16
"""Structs within each other; those of a footer are six."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    *(1, 2, 3, 7, 8),
    *(9, 10, 11, 12),
)
_WHOLE = (4, 5, 6)
"""Types of whole numbers of several bytes."""
_CODECS = {0: "UNCOMPRESSED", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", 5: "LZ4", 6: "ZSTD"}


@dataclass(frozen=True)
class Chunk:
    """Metadata of one column in one group of rows."""

    column: str
    codec: str
    num_values: int
    num_bytes: int


@dataclass(frozen=True)
class Footer:
    """Metadata of a file."""

    num_rows: int
    chunks: list[Chunk]


def read_footer(path: Path) -> Footer:
    """Read the footer of a file.

    Raises:
        ValueError: If there is none.
    """
    with naming(path), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        (length, magic) = struct.unpack("<I4s", file.read().rjust(8, b"\0"))
        if magic != MAGIC or length > size - 12:
            raise ValueError("it has no footer of Parquet")
        file.seek(size - 8 - length)
        content = file.read(length)
    try:
        return _footer(_Reader(content).struct(0))
    except (IndexError, KeyError, TypeError) as err:
        raise ValueError("its footer is damaged") from err


def _footer(said: dict[int, Any]) -> Footer:
    groups, num_rows = said.get(4, []), _number(said[3])
    if num_rows != sum(_number(group[3]) for group in groups):
        raise ValueError("its groups have other rows than it claims")
    columns = [column for group in groups for column in group[1]]
    chunks = []
    for column in columns:
        about = column[3]
        if 1 in column:
            raise ValueError("a column is in another file")
        name = b".".join(about[3]).decode(errors="replace")
        codec = _CODECS.get(about[4], "another codec")
        chunks.append(Chunk(name, codec, _number(about[5]), _number(about[7])))
    return Footer(num_rows, chunks)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("its footer counts below zero")
    return value


class _Reader:
    """Reads values of Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Read a struct: number of a field -> value."""
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        name = 0
        while kind := self._byte():
            step, kind = kind >> 4, kind & 15
            name = name + step if step else self._whole()
            if kind in (_TRUE, _FALSE):
                found[name] = kind == _TRUE
            else:
                found[name] = self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _WHOLE:
            return self._whole()
        if kind in (_BYTE, _TRUE, _FALSE):
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._natural())
        if kind in (_LIST, _SET):
            head = self._byte()
            number = self._natural() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth) for _ in range(number)]
        if kind == _MAP:
            number = self._natural()
            kinds = self._byte() if number else 0
            return [
                (self._value(kinds >> 4, depth), self._value(kinds & 15, depth))
                for _ in range(number)
            ]
        if kind == _STRUCT:
            return self.struct(depth)
        raise ValueError("its footer is damaged")

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _bytes(self, number: int) -> bytes:
        if number > len(self.content) - self.at:
            raise IndexError
        self.at += number
        return self.content[self.at - number : self.at]

    def _natural(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("its footer is damaged")

    def _whole(self) -> int:
        value = self._natural()
        return value >> 1 ^ -(value & 1)


BYTES_A_ROW = 2
"""Bytes of a file that a row takes at least; the number of its document takes four."""
UNPACKED = 100
"""Times the size of a file that its values may take in memory."""
ALWAYS = 64 << 20
"""Bytes that values may take however small the file."""
CODECS = ("SNAPPY", "UNCOMPRESSED")
"""Arrow's default codec. Others pack a thousand times as much into a byte."""
DIGESTS = b"lm_latent_eval_columns"
_ABOUT = ""
"""The name that the digest of what metadata say has among those of columns."""
_ROWS_AT_ONCE = 1024
_BROKEN = (pa.ArrowException, OSError, ValueError, RuntimeError, MemoryError)
"""Arrow's errors for files that are not Parquet."""


def write(path: Path, table: pa.Table, name: bytes, said: dict[str, Any]) -> None:
    """Write rows, whole or not at all.

    Args:
        path: The file.
        table: The rows.
        name: Under which the metadata say how they were made.
        said: That.
    """
    digests = {column: _ColumnDigest() for column in table.column_names}
    for batch in table.to_batches():
        for column, digest in digests.items():
            digest.add(batch[column])
    about = json.dumps(said).encode()
    listed = {_ABOUT: _short(about), **{c: str(d) for c, d in digests.items()}}
    metadata = {name: about, DIGESTS: json.dumps(listed).encode()}
    with replacing(path) as partial:
        pq.write_table(table.replace_schema_metadata(metadata), partial)


class RowFile:
    """A Parquet file of unknown origin, checked while it is read."""

    def __init__(self, path: Path, kind: str) -> None:
        """Open a file and check its metadata.

        Args:
            path: The file.
            kind: What it holds, for messages: "record of a run", say.

        Raises:
            ValueError: If it is no such file, or claims more than fits into it.
        """
        self.path, self.kind = regular(path), kind
        with self._named():
            self._check_size(read_footer(self.path))
        with self._named(), pq.ParquetFile(self.path) as file:
            self._schema = file.schema_arrow

    def said(self, name: bytes) -> dict[str, Any]:
        """Return what its metadata say under a name.

        Raises:
            ValueError: If there is nothing.
        """
        found = self._parsed(name)
        if found is None:
            raise self._error("it does not say how its rows were made")
        listed = self._parsed(DIGESTS)
        if listed and listed.get(_ABOUT) != _short(self._schema.metadata[name]):
            raise self._error("how its rows were made is not as it was written")
        return found

    def _parsed(self, name: bytes) -> dict[str, Any] | None:
        content = (self._schema.metadata or {}).get(name, b"null")
        with self._named():
            found = parse(content.decode(), infinities=True)
        return found if isinstance(found, dict) else None

    def rows(
        self, schema: pa.Schema, *, optional: Collection[str] = (), digested: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows.

        Args:
            schema: Columns and types that it has to have.
            optional: Names of columns that it may lack.
            digested: Whether it has to have digests of them.

        Raises:
            ValueError: If it has others, they take more memory than the file's size
                allows, or one of them was edited: this is known after the last row.
        """
        names = [n for n in schema.names if n not in optional or self._has(n)]
        for name in names:
            self._check_type(schema.field(name))
        digests = {name: _ColumnDigest() for name in names}
        size = 0
        strings = [n for n in names if pa.types.is_string(schema.field(n).type)]
        with self._named(), pq.ParquetFile(self.path, read_dictionary=strings) as file:
            batches = file.iter_batches(_ROWS_AT_ONCE, columns=names)
            for batch in batches:
                columns = {}
                for name in names:
                    size += _size(batch[name])
                    self._check_memory(size)
                    columns[name] = _plain(batch[name])
                    digests[name].add(columns[name])
                yield from pa.table(columns).to_pylist()
        self._check_digests(digests, digested)

    def _has(self, name: str) -> bool:
        return bool(self._schema.get_all_field_indices(name))

    def _check_size(self, footer: Footer) -> None:
        size = self.path.stat().st_size
        if footer.num_rows * BYTES_A_ROW > size:
            raise self._error(
                f"it claims {footer.num_rows:,} rows in {size:,} bytes, of which a row "
                f"takes {BYTES_A_ROW} at least"
            )
        for chunk in footer.chunks:
            if chunk.codec not in CODECS:
                raise self._error(
                    f"column {chunk.column!a:.60} is packed by {chunk.codec}, where "
                    f"ours are by {CODECS[0]}"
                )
        if sum(chunk.num_bytes for chunk in footer.chunks) > size:
            raise self._error("its columns claim more bytes than it has")
        self._check_memory(8 * sum(chunk.num_values for chunk in footer.chunks))

    def _check_memory(self, taken: int) -> None:
        size = self.path.stat().st_size
        if taken > ALWAYS + UNPACKED * size:
            raise self._error(
                f"its values would take more than {UNPACKED} times its {size:,} bytes"
            )

    def _check_type(self, field: pa.Field) -> None:
        places = self._schema.get_all_field_indices(field.name)
        if len(places) != 1:
            number = "no" if not places else len(places)
            raise self._error(f"it has {number} columns {field.name!r}")
        there = self._schema.field(places[0]).type
        if there != field.type:
            raise self._error(
                f"column {field.name!r} holds {there!s:.60}, not {field.type}"
            )

    def _check_digests(self, digests: dict[str, _ColumnDigest], digested: bool) -> None:
        said = self._parsed(DIGESTS)
        if said is None and not digested:
            return
        if said is None:
            raise self._error("it has no digests of its columns")
        for name, digest in digests.items():
            if said.get(name) != str(digest):
                raise self._error(f"column {name!r} is not as it was written")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's name to Arrow's errors."""
        try:
            yield
        except _BROKEN as err:
            if isinstance(err, RowFileError) or getattr(err, "filename", None):
                raise
            raise self._error(f"{err!r:.200}") from err

    def _error(self, why: str) -> RowFileError:
        return RowFileError(f"{self.path} is no {self.kind} ({why})")


class RowFileError(ValueError):
    """Error of a file of rows that is damaged or of another kind."""


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _size(array: pa.Array) -> int:
    """Return the bytes of values once each is written out."""
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary).take(array.indices)
    return int(pc.sum(lengths).as_py() or 0) + 8 * len(array)


def _plain(array: pa.Array) -> pa.Array:
    is_dictionary = pa.types.is_dictionary(array.type)
    return array.dictionary_decode() if is_dictionary else array


class _ColumnDigest:
    """A digest of the values of a column, wherever Arrow cuts it."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def add(self, array: pa.Array, place: str = "") -> None:
        """Take in some more values."""
        if not len(array):
            return
        self._update(f"{place}known", array.is_valid())
        if pa.types.is_list(array.type):
            lengths = pc.list_value_length(array)
            self._update(f"{place}lengths", lengths)
            self.add(array.flatten(), f"{place}each ")
        elif pa.types.is_string(array.type):
            self._update(f"{place}lengths", pc.binary_length(array))
            strings = "".join(array.drop_null().to_pylist())
            self._part(f"{place}strings").update(strings.encode())
        else:
            self._update(f"{place}values", array)

    def _update(self, part: str, array: pa.Array) -> None:
        known = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
        self._part(part).update(known.to_numpy(zero_copy_only=False).tobytes())

    def _part(self, name: str) -> Any:
        return self._parts.setdefault(name, hashlib.sha256())

    def __str__(self) -> str:
        parts = ((name, digest.hexdigest()) for name, digest in self._parts.items())
        return _short(json.dumps(sorted(parts)).encode())
