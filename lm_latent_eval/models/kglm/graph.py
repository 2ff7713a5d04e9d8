"""The knowledge graph and its aliases, as a few memory-mapped columns.

Nodes are numbered 0 .. N-1; node 0 is "no entity". A directed edge head -> tail with a
relation is one entry of two columns sorted by (head, tail):

* ``edge_key`` = head * N + tail (int64): the edges of a head, and those from a head to
  a tail, are both one contiguous range, found by binary search;
* ``edge_relation`` (int32).

``aliases`` (N, A, L) holds the words of up to A surface forms of L words a node, as ids
of the extended vocabulary (words the model can utter, then words it can only copy);
0 fills. ``entity_of`` (N,) maps a node to its row in the models' entity embeddings:
the identity for new models, while converted ones share rows among literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lm_latent_eval.models.kglm.ragged import expand_ranges

NO_ENTITY = 0
REFLEXIVE = "@@reflexive@@"
FILE_NAME = "graph.safetensors"
_COLUMNS = ("edge_key", "edge_relation", "entity_of", "aliases")


class GraphError(ValueError):
    """A knowledge graph that contradicts itself or its model."""


@dataclass(frozen=True)
class KnowledgeGraph:
    """Triples and surface forms over numbered nodes."""

    edge_key: Tensor
    edge_relation: Tensor
    entity_of: Tensor
    aliases: Tensor
    node_names: Sequence[str]
    relation_names: Sequence[str]
    num_entities: int
    """E, rows of the entity table, "no entity" included."""
    node_of_entity: Tensor = field(init=False)
    has_edges: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Derive the two lookups."""
        nodes = torch.arange(self.num_nodes, device=self.entity_of.device)
        num_entities = self.num_entities
        # The first node of a row that several share has no row "of its own":
        # such rows (literals, unknown) are never introduced and have no edges.
        shared = torch.bincount(self.entity_of, minlength=num_entities) > 1
        node_of = torch.zeros(
            num_entities, dtype=torch.long, device=self.entity_of.device
        )
        node_of[self.entity_of] = nodes
        node_of[shared] = NO_ENTITY
        object.__setattr__(self, "node_of_entity", node_of)
        starts, ends = self.edge_range(node_of)
        object.__setattr__(self, "has_edges", (ends > starts) & (node_of != NO_ENTITY))

    @property
    def num_nodes(self) -> int:
        """N, "no entity" included."""
        return len(self.entity_of)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.edge_key)

    def edge_range(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the edges of each head start and end, same shape as ``head``."""
        low = head * self.num_nodes
        return (
            torch.searchsorted(self.edge_key, low),
            torch.searchsorted(self.edge_key, low + self.num_nodes),
        )

    def edges_between(self, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the edges head -> tail start and end, elementwise."""
        key = head * self.num_nodes + tail
        return (
            torch.searchsorted(self.edge_key, key),
            torch.searchsorted(self.edge_key, key, right=True),
        )

    def tail(self, edge: Tensor) -> Tensor:
        """Return the tail node of each edge."""
        return self.edge_key[edge] % self.num_nodes

    @cached_property
    def aliases_by_first_word(self) -> tuple[Tensor, Tensor]:
        """Every alias, sorted by its first word: words (M, L) and its node (M,)."""
        words = self.aliases.flatten(0, 1)
        (some,) = (words[:, 0] != 0).nonzero(as_tuple=True)
        order = words[some, 0].argsort(stable=True)
        return words[some[order]].long(), some[order] // self.aliases.shape[1]

    def neighbours(self, head: int) -> list[int]:
        """List the distinct tails of one head, in increasing order."""
        start, end = self.edge_range(torch.tensor([head], device=self.edge_key.device))
        edges, _ = expand_ranges(start, end)
        return [int(node) for node in self.tail(edges).unique()]

    def map(self, function: Callable[[Tensor], Tensor]) -> KnowledgeGraph:
        """Return the graph with a function applied to every column (a move, say)."""
        columns: dict[str, Any] = {
            name: function(getattr(self, name)) for name in _COLUMNS
        }
        return replace(self, **columns)

    @classmethod
    def build(
        cls,
        triples: Iterable[tuple[str, str, str]],
        aliases: Mapping[str, Sequence[Sequence[int]]],
        *,
        nodes: Sequence[str] = (),
        max_aliases: int,
        max_alias_words: int,
        reflexive: bool = True,
        inverse: bool = True,
    ) -> KnowledgeGraph:
        """Build a graph from triples and tokenised surface forms.

        Args:
            triples: (subject, relation, object) by name; repeats count once.
            aliases: Name -> surface forms as word ids, the most common first. Names
                that occur in no triple become nodes without neighbours but themselves.
            nodes: Further names, each a node.
            max_aliases: Keep this many surface forms a node.
            max_alias_words: Keep this many words a surface form.
            reflexive: Add an edge from every node to itself, so that a re-mention is
                derived from the entity itself (as in the KGLM paper).
            inverse: Add object -> subject edges with a relation of their own.
        """
        facts = sorted(set(triples))
        names = sorted(
            {s for s, _, _ in facts}
            | {o for _, _, o in facts}
            | set(aliases)
            | set(nodes)
        )
        relations = sorted({r for _, r, _ in facts})
        node_id = {name: i + 1 for i, name in enumerate(names)}
        rel_id = {name: i + 1 for i, name in enumerate(relations)}
        num_nodes, num_relations = len(names) + 1, len(relations)

        edges = [(node_id[s], rel_id[r], node_id[o]) for s, r, o in facts]
        relation_names = ["@@none@@", *relations]
        if inverse:
            edges += [(o, r + num_relations, s) for s, r, o in edges]
            relation_names += [f"inverse of {name}" for name in relations]
        if reflexive:
            edges += [(n, len(relation_names), n) for n in range(1, num_nodes)]
            relation_names += [REFLEXIVE]
        edges.sort(key=lambda edge: (edge[0], edge[2], edge[1]))

        table = torch.zeros(num_nodes, max_aliases, max_alias_words, dtype=torch.int32)
        for name, forms in aliases.items():
            for a, form in enumerate(forms[:max_aliases]):
                words = torch.tensor(form[:max_alias_words], dtype=torch.int32)
                table[node_id[name], a, : len(words)] = words
        return cls(
            edge_key=torch.tensor(
                [h * num_nodes + t for h, _, t in edges], dtype=torch.long
            ),
            edge_relation=torch.tensor([r for _, r, _ in edges], dtype=torch.int32),
            entity_of=torch.arange(num_nodes),
            aliases=table,
            node_names=["@@none@@", *names],
            relation_names=relation_names,
            num_entities=num_nodes,
        )

    def save(self, directory: Path) -> None:
        """Write the columns and names into a checkpoint directory."""
        columns = {name: getattr(self, name).contiguous() for name in _COLUMNS}
        columns |= _pack_names("node_names", self.node_names)
        columns |= _pack_names("relation_names", self.relation_names)
        columns["num_entities"] = torch.tensor(self.num_entities)
        save_file(columns, directory / FILE_NAME, metadata={"format": "kglm-graph-1"})

    @classmethod
    def load(cls, directory: Path) -> KnowledgeGraph:
        """Map the columns of a checkpoint directory into memory.

        Raises:
            GraphError: If the file is missing, damaged or contradicts itself.
        """
        path = Path(directory) / FILE_NAME
        if not path.is_file():
            raise GraphError(
                f"{path} is missing: the checkpoint has no knowledge graph"
            )
        try:
            columns = load_file(path)
            parts: dict[str, Any] = {name: columns[name] for name in _COLUMNS}
            parts |= {
                "node_names": PackedNames.of(columns, "node_names"),
                "relation_names": list(PackedNames.of(columns, "relation_names")),
                "num_entities": int(columns["num_entities"]),
            }
            check(**parts)
            return cls(**parts)
        except GraphError as err:
            raise GraphError(f"{path}: {err}") from err
        except Exception as err:
            raise GraphError(
                f"{path} is not a readable graph ({err}); was its writing interrupted? "
                "Build it again with the checkpoint"
            ) from err


def check(
    edge_key: Tensor,
    edge_relation: Tensor,
    entity_of: Tensor,
    aliases: Tensor,
    node_names: Sequence[str],
    relation_names: Sequence[str],
    num_entities: int,
) -> None:
    """Check that the columns of a graph agree.

    Raises:
        GraphError: If an id dangles or the columns differ in length.
    """
    n = len(entity_of)
    if len(edge_key) != len(edge_relation):
        raise GraphError(f"{len(edge_key)} edges but {len(edge_relation)} relations")
    if len(aliases) != n or len(node_names) != n:
        raise GraphError(
            f"{n} nodes, but aliases for {len(aliases)} and names for {len(node_names)}"
        )
    for what, ids, limit in (
        ("an edge's end", edge_key, n * n),
        ("an edge's relation", edge_relation, len(relation_names)),
        ("a node's entity", entity_of, num_entities),
    ):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < limit:
            raise GraphError(
                f"a dangling id: {what} is outside of the {n} nodes, "
                f"{len(relation_names)} relations and {num_entities} entities"
            )
    if aliases.ndim != 3 or (aliases.numel() and int(aliases.min()) < 0):
        raise GraphError("aliases are not word ids of shape (nodes, aliases, words)")
    if bool((edge_key.diff() < 0).any()):
        raise GraphError("the edges are not sorted by head and tail")


@dataclass(frozen=True)
class PackedNames(Sequence[str]):
    """Strings in one byte column, decoded one at a time when asked for."""

    text: Tensor
    ends: Tensor

    @classmethod
    def of(cls, columns: Mapping[str, Tensor], name: str) -> PackedNames:
        """Read the two columns of ``name``."""
        text, ends = columns[f"{name}.text"], columns[f"{name}.ends"]
        if bool((ends.diff() < 0).any()) or ends[-1:].tolist() not in ([], [len(text)]):
            raise GraphError(f"{name} do not fill their column of text")
        return cls(text, ends)

    def __len__(self) -> int:
        """Number of strings."""
        return len(self.ends)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        """Decode one string, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start = int(self.ends[position - 1]) if position else 0
        return bytes(self.text[start : int(self.ends[position])].tolist()).decode()


def _pack_names(name: str, strings: Sequence[str]) -> dict[str, Tensor]:
    encoded = [s.encode() for s in strings]
    lengths = torch.tensor([len(e) for e in encoded], dtype=torch.long)
    text = torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8)
    return {f"{name}.text": text, f"{name}.ends": lengths.cumsum(0)}
