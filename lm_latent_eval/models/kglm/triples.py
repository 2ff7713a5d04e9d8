"""Construction of graph columns from triples and names, for millions of edges.

Names are read once and numbered as they come; all that follows is sorting and indexing
of columns of numbers, 8 bytes an id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.models.kglm.graph_file import Columns

REFLEXIVE = "@@reflexive@@"
NOTHING = "@@none@@"


class Numbers(dict[str, int]):
    """Numbers strings in the order in which they are first asked for."""

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


def columns_of(
    triples: Iterable[tuple[str, str, str]],
    aliases: Mapping[str, Sequence[Sequence[int]]],
    *,
    nodes: Sequence[str],
    max_aliases: int,
    max_alias_words: int,
    reflexive: bool,
    inverse: bool,
) -> Columns:
    """Return the columns of a graph; see ``KnowledgeGraph.build``."""
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
        relation = torch.cat([relation, torch.full_like(every, len(relation_names))])
        relation_names += [REFLEXIVE]
    edge_key, edge_relation = _distinct(head * num_nodes + tail, relation)
    return {
        "edge_key": edge_key,
        "edge_relation": edge_relation.int(),
        "entity_of": torch.arange(num_nodes),
        "aliases": _alias_table(
            zip(node[_tensor(owners)].tolist(), aliases.values(), strict=True),
            (num_nodes, max_aliases, max_alias_words),
        ),
        "node_names": [NOTHING, *names],
        "relation_names": relation_names,
        "num_entities": num_nodes,
    }


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


def _alias_table(
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
