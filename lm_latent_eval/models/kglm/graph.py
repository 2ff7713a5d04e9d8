"""The knowledge graph and its aliases, stored as columns.

Nodes are numbered 0 .. N-1; node 0 is "no entity". A directed edge head -> tail with a
relation is one entry of two columns sorted by (head, tail):

* ``edge_key`` = head * N + tail (int64): the edges of a head, and those from a head to
  a tail, are both one contiguous range, found by binary search;
* ``edge_relation`` (int32).

``aliases`` (N, A, L) holds the words of up to A surface forms of L words a node, as ids
of the extended vocabulary (words the model can utter, then words it can only copy);
0 fills. ``entity_of`` (N,) maps a node to its row in the models' entity embeddings:
the identity for new models, while converted ones share rows among literals.

A loaded graph is mapped into memory (``graph_file.py``). It stays on the host, wherever
the model is, since edges are looked up there. Graphs of millions of edges are built
from triples by sorting and indexing columns, 8 bytes an id.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.kglm.graph_file import (
    COLUMNS,
    FILE_NAME,
    LOOKUPS,
    NAMES,
    OF_ANOTHER_GRAPH,
    Columns,
    GraphError,
    PackedNames,
    check,
    check_sizes,
    outside,
    read,
    write,
)

NO_ENTITY = 0


def words_ahead(text: Tensor, longest: int, position: Tensor) -> Tensor:
    """Return the words from positions (M,) of texts (B, T) on, (M, longest); -1: none.

    Positions are numbered through all texts.
    """
    beyond = text.new_full((len(text), longest), -1)
    ahead = torch.cat([text, beyond], 1).unfold(1, longest, 1)
    return ahead[:, : text.shape[1]].flatten(0, 1)[position]


@dataclass(frozen=True)
class Lookups:
    """Indices derived from a graph's columns; deriving them reads every column."""

    node_of_entity: Tensor
    """The node of a row of the entity table, (E,); 0 if several nodes share it."""
    has_edges: Tensor
    """Whether edges leave that node, (E,)."""
    alias_order: Tensor
    """Every word of every alias, (node * A + number) * L + place, sorted by word and
    place, (M,)."""
    alias_key: Tensor
    """Keys of those words and places, word * L + place, (M,)."""
    num_words: int
    """No alias has a word with this id or a larger one."""

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> Lookups:
        """Derive the indices of a graph, reading it in whole."""
        entity_of, num_entities = graph.entity_of, graph.num_entities
        # A row that several nodes share is no node's own: such rows (literals,
        # unknown) are never introduced and have no edges.
        shared = torch.bincount(entity_of, minlength=num_entities) > 1
        node_of = entity_of.new_zeros(num_entities)
        node_of[entity_of] = torch.arange(graph.num_nodes, device=entity_of.device)
        node_of[shared] = NO_ENTITY
        start, end = graph.edge_range(node_of)
        aliases = graph.aliases
        longest, words = aliases.shape[2], aliases.flatten()
        (some,) = words.nonzero(as_tuple=True)
        key = words[some].long() * longest + some % longest
        key, order = key.sort(stable=True)
        return cls(
            node_of_entity=node_of,
            has_edges=(end > start) & (node_of != NO_ENTITY),
            alias_order=some[order],
            alias_key=key,
            num_words=int(aliases.max()) + 1 if aliases.numel() else 0,
        )

    def same_as(self, other: Lookups) -> bool:
        """Whether all indices equal those of another graph."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in LOOKUPS)
        return self.num_words == other.num_words and all(
            torch.equal(ours, theirs) for ours, theirs in pairs
        )


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
    known_lookups: Lookups | None = None
    """From the graph's file; None: to be computed when first needed."""

    @cached_property
    def lookups(self) -> Lookups:
        """Derived indices, from the file or computed on first use."""
        return self.known_lookups or Lookups.of(self)

    @property
    def num_nodes(self) -> int:
        """N, "no entity" included."""
        return len(self.entity_of)

    @property
    def num_edges(self) -> int:
        return len(self.edge_key)

    @property
    def node_of_entity(self) -> Tensor:
        """The node of each row of the entity table, (E,)."""
        return self.lookups.node_of_entity

    @property
    def has_edges(self) -> Tensor:
        """Whether edges leave the node of each row of the entity table, (E,)."""
        return self.lookups.has_edges

    # -- looking up -----------------------------------------------------------------

    def entity(self, node: Tensor) -> Tensor:
        """Return the row of each node in the entity table."""
        return self._inside("entity_of", self.entity_of[node])

    def relation(self, edge: Tensor) -> Tensor:
        """Return the relation of each edge."""
        return self._inside("edge_relation", self.edge_relation[edge])

    def tail(self, edge: Tensor) -> Tensor:
        """Return the tail node of each edge."""
        return self.edge_key[edge] % self.num_nodes

    def alias_words(self, node: Tensor) -> Tensor:
        """Return the aliases of each node, (n, A, L)."""
        return self._inside("aliases", self.aliases[node])

    def edge_range(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the edges of each head start and end, same shape as ``head``."""
        low = head * self.num_nodes
        ends = torch.stack([low, low + self.num_nodes])
        start, end = torch.searchsorted(self.edge_key, ends)
        return start, end

    def edges_between(self, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the edges head -> tail start and end, elementwise."""
        key = head * self.num_nodes + tail
        start = torch.searchsorted(self.edge_key, key)
        return start, torch.searchsorted(self.edge_key, key, right=True)

    def aliases_with(
        self, word: Tensor, end: int, most: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Find the aliases that have one of these words at one of the first places.

        Args:
            word: Extended word ids, (W,).
            end: Number of places.
            most: Words that more aliases have there are not looked up.

        Returns:
            Words of the aliases (M, L), their nodes (M,), which of the W words that is
            (M,), and at which place of the alias (M,).
        """
        _, number, longest = self.aliases.shape
        key = word.long() * longest
        low, high = torch.searchsorted(
            self.lookups.alias_key, torch.stack([key, key + end])
        )
        if most is not None:
            high = torch.where(high - low <= most, high, low)
        entry, which = expand_ranges(low, high)
        entry = self._inside("alias_order", self.lookups.alias_order[entry])
        alias, place = entry // longest, entry % longest
        words = self._inside("aliases", self.aliases[alias // number, alias % number])
        return words, alias // number, which, place

    def _inside(self, column: str, ids: Tensor) -> Tensor:
        """Check ids that a file may have got wrong."""
        what, limit = {
            "aliases": ("an alias's word", self.lookups.num_words),
            "alias_order": ("a word of an alias", math.prod(self.aliases.shape)),
            "edge_relation": ("an edge's relation", len(self.relation_names)),
            "entity_of": ("a node's entity", self.num_entities),
        }[column]
        if outside(ids, limit):
            raise GraphError(
                f"a dangling id: {what} is not one of {limit}; the graph's file is "
                "damaged: copy or build it again"
            )
        return ids

    # -- making and keeping ---------------------------------------------------------

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
            triples: (subject, relation, object) by name, read once; repeats count once.
            aliases: Name -> surface forms as word ids, the most common first. Names
                that occur in no triple become nodes without neighbours but themselves.
            nodes: Further names, each a node.
            max_aliases: Keep this many surface forms a node.
            max_alias_words: Keep this many words a surface form.
            reflexive: Add an edge from every node to itself, so that a re-mention is
                derived from the entity itself (as in the KGLM paper).
            inverse: Add object -> subject edges with a relation of their own.
        """
        numbers, relation_numbers = Numbers(), Numbers()
        subjects, relations, objects = array("q"), array("q"), array("q")
        for s, r, o in triples:
            subjects.append(numbers[s])
            relations.append(relation_numbers[r])
            objects.append(numbers[o])
        owners = array("q", (numbers[name] for name in aliases))
        for name in nodes:
            numbers[name]
        names, node = numbers.in_order()
        relation_names, relation_id = relation_numbers.in_order()
        num_nodes, num_relations = len(names) + 1, len(relation_names)

        head, tail = node[_tensor(subjects)], node[_tensor(objects)]
        relation = relation_id[_tensor(relations)]
        relation_names = [NOTHING, *relation_names]
        if inverse:
            head, tail = torch.cat([head, tail]), torch.cat([tail, head])
            relation = torch.cat([relation, relation + num_relations])
            relation_names += [f"inverse of {name}" for name in relation_names[1:]]
        if reflexive:
            every = torch.arange(1, num_nodes)
            head, tail = torch.cat([head, every]), torch.cat([tail, every])
            last = torch.full_like(every, len(relation_names))
            relation = torch.cat([relation, last])
            relation_names += [REFLEXIVE]
        edge_key, edge_relation = _distinct(head * num_nodes + tail, relation)
        return cls(
            edge_key=edge_key,
            edge_relation=edge_relation.int(),
            entity_of=torch.arange(num_nodes),
            aliases=alias_table(
                zip(node[_tensor(owners)].tolist(), aliases.values(), strict=True),
                (num_nodes, max_aliases, max_alias_words),
            ),
            node_names=[NOTHING, *names],
            relation_names=relation_names,
            num_entities=num_nodes,
        )

    def check(self) -> Columns:
        """Check the graph in whole.

        Returns:
            Its columns, without lookups.

        Raises:
            GraphError: If it contradicts itself.
        """
        columns: Columns = {n: getattr(self, n) for n in COLUMNS}
        columns["num_entities"] = self.num_entities
        for name in NAMES:
            try:
                names = list(getattr(self, name))
            except UnicodeDecodeError as err:
                raise GraphError(f"{name} are not UTF-8 ({err})") from err
            columns[name] = PackedNames.pack(names)
        check_sizes(columns)
        check(columns)
        if self.known_lookups and not self.known_lookups.same_as(Lookups.of(self)):
            raise GraphError(OF_ANOTHER_GRAPH)
        return columns

    def save(self, directory: Path) -> None:
        """Check the graph in whole and write it into a checkpoint directory.

        Raises:
            GraphError: If it contradicts itself.
        """
        columns = self.check() | {n: getattr(self.lookups, n) for n in LOOKUPS}
        columns["num_words"] = self.lookups.num_words
        write(Path(directory) / FILE_NAME, columns)

    @classmethod
    def load(cls, directory: Path) -> KnowledgeGraph:
        """Open the columns of a checkpoint directory.

        Raises:
            GraphError: If the file is missing, damaged or contradicts itself.
        """
        path = Path(directory) / FILE_NAME
        columns = read(path)
        try:
            columns["relation_names"] = list(columns["relation_names"])
        except UnicodeDecodeError as err:
            raise GraphError(f"{path}: names of relations are not UTF-8") from err
        if "num_words" in columns:
            found = {name: columns.pop(name) for name in (*LOOKUPS, "num_words")}
            columns["known_lookups"] = Lookups(**found)
        return cls(**columns)


# -- construction from triples ------------------------------------------------------

REFLEXIVE = "@@reflexive@@"

NOTHING = "@@none@@"


class Numbers(dict[str, int]):
    """Assigns numbers to strings in the order of first use."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number

    def in_order(self) -> tuple[list[str], Tensor]:
        """Return the strings sorted, and each number's place among them from 1 on."""
        names = sorted(self)
        place = torch.empty(len(self), dtype=torch.long)
        place[torch.tensor([self[n] for n in names], dtype=torch.long)] = torch.arange(
            1, len(self) + 1
        )
        return names, place


def _tensor(numbers: array[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _distinct(key: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by (key, relation) and drop repetitions."""
    order = relation.argsort(stable=True)
    order = order[key[order].argsort(stable=True)]
    key, relation = key[order], relation[order]
    first = torch.ones(len(key), dtype=torch.bool)
    first[1:] = (key.diff() != 0) | (relation.diff() != 0)
    return key[first], relation[first]


def alias_table(
    forms: Iterable[tuple[int, Sequence[Sequence[int]]]], shape: tuple[int, int, int]
) -> Tensor:
    """Write surface forms into a table (N, A, L), cut to its size."""
    _, max_aliases, max_words = shape
    place, words = array("q"), array("q")
    for node, several in forms:
        for a, form in enumerate(several[:max_aliases]):
            start = (node * max_aliases + a) * max_words
            place.extend(range(start, start + min(len(form), max_words)))
            words.extend(form[:max_words])
    table = torch.zeros(shape, dtype=torch.int32)
    table.view(-1)[_tensor(place)] = _tensor(words).int()
    return table
