"""The knowledge graph: built, searched, written and read."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.kglm.graph import (
    FILE_NAME,
    REFLEXIVE,
    GraphError,
    KnowledgeGraph,
)
from lm_latent_eval.models.kglm.graph_file import (
    CHECKED,
    FORMATS,
    WIDTH,
    WINDOWS,
    everything,
    sampled,
)
from tests import large_graph
from tests.tiny_models import damage

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
    heads = graph.edge_key // graph.num_nodes
    tails = graph.tail(torch.arange(graph.num_edges))
    return Counter(
        (graph.node_names[h], graph.relation_names[r], graph.node_names[t])
        for h, r, t in zip(
            heads.tolist(), graph.edge_relation.tolist(), tails.tolist(), strict=True
        )
    )


# -- building -----------------------------------------------------------------------


def test_plain_edges_and_names():
    graph = build(nodes=["Cy"], reflexive=False, inverse=False)
    assert list(graph.node_names) == [
        *("@@none@@", "Ada", "Bo", "Cy", "Zoë 🦊", "Ünnürup/東京")
    ]
    assert graph.relation_names == ["@@none@@", "knows", "likes"]
    assert named_edges(graph) == Counter(FACTS)
    assert graph.has_edges.tolist() == [False, True, True, False, False, False]
    assert graph.num_entities == graph.num_nodes == 6
    assert (graph.edge_key.diff() >= 0).all()


def test_reflexive_and_inverse_edges():
    graph = build()
    wanted = Counter(FACTS)
    wanted.update((o, f"inverse of {r}", s) for s, r, o in FACTS)
    wanted.update((name, REFLEXIVE, name) for name in graph.node_names[1:])
    assert named_edges(graph) == wanted
    assert graph.has_edges.tolist() == [False] + [True] * 4
    assert graph.relation_names[-1] == REFLEXIVE


def test_aliases_are_cut_to_size():
    graph = build()
    assert graph.aliases.tolist() == [
        [[0, 0, 0], [0, 0, 0]],
        [[4, 5, 0], [6, 0, 0]],  # the third form is dropped
        [[0, 0, 0], [0, 0, 0]],
        [[9, 8, 7], [0, 0, 0]],  # the fourth word is dropped
        [[0, 0, 0], [0, 0, 0]],
    ]


def test_repeated_facts_count_once():
    assert build(FACTS * 2).num_edges == build().num_edges


def test_a_graph_of_nothing():
    graph = build([], {})
    assert (graph.num_nodes, graph.num_edges) == (1, 0)
    assert graph.has_edges.tolist() == [False]


def test_neighbours_are_distinct_and_in_order():
    graph = build(reflexive=False)
    assert [graph.neighbours(n) for n in range(5)] == [[], [2], [1, 2, 4], [], [2]]


def test_shared_rows_are_nobody():
    """Nodes that share a row of the entity table are not introduced by it."""
    graph = build(reflexive=False, inverse=False)
    columns = {name: getattr(graph, name) for name in ("edge_key", "edge_relation")}
    shared = KnowledgeGraph(
        **columns,
        entity_of=torch.tensor([0, 1, 2, 3, 3]),
        aliases=graph.aliases,
        node_names=graph.node_names,
        relation_names=graph.relation_names,
        num_entities=4,
    )
    assert shared.node_of_entity.tolist() == [0, 1, 2, 0]
    assert shared.has_edges.tolist() == [False, True, True, False]


# -- searching ----------------------------------------------------------------------


@given(TRIPLES, st.booleans(), st.booleans())
def test_edges_are_found_as_by_looking_at_all(triples, reflexive, inverse):
    graph = build(triples, {}, nodes=["alone"], reflexive=reflexive, inverse=inverse)
    n = graph.num_nodes
    key = graph.edge_key.tolist()
    head, tail = (
        x.flatten() for x in torch.meshgrid(*[torch.arange(n)] * 2, indexing="ij")
    )
    edge, pair = expand_ranges(*graph.edges_between(head, tail))
    found = [edge[pair == i].tolist() for i in range(n * n)]
    assert found == [[e for e, k in enumerate(key) if k == i] for i in range(n * n)]

    edge, row = expand_ranges(*graph.edge_range(torch.arange(n)))
    assert edge.tolist() == list(range(graph.num_edges))
    assert row.tolist() == [k // n for k in key]


def test_parallel_edges_lie_together():
    graph = build(reflexive=False, inverse=False)
    start, end = graph.edges_between(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert (end - start).tolist() == [2, 0]
    relations = graph.edge_relation[start[0] : end[0]]
    assert [graph.relation_names[r] for r in relations] == ["knows", "likes"]


# -- files ------------------------------------------------------------------------


def same(ours: KnowledgeGraph, wanted: KnowledgeGraph) -> bool:
    columns = ("edge_key", "edge_relation", "entity_of", "aliases")
    return (
        all(
            torch.equal(everything(getattr(ours, c)), everything(getattr(wanted, c)))
            for c in columns
        )
        and list(ours.node_names) == list(wanted.node_names)
        and list(ours.relation_names) == list(wanted.relation_names)
        and ours.num_entities == wanted.num_entities
        and all(
            torch.equal(
                everything(getattr(ours.lookups, name)),
                everything(getattr(wanted.lookups, name)),
            )
            for name in ("node_of_entity", "has_edges", "alias_order", "alias_first")
        )
        and ours.lookups.num_words == wanted.lookups.num_words
    )


@pytest.mark.parametrize("facts", [FACTS, []])
def test_a_saved_graph_is_the_same(tmp_path, facts):
    graph = build(facts, ALIASES if facts else {})
    graph.save(tmp_path)
    again = KnowledgeGraph.load(tmp_path)
    assert same(again, graph)
    again.save(tmp_path)
    assert same(KnowledgeGraph.load(tmp_path), graph), (
        "written over the file it is read from"
    )


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True))
def test_names_are_kept_whatever_they_are(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("graph")
    graph = build([], {}, nodes=names)
    graph.save(folder)
    packed = KnowledgeGraph.load(folder).node_names
    assert list(packed) == ["@@none@@", *sorted(names)]
    assert len(packed) == len(names) + 1
    assert packed[-1] == list(packed)[-1]
    assert packed[1:] == list(packed)[1:]
    with pytest.raises(IndexError):
        packed[len(packed)]


def rewrite(folder, version: str | None = None, **changes) -> None:
    """Save a graph with some columns replaced; None leaves one out."""
    columns = load_file(folder / FILE_NAME) | changes
    columns = {k: v.clone() for k, v in columns.items() if v is not None}
    save_file(columns, folder / FILE_NAME, version and {"format": version})


def last(value):
    """Return a change of the last number of a column."""

    def change(column):
        column = column.clone()
        column.view(-1)[-1] = value
        return column

    return change


CONTRADICTIONS = [
    ("edge_key", lambda x: x.flip(0).contiguous(), "not sorted"),
    ("edge_key", lambda x: torch.cat([x[:-1], x.new_tensor([25])]), "dangling id"),
    ("edge_key", lambda x: torch.cat([x.new_tensor([-1]), x[1:]]), "dangling id"),
    ("edge_key", lambda x: x[:-1], "11 edges but 12 relations"),
    ("edge_key", lambda x: x.int(), "edge_key is torch.int32, expected torch.int64"),
    ("edge_relation", lambda x: x + 4, "dangling id: an edge's relation"),
    ("entity_of", lambda x: x + 1, "dangling id: a node's entity"),
    ("entity_of", lambda x: x - 1, "dangling id: a node's entity"),
    ("entity_of", lambda x: x[:-1], "4 nodes, but aliases for 5"),
    ("aliases", lambda x: x[:-1], "5 nodes, but aliases for 4"),
    ("aliases", lambda x: x - 1, "aliases are not word ids"),
    ("aliases", lambda x: x[:, 0], "aliases are not word ids"),
    ("node_names.ends", lambda x: x[:-1], "node_names do not fill"),
    ("node_names.ends", lambda x: x + 99, "node_names do not fill"),
    ("relation_names.ends", lambda x: x.flip(0), "relation_names do not fill"),
    ("num_entities", lambda x: x - 1, "dangling id: a node's entity"),
    ("edge_key", lambda x: None, "not a readable graph"),
    ("relation_names.text", lambda x: None, "not a readable graph"),
]
OF_ANOTHER_GRAPH = [
    ("node_of_entity", last(5)),
    ("node_of_entity", last(1)),
    ("node_of_entity", lambda x: x[:-1]),
    ("has_edges", last(False)),
    ("has_edges", lambda x: x[:-1]),
    ("alias_order", last(10)),
    ("alias_order", last(0)),
    ("alias_order", lambda x: x[:-1]),
    ("alias_first", lambda x: x.flip(0)),
    ("alias_first", last(99)),
]


@pytest.mark.parametrize("version", [None, *FORMATS])
@pytest.mark.parametrize(("column", "change", "message"), CONTRADICTIONS)
def test_a_graph_that_contradicts_itself_is_refused(
    tmp_path, column, change, message, version
):
    build().save(tmp_path)
    changed = change(load_file(tmp_path / FILE_NAME)[column])
    rewrite(tmp_path, version, **{column: changed})
    with pytest.raises(GraphError, match=message) as caught:
        KnowledgeGraph.load(tmp_path)
    assert str(tmp_path / FILE_NAME) in str(caught.value)


@pytest.mark.parametrize(("column", "change"), OF_ANOTHER_GRAPH)
def test_lookups_of_another_graph_are_refused(tmp_path, column, change):
    build().save(tmp_path)
    changed = change(load_file(tmp_path / FILE_NAME)[column])
    rewrite(tmp_path, CHECKED, **{column: changed})
    with pytest.raises(GraphError, match="the lookup columns are not of this graph"):
        KnowledgeGraph.load(tmp_path)
    rewrite(tmp_path, FORMATS[0])
    assert same(KnowledgeGraph.load(tmp_path), build()), "looked up again, not read"


def test_a_graph_without_lookups_is_read(tmp_path):
    """Files of the first format, the demonstration's among them, have none."""
    build().save(tmp_path)
    lookups = ("node_of_entity", "has_edges", "alias_order", "alias_first", "num_words")
    rewrite(tmp_path, FORMATS[0], **dict.fromkeys(lookups))
    assert same(KnowledgeGraph.load(tmp_path), build())
    KnowledgeGraph.load(CHECKPOINT).save(tmp_path)
    assert same(KnowledgeGraph.load(tmp_path), KnowledgeGraph.load(CHECKPOINT))


def test_a_newer_format_asks_for_a_newer_package(tmp_path):
    build().save(tmp_path)
    rewrite(tmp_path, "kglm-graph-3")
    with pytest.raises(GraphError, match=r"format 'kglm-graph-3'.*update the package"):
        KnowledgeGraph.load(tmp_path)


def test_what_contradicts_itself_is_not_written(tmp_path):
    graph = build()
    graph.edge_relation[3] = 99
    with pytest.raises(GraphError, match="dangling id: an edge's relation"):
        graph.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_windows_are_the_ends_and_between():
    short = torch.arange(WINDOWS * WIDTH)
    assert torch.equal(sampled(short), short)
    column = torch.arange(10 * WINDOWS * WIDTH)
    windows = sampled(column).view(WINDOWS, WIDTH)
    assert (windows.diff(dim=1) == 1).all()
    assert windows[0, 0] == 0
    assert windows[-1, -1] == column[-1]
    assert (windows.diff(dim=0) > WIDTH).all()


@pytest.mark.parametrize(
    ("column", "lookup"),
    [
        ("edge_relation", lambda g, place: g.relation(torch.tensor([1, place]))),
        ("entity_of", lambda g, place: g.entity(torch.tensor([1, place]))),
        ("aliases", lambda g, place: g.alias_words(torch.tensor([1, place]))),
    ],
)
@pytest.mark.parametrize("bad", [-1, 10**8])
def test_an_id_that_was_not_looked_at_is_checked_when_used(
    tmp_path, column, lookup, bad
):
    """Between the windows a damaged column is found by the first who uses it."""
    graph = large_graph.graph(20_000, 20_000 - 1)
    graph.save(tmp_path)
    place = 2500
    damaged = getattr(graph, column).clone()
    damaged[place] = bad
    rewrite(tmp_path, CHECKED, **{column: damaged})
    loaded = KnowledgeGraph.load(tmp_path)
    lookup(loaded, place - 1)
    with pytest.raises(GraphError, match=r"dangling id: an?.* is damaged: copy or"):
        lookup(loaded, place)


def test_a_missing_graph_is_named(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.safetensors is missing"):
        KnowledgeGraph.load(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"not a graph", b"\xff" * 64])
def test_a_damaged_graph_says_what_to_do(tmp_path, content):
    build().save(tmp_path)
    if content is None:
        damage(tmp_path / FILE_NAME)
    else:
        (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(
        GraphError, match=r"not a readable graph .* Build it again"
    ) as e:
        KnowledgeGraph.load(tmp_path)
    assert str(tmp_path / FILE_NAME) in str(e.value)
