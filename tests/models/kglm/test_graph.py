"""The knowledge graph: built, searched, written, mapped, refused if damaged."""

from __future__ import annotations

import json
import struct
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.kglm.graph import REFLEXIVE, KnowledgeGraph
from lm_latent_eval.models.kglm.graph_file import (
    CHECKED,
    COLUMNS,
    FILE_NAME,
    FORMATS,
    LOOKUPS,
    GraphError,
)
from tests import large_graph
from tests.limits import at_most
from tests.memory import measured, on_linux

FACTS = [
    ("Ada", "knows", "Bo"),
    ("Ada", "likes", "Bo"),
    ("Bo", "likes", "Ünnürup/東京"),
    ("Bo", "likes", "Bo"),
]
ALIASES = {"Ada": [[4, 5], [6], [7]], "Zoë 🦊": [[9, 8, 7, 6]]}
NAMES = st.sampled_from(["a", "b", "ç", "d🦊", "e f"])
TRIPLES = st.lists(st.tuples(NAMES, st.sampled_from(["r", "s"]), NAMES), max_size=8)


def build(triples=FACTS, aliases=ALIASES, **options) -> KnowledgeGraph:
    options = {"max_aliases": 2, "max_alias_words": 3, **options}
    return KnowledgeGraph.build(triples, aliases, **options)


def named_edges(graph: KnowledgeGraph) -> Counter[tuple[str, str, str]]:
    heads = (graph.edge_key // graph.num_nodes).tolist()
    tails = graph.tail(torch.arange(graph.num_edges)).tolist()
    relations = graph.edge_relation.tolist()
    return Counter(
        (graph.node_names[h], graph.relation_names[r], graph.node_names[t])
        for h, r, t in zip(heads, relations, tails, strict=True)
    )


# -- building and searching -----------------------------------------------------------


def test_edges_names_and_aliases():
    graph = build(FACTS * 2, nodes=["Cy"], reflexive=False, inverse=False)
    assert list(graph.node_names) == [
        *("@@none@@", "Ada", "Bo", "Cy", "Zoë 🦊", "Ünnürup/東京")
    ]
    assert graph.relation_names == ["@@none@@", "knows", "likes"]
    assert named_edges(graph) == Counter(FACTS), "repeated facts count once"
    assert graph.has_edges.tolist() == [False, True, True, False, False, False]
    assert graph.num_entities == graph.num_nodes == 6
    nothing = [[0, 0, 0], [0, 0, 0]]
    assert graph.aliases.tolist() == [
        nothing,
        [[4, 5, 0], [6, 0, 0]],  # the third form is dropped
        *(nothing, nothing),
        [[9, 8, 7], [0, 0, 0]],  # the fourth word is dropped
        nothing,
    ]
    graph, wanted = build(), Counter(FACTS)
    wanted.update((o, f"inverse of {r}", s) for s, r, o in FACTS)
    wanted.update((name, REFLEXIVE, name) for name in graph.node_names[1:])
    assert named_edges(graph) == wanted
    assert graph.relation_names[-1] == REFLEXIVE


def test_shared_rows_are_nobody():
    """Nodes that share a row of the entity table are not introduced by it."""
    graph = build(reflexive=False, inverse=False)
    names = ("edge_key", "edge_relation", "aliases", "node_names", "relation_names")
    columns = {name: getattr(graph, name) for name in names}
    rows = torch.tensor([0, 1, 2, 3, 3])
    shared = KnowledgeGraph(**columns, entity_of=rows, num_entities=4)
    assert shared.node_of_entity.tolist() == [0, 1, 2, 0]
    assert shared.has_edges.tolist() == [False, True, True, False]


@given(TRIPLES, st.booleans(), st.booleans())
def test_edges_are_found_as_by_looking_at_all(triples, reflexive, inverse):
    graph = build(triples, {}, nodes=["alone"], reflexive=reflexive, inverse=inverse)
    n = graph.num_nodes
    key = graph.edge_key.tolist()
    head, tail = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    edge, pair = expand_ranges(*graph.edges_between(head, tail))
    found = [edge[pair == i].tolist() for i in range(n * n)]
    assert found == [[e for e, k in enumerate(key) if k == i] for i in range(n * n)]

    edge, row = expand_ranges(*graph.edge_range(torch.arange(n)))
    assert edge.tolist() == list(range(graph.num_edges))
    assert row.tolist() == [k // n for k in key]


def test_words_lead_to_nodes():
    names = {"A": [[7, 8, 9], [9]], "B": [[5, 8, 8]], "C": [[8], [6, 7]], "D": [[6, 7]]}
    graph = KnowledgeGraph.build([], names, max_aliases=2, max_alias_words=3)
    word = torch.tensor([8, 7, 0, -1, 9])

    def found(most):
        columns = graph.aliases_with(word, 2, most)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return sorted(
            (w, graph.node_names[n], place, words) for words, n, w, place in rows
        )

    of_eight = [(0, "A", 1, [7, 8, 9]), (0, "B", 1, [5, 8, 8]), (0, "C", 0, [8, 0, 0])]
    of_seven = [(1, "A", 0, [7, 8, 9]), (1, "C", 1, [6, 7, 0]), (1, "D", 1, [6, 7, 0])]
    others = [(4, "A", 0, [9, 0, 0])]
    assert found(3) == of_eight + of_seven + others
    assert found(2) == others, "of words that many aliases have none"


# -- files of graphs ----------------------------------------------------------------


def contents(graph: KnowledgeGraph) -> list[object]:
    columns = [getattr(graph, name) for name in COLUMNS]
    columns += [getattr(graph.lookups, name) for name in LOOKUPS]
    names = [*graph.node_names], [*graph.relation_names]
    numbers = graph.num_entities, graph.lookups.num_words
    return [*(column.tolist() for column in columns), names, numbers]


@pytest.mark.parametrize("facts", [FACTS, []])
def test_a_saved_graph_is_the_same(tmp_path, facts):
    graph = build(facts, ALIASES if facts else {})
    graph.save(tmp_path)
    again = KnowledgeGraph.load(tmp_path)
    assert contents(again) == contents(graph)
    again.save(tmp_path)  # over the file that it is read from
    assert contents(KnowledgeGraph.load(tmp_path)) == contents(graph)


def rewrite(folder, version: str | None = None, **changes) -> None:
    """Save a graph with some columns replaced; None leaves one out."""
    columns = load_file(folder / FILE_NAME) | changes
    columns = {k: v.clone() for k, v in columns.items() if v is not None}
    save_file(columns, folder / FILE_NAME, version and {"format": version})


CONTRADICTIONS = [
    ("edge_key", lambda x: x.flip(0).contiguous(), "not sorted"),
    ("edge_key", lambda x: torch.cat([x[:-1], x.new_tensor([25])]), "dangling id"),
    ("edge_key", lambda x: x[:-1], "11 edges but 12 relations"),
    ("edge_key", lambda x: x.int(), "edge_key is torch.int32, expected torch.int64"),
    ("edge_relation", lambda x: x + 4, "dangling id: an edge's relation"),
    ("entity_of", lambda x: x + 1, "dangling id: a node's entity"),
    ("entity_of", lambda x: x[:-1], "4 nodes, but aliases for 5"),
    ("aliases", lambda x: x - 1, "aliases are not word ids"),
    ("aliases", lambda x: x[:, 0], "aliases are not word ids"),
    ("node_names.ends", lambda x: x + 99, "node_names do not fill"),
    ("relation_names.ends", lambda x: x.flip(0), "relation_names do not fill"),
    ("relation_names.text", lambda x: None, "not a readable graph"),
    ("relation_names.text", lambda x: x.bfloat16(), "expected bytes and their ends"),
    ("node_names.ends", lambda x: x.int(), "expected bytes and their ends"),
    ("relation_names.text", lambda x: x | 128, "names of relations are not UTF-8"),
]
OF_ANOTHER_GRAPH = [
    ("has_edges", lambda x: x & False),
    ("node_of_entity", lambda x: x.clamp_max(1)),
    ("alias_key", lambda x: x + 1),
    ("alias_order", lambda x: x.flip(0)),
    *((name, lambda x: x[:-1]) for name in ("node_of_entity", "alias_order")),
]


@pytest.mark.parametrize("version", [None, *FORMATS])
@pytest.mark.parametrize(("column", "change", "message"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(tmp_path, column, change, message, version):
    """A file that says that it was checked is checked again when it is saved."""
    build().save(tmp_path)
    changed = change(load_file(tmp_path / FILE_NAME)[column])
    rewrite(tmp_path, version, **{column: changed})
    with pytest.raises(GraphError, match=message) as caught:
        found = KnowledgeGraph.load(tmp_path)
        assert version == CHECKED
        found.save(tmp_path / "again")
    assert version == CHECKED or str(tmp_path / FILE_NAME) in str(caught.value)


@pytest.mark.parametrize(("column", "change"), OF_ANOTHER_GRAPH)
def test_lookups_of_another_graph_are_refused(tmp_path, column, change):
    build().save(tmp_path)
    changed = change(load_file(tmp_path / FILE_NAME)[column])
    rewrite(tmp_path, CHECKED, **{column: changed})
    with pytest.raises(GraphError, match="the lookup columns are not of this graph"):
        KnowledgeGraph.load(tmp_path).save(tmp_path / "again")
    rewrite(tmp_path, FORMATS[0])
    again = contents(KnowledgeGraph.load(tmp_path))
    assert again == contents(build()), "looked up again, not read"


USED = {"edge_relation": "relation", "entity_of": "entity", "aliases": "alias_words"}


@pytest.mark.parametrize("column", USED)
@pytest.mark.parametrize("bad", [-1, 10**8])
def test_an_id_is_checked_when_used(tmp_path, column, bad):
    graph, place = large_graph.graph(20_000, 20_000 - 1), 2500
    graph.save(tmp_path)
    damaged = getattr(graph, column).clone()
    damaged[place] = bad
    rewrite(tmp_path, CHECKED, **{column: damaged})
    look = getattr(KnowledgeGraph.load(tmp_path), USED[column])
    look(torch.tensor([1, place - 1]))
    with pytest.raises(GraphError, match=r"dangling id: an?.* is damaged: copy or"):
        look(torch.tensor([1, place]))


def test_a_graph_that_is_replaced_while_in_use_is_the_old_one(tmp_path):
    wanted = large_graph.graph(20_000, 100_000)
    wanted.save(tmp_path)
    graph = KnowledgeGraph.load(tmp_path)
    large_graph.graph(20_000, 100_000, seed=1).save(tmp_path)
    every = torch.arange(wanted.num_edges)
    assert torch.equal(graph.tail(every), wanted.tail(every))


@on_linux
def test_what_is_not_looked_at_is_not_read(tmp_path):
    """A column of 80 MB, of which two edges are looked up."""
    large_graph.graph(1000, 10_000_000).save(tmp_path)
    code = """
from pathlib import Path
import torch
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
before = memory("VmHWM")
graph = KnowledgeGraph.load(Path(sys.argv[1]))
assert graph.tail(torch.tensor([7, 5_000_000])).shape == (2,)
print(json.dumps(memory("VmHWM") - before))
"""
    assert measured(code, tmp_path) < 20_000_000


# -- hostile files --------------------------------------------------------------------


def header(contents: bytes) -> bytes:
    return struct.pack("<Q", len(contents)) + contents


def columns_of(dtype: str, shape: int, ends: list[int]) -> bytes:
    entry = {"dtype": dtype, "shape": [shape], "data_offsets": ends}
    return header(json.dumps({"edge_key": entry}).encode())


HOSTILE = {
    "empty": b"",
    "a header of an exabyte": struct.pack("<Q", 1 << 60) + b"{}",
    "deep JSON": header(b"[" * 100_000),
    "no table": header(b"[]"),
    "numbers of no known kind": columns_of("F32", 1, [0, 4]),
    "numbers of a terabyte": columns_of("I64", 1 << 37, [0, 1 << 40]),
    "a negative size": columns_of("I64", -1, [8, 0]) + bytes(8),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_graphs_are_refused(tmp_path, kind):
    (tmp_path / FILE_NAME).write_bytes(HOSTILE[kind])
    with (
        at_most(1 << 28),
        pytest.raises(GraphError, match=r"graph\.safetensors is not a readable graph"),
    ):
        KnowledgeGraph.load(tmp_path)


def test_a_missing_or_newer_graph_says_what_to_do(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.safetensors is missing"):
        KnowledgeGraph.load(tmp_path)
    build().save(tmp_path)
    rewrite(tmp_path, "kglm-graph-4")
    with pytest.raises(GraphError, match=r"format 'kglm-graph-4'.*update the package"):
        KnowledgeGraph.load(tmp_path)
