"""Columns of a file, read lazily in blocks.

A file that is mapped into memory ends the process (SIGBUS) where it is truncated while
in use, and changes what was computed where it is written to. Here blocks are read into
memory of the process when one of their rows is first asked for, so that a file that is
no longer the one that was opened is an error. Memory is reserved for whole columns, and
taken, as for a mapping, by what was read.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

BLOCK = 1 << 12
"""Numbers of a column that are read at once: they are searched, or lie together. Rows
of a table are looked up anywhere: as many as have so many bytes."""
REMEMBERED = 1 << 16
"""Keys whose places in a column are: most are asked for again."""

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


class ChangedError(ValueError):
    """A file that is not the one that was opened."""


_PLACE = threading.Lock()


def seek_and_read(descriptor: int, size: int, place: int) -> bytes:
    """Do what ``os.pread`` does, where there is none, for the threads of a process."""
    with _PLACE:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.read(descriptor, size)


# Processes of Windows share no open file, so none moves another's place in it.
read_at = seek_and_read if sys.platform == "win32" else os.pread


class TensorFile:
    """A safetensors file whose tensors are read in parts."""

    def __init__(self, path: Path) -> None:
        """Open it and read its table of contents."""
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.descriptor)
        self.state = self._state()
        (length,) = self.read(0, 8).view(torch.int64).tolist()
        if not 0 <= length <= self.size - 8:
            raise ValueError("its table of contents is cut off")
        self.start = 8 + length
        self.contents = json.loads(self.read(8, length).numpy().tobytes())
        self.metadata: dict[str, str] = self.contents.pop("__metadata__", {})

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""
        return self.state[0]

    def _state(self) -> tuple[int, int]:
        now = os.fstat(self.descriptor)
        return now.st_size, now.st_mtime_ns

    def read(self, place: int, size: int) -> Tensor:
        """Return some bytes.

        Raises:
            ChangedError: If the file was changed since it was opened.
        """
        content = read_at(self.descriptor, size, place)
        if len(content) < size or self._state() != self.state:
            raise ChangedError(f"{self.path} was changed while in use: load it again")
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def column(self, name: str) -> Column:
        """Return a tensor whose rows are read when asked for.

        Raises:
            ValueError: If the file does not hold what its contents say.
        """
        entry = self.contents[name]
        dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
        start, end = map(int, entry["data_offsets"])
        size = math.prod(shape) * dtype.itemsize
        if min(start, *shape, 0) < 0 or end - start != size:
            raise ValueError(f"{name} is not as large as its shape")
        if self.start + end > self.size:
            raise ValueError(f"{name} is cut off")
        return Column(self, self.start + start, dtype, shape)


class Column:
    """A tensor of a file; what was looked at is in memory."""

    def __init__(
        self, file: TensorFile, place: int, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        self.file, self.place, self.dtype, self.shape = file, place, dtype, shape
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self.per_block = max(1, BLOCK // (max(1, self.row_bytes) if shape[1:] else 1))
        blocks = -(-len(self) // self.per_block) if self.row_bytes else 0
        self.known = torch.zeros(blocks, dtype=torch.bool)
        self.num_unread = len(self.known)
        self.content = torch.empty(shape, dtype=dtype)
        self._place = lru_cache(REMEMBERED)(self._search_one)

    def __len__(self) -> int:
        """Number of rows; a single number is one."""
        return self.shape[0] if self.shape else 1

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Read rows by number, none of them negative, or some that follow one another.

        Raises:
            ChangedError: If they are read from a file that was changed.
        """
        if self.num_unread:
            self._read(self._blocks(rows))
        return self.content[rows]

    def whole(self) -> Tensor:
        """Read everything."""
        self._read(torch.arange(len(self.known)))
        return self.content

    def search(self, key: Tensor, *, right: bool = False) -> Tensor:
        """Return what ``torch.searchsorted`` does, of a column that is sorted.

        Of the file the block is read that begins last before a key.
        """
        if not self.num_unread:
            return torch.searchsorted(self.content, key, right=right)
        places = [self._place(k, right) for k in key.flatten().tolist()]
        return torch.tensor(places, dtype=torch.long).view(key.shape)

    def _search_one(self, key: int, right: bool) -> int:
        insert = bisect_right if right else bisect_left
        start = self.per_block * max(insert(self._firsts, key) - 1, 0)
        rows = self[start : start + self.per_block]
        return start + insert(rows.numpy().data, key)

    @cached_property
    def _firsts(self) -> list[int]:
        """The first row of each block."""
        blocks = range(0, len(self), self.per_block)
        rows = [
            self.file.read(self.place + b * self.row_bytes, self.row_bytes)
            for b in blocks
        ]
        return torch.cat(rows).view(self.dtype).tolist()

    def _blocks(self, rows: Tensor | slice) -> Tensor:
        if isinstance(rows, Tensor):
            return rows // self.per_block
        start, end, _ = rows.indices(len(self))
        first, last = start // self.per_block, -(-end // self.per_block)
        return torch.arange(first, max(first, last))

    def _read(self, blocks: Tensor) -> None:
        known = self.known[blocks]
        if known.all():
            return
        flat = self.content.view(-1).view(torch.uint8)
        size = self.per_block * self.row_bytes
        for block in blocks[~known].unique().tolist():
            part = flat[block * size : (block + 1) * size]
            part.copy_(self.file.read(self.place + block * size, len(part)))
            self.known[block] = True
        self.num_unread = int((~self.known).sum())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A copy is a tensor: it has no file of its own."""
        return torch.from_numpy, (self.whole().numpy(),)


Rows: TypeAlias = Tensor | Column
"""A column in memory, or in a file."""


def everything(column: Rows) -> Tensor:
    """Return a whole column."""
    return column.whole() if isinstance(column, Column) else column


def search(column: Rows, key: Tensor, *, right: bool = False) -> Tensor:
    """Return where keys would be inserted into a sorted column."""
    if isinstance(column, Column):
        return column.search(key, right=right)
    return torch.searchsorted(column, key, right=right)
