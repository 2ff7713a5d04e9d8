"""Knowledge graphs on disk: the columns of a graph in one safetensors file.

A file is checked in whole when it is written, and says so by its format. It is mapped
into memory: of a large graph only the pages that are looked up are read. Loading it
checks sizes and types; ids are checked where they are used (``KnowledgeGraph``). Files
of older formats are read and checked in whole, and their lookups derived anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lm_latent_eval.files import one_line, replacing

FILE_NAME = "graph.safetensors"

FORMATS = ("kglm-graph-1", "kglm-graph-2", "kglm-graph-3")

CHECKED = "kglm-graph-3"
"""Format of files that were checked in whole when they were written."""

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

Columns = dict[str, Any]
"""Tensors of ``COLUMNS`` and perhaps of ``LOOKUPS``, ``PackedNames`` of ``NAMES``, and
the numbers ``num_entities`` and ``num_words``."""


OF_ANOTHER_GRAPH = "the lookup columns are not of this graph: copy or build it again"


class GraphError(ValueError):
    """A knowledge graph that contradicts itself or its model."""


@dataclass(frozen=True)
class PackedNames(Sequence[str]):
    """Strings in one byte column, decoded one at a time when asked for."""

    text: Tensor
    ends: Tensor

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
        text = self.text.numpy().tobytes()
        return (text[a:b].decode() for a, b in pairwise([0, *self.ends.tolist()]))


def write(path: Path, columns: Columns) -> None:
    """Replace the file of a graph, which was checked in whole, atomically."""
    tensors = {name: columns[name].contiguous() for name in (*COLUMNS, *LOOKUPS)}
    for name in NAMES:
        tensors[f"{name}.text"] = columns[name].text
        tensors[f"{name}.ends"] = columns[name].ends
    for name in ("num_entities", "num_words"):
        tensors[name] = torch.tensor(columns[name])
    # A file that a graph is read from must not change under it.
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"format": CHECKED})


def read(path: Path) -> Columns:
    """Map the columns of a graph; without lookups where it was not checked.

    Raises:
        GraphError: If the file is missing, damaged or contradicts itself.
    """
    if not path.is_file():
        raise GraphError(f"{path} is missing: the checkpoint has no knowledge graph")
    try:
        with safe_open(path, "pt") as file:
            version = (file.metadata() or {}).get("format", FORMATS[0])
            if version not in FORMATS:
                raise GraphError(
                    f"is of the format {version!a:.40}, which this version of "
                    "lm_latent_eval does not know; it reads "
                    f"{', '.join(FORMATS)}: update the package"
                )
            checked = version == CHECKED
            columns: Columns = {
                name: file.get_tensor(name)
                for name in (*COLUMNS, *(LOOKUPS if checked else ()))
            }
            for name in NAMES:
                text, ends = (file.get_tensor(f"{name}.{x}") for x in ("text", "ends"))
                columns[name] = PackedNames(text, ends)
            for name in ("num_entities", *(["num_words"] if checked else [])):
                columns[name] = int(file.get_tensor(name))
        check_sizes(columns)
        if not checked:
            check(columns)
    except GraphError as err:
        raise GraphError(f"{path}: {err}") from err
    except Exception as err:
        raise GraphError(
            f"{path} is not a readable graph ({one_line(err)}); was its writing "
            "interrupted? Build it again with the checkpoint"
        ) from err
    return columns


# -- checks -------------------------------------------------------------------------


def check_sizes(columns: Mapping[str, Any]) -> None:
    """Check that the columns of a graph are of one size, and of their types.

    Raises:
        GraphError: If one is not.
    """
    for name, dtype in (COLUMNS | LOOKUPS).items():
        if name not in columns:
            continue
        if columns[name].dtype != dtype:
            raise GraphError(f"{name} is {columns[name].dtype}, expected {dtype}")
        if columns[name].ndim != (3 if name == "aliases" else 1):
            raise GraphError(
                f"{name} are not word ids of shape (nodes, aliases, words)"
                if name == "aliases"
                else f"{name} is no column"
            )
    n, edges = len(columns["entity_of"]), len(columns["edge_key"])
    if edges != len(columns["edge_relation"]):
        raise GraphError(f"{edges} edges but {len(columns['edge_relation'])} relations")
    if len(columns["aliases"]) != n or len(columns["node_names"]) != n:
        raise GraphError(
            f"{n} nodes, but aliases for {len(columns['aliases'])} and names for "
            f"{len(columns['node_names'])}"
        )
    for name in NAMES:
        text, ends = columns[name].text, columns[name].ends
        types = text.dtype, ends.dtype
        if types != (torch.uint8, torch.int64):
            raise GraphError(f"{name} are {types}, expected bytes and their ends")
        if (ends[-1:].tolist() or [0]) != [len(text)]:
            raise GraphError(f"{name} do not fill their column of text")
    if "num_words" in columns and not (
        len(columns["node_of_entity"])
        == len(columns["has_edges"])
        == columns["num_entities"]
        and len(columns["alias_order"]) == len(columns["alias_key"])
        and not outside(columns["node_of_entity"], n)
    ):
        raise GraphError(OF_ANOTHER_GRAPH)


def check(columns: Mapping[str, Any]) -> None:
    """Check what the columns of a graph hold, lookups aside.

    Raises:
        GraphError: If an id dangles, edges are not sorted, or names overlap.
    """
    for name in NAMES:
        ends = columns[name].ends
        if _falls(ends) or int(ends[:1].sum()) < 0:
            raise GraphError(f"{name} do not fill their column of text")
    n, relations = len(columns["entity_of"]), len(columns["relation_names"])
    entities = columns["num_entities"]
    for what, name, limit in (
        ("an edge's end", "edge_key", n * n),
        ("an edge's relation", "edge_relation", relations),
        ("a node's entity", "entity_of", entities),
    ):
        if outside(columns[name], limit):
            raise GraphError(
                f"a dangling id: {what} is outside of the {n} nodes, "
                f"{relations} relations and {entities} entities"
            )
    if outside(columns["aliases"], torch.iinfo(torch.int32).max):
        raise GraphError("aliases are not word ids of shape (nodes, aliases, words)")
    if _falls(columns["edge_key"]):
        raise GraphError("the edges are not sorted by head and tail")


def outside(ids: Tensor, limit: int) -> bool:
    """Whether any id is not one of 0 .. limit - 1."""
    if not ids.numel():
        return False
    low, high = torch.aminmax(ids)
    return not 0 <= int(low) <= int(high) < limit


def _falls(column: Tensor) -> bool:
    return bool((column.diff() < 0).any())
