"""Knowledge graphs on disk: columns in one file, read lazily in blocks.

What can only be checked by reading everything (that no id dangles, that sorted columns
are sorted) is checked once, when a file is written; the file says so by its format.
Loading such a file looks at sizes, types and a few windows of each column, and ids are
checked again where they are used (``KnowledgeGraph``). Any other file, older ones of
the first format among them, is read and checked in whole.

A file that is mapped into memory ends the process (SIGBUS) where it is truncated while
in use, and changes what was computed where it is written to. Here blocks are read into
memory of the process when one of their rows is first asked for, so that a file that is
no longer the one that was opened is an error. Memory is reserved for whole columns, and
taken, as for a mapping, by what was read.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

from lm_latent_eval.files import one_line, replacing
from lm_latent_eval.values import parse

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
    """Read bytes at a place as ``os.pread`` does, safely between threads."""
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
        self.contents = parse(self.read(8, length).numpy().tobytes().decode())
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
    """A tensor of a file, read in blocks when their rows are first used."""

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
        """Search the sorted column as ``torch.searchsorted`` does.

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


# -- graphs -------------------------------------------------------------------------

FILE_NAME = "graph.safetensors"

FORMATS = ("kglm-graph-1", "kglm-graph-2", "kglm-graph-3")

CHECKED = "kglm-graph-3"
"""The format of files that were checked in whole when they were written. Files of other
formats are read and checked in whole, and their lookups derived anew."""

COLUMNS = {
    "edge_key": torch.int64,
    "edge_relation": torch.int32,
    "entity_of": torch.int64,
    "aliases": torch.int32,
}

LOOKUPS = {
    "node_of_entity": torch.int64,
    "has_edges": torch.bool,
    "alias_order": torch.int64,
    "alias_key": torch.int64,
}

NAMES = ("node_names", "relation_names")

BY_ENTITY = ("node_of_entity", "has_edges")
"""Columns that are as long as the models' own tables, and are read with them."""

WINDOWS, WIDTH = 4, 1024
"""Number and rows of the windows of a long column that loading checks."""

Columns = dict[str, Any]
"""``Rows`` of ``COLUMNS`` and perhaps of ``LOOKUPS``, ``PackedNames`` of ``NAMES``, and
the numbers ``num_entities`` and ``num_words``."""


class GraphError(ValueError):
    """A knowledge graph that contradicts itself or its model."""


@dataclass(frozen=True)
class PackedNames(Sequence[str]):
    """Strings in one byte column, decoded one at a time when asked for."""

    text: Rows
    ends: Rows

    @classmethod
    def pack(cls, strings: Iterable[str]) -> PackedNames:
        """Pack strings into one column of bytes."""
        encoded = [s.encode() for s in strings]
        lengths = torch.tensor([len(e) for e in encoded], dtype=torch.long)
        text = torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8)
        return cls(text, lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        """Decode one string, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        # The first begins at 0, which is no end.
        before = self.ends[max(position - 1, 0) : position + 1].tolist()
        start, end = [0, *before][-2:]
        return self.text[start:end].numpy().tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        text, ends = everything(self.text).numpy().tobytes(), everything(self.ends)
        return (text[a:b].decode() for a, b in pairwise([0, *ends.tolist()]))


def write(path: Path, columns: Columns) -> None:
    """Replace the file of a graph, which was checked in whole, atomically."""
    tensors = {
        name: everything(columns[name]).contiguous() for name in (*COLUMNS, *LOOKUPS)
    }
    for name in NAMES:
        tensors[f"{name}.text"] = everything(columns[name].text)
        tensors[f"{name}.ends"] = everything(columns[name].ends)
    for name in ("num_entities", "num_words"):
        tensors[name] = torch.tensor(columns[name])
    # A file that a graph is read from must not change under it.
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"format": CHECKED})


def read(path: Path) -> Columns:
    """Open the columns of a graph; without lookups where it was not checked.

    Raises:
        GraphError: If the file is missing, damaged or contradicts itself.
    """
    if not path.is_file():
        raise GraphError(f"{path} is missing: the checkpoint has no knowledge graph")
    try:
        file = TensorFile(path)
        version = file.metadata.get("format", FORMATS[0])
        if version not in FORMATS:
            raise GraphError(
                f"is of the format {version!a:.40}, which this version of "
                "lm_latent_eval does not know; it reads "
                f"{', '.join(FORMATS)}: update the package"
            )
        checked = version == CHECKED
        columns = _columns(file, checked)
        check(columns, sampled if checked else whole)
    except GraphError as err:
        raise GraphError(f"{path}: {err}") from err
    except Exception as err:
        raise GraphError(
            f"{path} is not a readable graph ({one_line(err)}); was its writing "
            "interrupted? Build it again with the checkpoint"
        ) from err
    return columns


def _columns(file: TensorFile, checked: bool) -> Columns:
    def column(name: str) -> Rows:
        lazy = file.column(name)
        return lazy if checked and name not in BY_ENTITY else lazy.whole()

    columns: Columns = {
        name: column(name) for name in (*COLUMNS, *(LOOKUPS if checked else ()))
    }
    for name in NAMES:
        columns[name] = PackedNames(column(f"{name}.text"), column(f"{name}.ends"))
    for name in ("num_entities", *(["num_words"] if checked else [])):
        columns[name] = int(file.column(name).whole())
    return columns


# -- checks -------------------------------------------------------------------------

Look = Callable[[Rows], Tensor]
"""Windows of a column that a check reads, in order."""

whole = everything


def sampled(column: Rows) -> Tensor:
    """Look at evenly spaced windows, the beginning and the end among them."""
    if len(column) <= WINDOWS * WIDTH:
        return everything(column)
    starts = torch.linspace(0, len(column) - WIDTH, WINDOWS, dtype=torch.float64)
    return torch.cat([column[s : s + WIDTH] for s in starts.long().tolist()])


def check(columns: Mapping[str, Any], look: Look) -> None:
    """Check that the columns of a graph agree.

    Args:
        columns: ``Columns``.
        look: What of each column to look at.

    Raises:
        GraphError: If an id dangles, or columns differ in length or are of no such
            type.
    """
    for name, dtype in (COLUMNS | LOOKUPS).items():
        if name in columns and columns[name].dtype != dtype:
            raise GraphError(f"{name} is {columns[name].dtype}, expected {dtype}")
        if name in columns and columns[name].ndim != (3 if name == "aliases" else 1):
            raise GraphError(
                f"{name} are not word ids of shape (nodes, aliases, words)"
                if name == "aliases"
                else f"{name} is no column"
            )
    for name in NAMES:
        text, ends = columns[name].text, columns[name].ends
        last = ends[-1:].tolist() or [0]
        if _falls(look(ends)) or int(ends[:1].sum()) < 0 or last != [len(text)]:
            raise GraphError(f"{name} do not fill their column of text")
    n, relations = len(columns["entity_of"]), len(columns["relation_names"])
    entities, edge_key = columns["num_entities"], columns["edge_key"]
    if len(edge_key) != len(columns["edge_relation"]):
        raise GraphError(
            f"{len(edge_key)} edges but {len(columns['edge_relation'])} relations"
        )
    if len(columns["aliases"]) != n or len(columns["node_names"]) != n:
        raise GraphError(
            f"{n} nodes, but aliases for {len(columns['aliases'])} and names for "
            f"{len(columns['node_names'])}"
        )
    for what, name, limit in (
        ("an edge's end", "edge_key", n * n),
        ("an edge's relation", "edge_relation", relations),
        ("a node's entity", "entity_of", entities),
    ):
        if outside(look(columns[name]), limit):
            raise GraphError(
                f"a dangling id: {what} is outside of the {n} nodes, "
                f"{relations} relations and {entities} entities"
            )
    aliases = columns["aliases"]
    words = columns.get("num_words", torch.iinfo(aliases.dtype).max)
    if outside(look(aliases), words):
        raise GraphError("aliases are not word ids of shape (nodes, aliases, words)")
    if _falls(look(edge_key)):
        raise GraphError("the edges are not sorted by head and tail")
    if "num_words" in columns:
        _check_lookups(columns, look)


def _check_lookups(columns: Mapping[str, Any], look: Look) -> None:
    node_of, order = columns["node_of_entity"], columns["alias_order"]
    key, aliases = look(columns["alias_key"]), columns["aliases"]
    (n, number, longest), entities = aliases.shape, columns["num_entities"]
    good = (
        len(node_of) == len(columns["has_edges"]) == entities
        and len(order) == len(columns["alias_key"])
        and not outside(look(node_of), n)
        and not outside(look(order), n * number * longest)
        and not _falls(key)
    )
    if good:
        heads, entity = look(node_of), look(torch.arange(entities))
        own = heads != 0
        low = heads * n
        # Of many aliases few: they lie anywhere in their table.
        some = slice(None, None, 16 if len(key) < len(order) else 1)
        entry = look(order)[some]
        words = alias_words(aliases, entry // longest)
        place = (entry % longest)[:, None]
        found = words.gather(1, place).long() * longest + place
        ends = search(columns["edge_key"], torch.stack([low, low + n]))
        good = (
            bool((columns["entity_of"][heads] == entity)[own].all())
            and torch.equal(look(columns["has_edges"]), (ends[1] > ends[0]) & own)
            and torch.equal(found[:, 0], key[some])
        )
    if not good:
        raise GraphError(
            "the lookup columns are not of this graph: copy or build it again"
        )


def alias_words(aliases: Rows, alias: Tensor) -> Tensor:
    """Return the words of aliases (node * A + number), (M, L)."""
    node, number = alias // aliases.shape[1], alias % aliases.shape[1]
    return aliases[node][torch.arange(len(node), device=node.device), number]


def outside(ids: Tensor, limit: int) -> bool:
    """Whether any id is not one of 0 .. limit - 1."""
    if not ids.numel():
        return False
    low, high = torch.aminmax(ids)
    return not 0 <= int(low) <= int(high) < limit


def _falls(column: Tensor) -> bool:
    return bool((column.diff() < 0).any())
