"""Parquet footers, checked before Arrow reads the file.

Arrow checks a footer as it reads a file, but its Python classes of metadata do not:
asked about columns of a damaged one, they end the process. A footer is a struct of
Thrift's compact protocol, of which a few fields are of interest here.

Source: apache/parquet-format, ``parquet.thrift``; apache/thrift,
``doc/specs/thrift-compact-protocol.md``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_latent_eval.messages import naming

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
    """What a footer says of one column in one group of rows."""

    column: str
    codec: str
    num_values: int
    num_bytes: int


@dataclass(frozen=True)
class Footer:
    """What a footer says of its file."""

    num_rows: int
    chunks: list[Chunk]


def read(path: Path) -> Footer:
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
    groups = [_columns(group) for group in said.get(4, [])]
    num_rows = _number(said[3])
    if num_rows != sum(_number(group[3]) for group in said.get(4, [])):
        raise ValueError("its groups have other rows than it claims")
    return Footer(num_rows, [chunk for group in groups for chunk in group])


def _columns(group: dict[int, Any]) -> list[Chunk]:
    found = []
    for column in group[1]:
        about = column[3]
        if 1 in column:
            raise ValueError("a column is in another file")
        name = b".".join(about[3]).decode(errors="replace")
        codec = _CODECS.get(about[4], "another codec")
        found.append(Chunk(name, codec, _number(about[5]), _number(about[7])))
    return found


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
