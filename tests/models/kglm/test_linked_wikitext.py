"""Linked WikiText-2: walks of converted models, and records to train new ones from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.kglm.data import (
    LinkedAnnotator,
    LinkedText,
    Span,
    over_shortlist,
    read_annotated,
    read_linked,
)
from lm_latent_eval.models.kglm.training import Annotator, build_graph, build_vocabulary
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.words import END, UNKNOWN
from tests import kglm_reference as reference
from tests.kglm_archives import SPECIAL, word

NONE, NEW, DERIVED, CONTINUE = range(4)


def annotation(start, end, entity, *edges, source="WIKI"):
    """A mention with its (relation, parent) edges; new without any."""
    return {
        "source": source,
        "id": entity,
        "span": [start, end],
        "relation": [relation for relation, _ in edges] or ["@@NEW@@"],
        "parent_id": [parent for _, parent in edges] or [entity],
    }


WORDS = """
    @@START@@ Ada Lovelace was born in 1815 . @@END@@
    In London , she met Charles Babbage @@UNKNOWN@@ . @@END@@
"""
ADA = {
    "title": "Ada Lovelace",
    "tokens": WORDS.split(),
    "annotations": [
        annotation(1, 3, "Q7259", source="KG"),
        annotation(6, 7, "T::9::+1815-00-00T00:00:00Z", ("P569", "Q7259")),
        annotation(10, 11, "Q84", ("P19", "Q7259"), ("R:P800", "Q7259")),
        annotation(12, 13, "Q7259", ("@@REFLEXIVE@@", "Q7259"), source="COREF"),
        annotation(14, 16, "Q46633"),
    ],
}


def write(folder: Path, *records) -> Path:
    path = folder / "train.jsonl"
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


# -- records to train from ----------------------------------------------------------


def test_a_record_of_ours(tmp_path):
    (read,) = read_annotated(write(tmp_path, ADA))
    assert read.id == "Ada Lovelace"
    assert read.text == (
        "Ada Lovelace was born in 1815 . \n In London , she met Charles Babbage <unk> ."
    )
    assert [(read.text[m.start : m.end], m.entity, m.form) for m in read.mentions] == [
        ("Ada Lovelace", "Q7259", "name"),
        ("1815", "T::9::+1815-00-00T00:00:00Z", "name"),
        ("London", "Q84", "name"),
        ("she", "Q7259", "pronoun"),
        ("Charles Babbage", "Q46633", "name"),
    ]
    assert read.triples == (
        ("Q7259", "P19", "Q84"),
        ("Q7259", "P569", "T::9::+1815-00-00T00:00:00Z"),
        ("Q84", "P800", "Q7259"),
    )


def test_the_text_alone_is_the_same(tmp_path):
    path = write(tmp_path, ADA, ADA)
    assert read_texts(path) == [text.text for text in read_annotated(path)]


def test_a_record_without_its_last_end(tmp_path):
    cut = {**ADA, "tokens": ADA["tokens"][:-1]}
    (read,), (whole,) = (read_annotated(write(tmp_path, r)) for r in (cut, ADA))
    assert read == whole


def test_a_mention_of_the_last_end_is_cut(tmp_path):
    size = len(ADA["tokens"])
    for start, kept in ((size - 1, []), (size - 2, [(".", "Q1")])):
        record = {**ADA, "annotations": [annotation(start, size, "Q1")]}
        (read,) = read_annotated(write(tmp_path, record))
        assert [(read.text[m.start : m.end], m.entity) for m in read.mentions] == kept


def test_annotated_articles_make_possible_walks(tmp_path):
    texts = read_annotated(write(tmp_path, ADA))
    tokenizer, _ = build_vocabulary(texts, min_count=1)
    graph = build_graph(texts, None, tokenizer, max_aliases=2, max_alias_words=3)
    names = list(graph.node_names)
    _, mention, node = Annotator(graph, tokenizer, 30)(texts[0])
    assert [names[n] for n, m in zip(node, mention, strict=True) if m == DERIVED] == [
        "T::9::+1815-00-00T00:00:00Z",
        *("Q84", "Q7259"),
    ]
    born = graph.aliases[names.index("T::9::+1815-00-00T00:00:00Z"), 0]
    assert tokenizer.decode(born[born > 0].tolist()) == "1815"
    named = graph.aliases[names.index("Q7259")]
    assert (named[:, 0] != 0).tolist() == [True, False], "she is no name"


def test_training_reads_the_format(tmp_path, capsys):
    path = str(write(tmp_path, *[ADA] * 4))
    command = ["train", "kglm", "--data", path, "--dev", path, "--epochs", "1"]
    command += ["--output", str(tmp_path / "out"), "--hidden-size", "5"]
    command += ["--token-embedding-dim", "4", "--entity-embedding-dim", "3"]
    assert main(command) == 0
    assert load_checkpoint(tmp_path / "out").model.knowledge.num_nodes == 5


# -- mentions -----------------------------------------------------------------------


def test_overlapping_mentions_are_cut():
    record = {
        **ADA,
        "annotations": [
            annotation(2, 7, "Q1"),
            annotation(4, 5, "Q2", ("P1", "Q1")),
            annotation(6, 9, "Q3"),
            annotation(9, 10, "Q3"),
        ],
    }
    text = LinkedText.from_json(record)
    found = [(m.start, m.end, m.entity, m.edges) for m in text.mentions()]
    assert found == [
        (2, 4, "Q1", ()),
        (4, 5, "Q2", (("P1", "Q1"),)),
        (5, 6, "Q1", ()),
        (6, 9, "Q3", ()),
        (9, 10, "Q3", ()),
    ]
    spans = [(m["start"], m["end"]) for m in text.as_record()["mentions"]]
    assert spans == [(1, 3), (3, 4), (4, 5), (5, 8), (8, 9)]


def test_the_walk_of_an_article(golden):
    """Words, entities and literals that a converted model knows, and others."""
    checkpoint = golden("A")
    nodes = list(checkpoint.model.knowledge.node_names)
    literal = next(n for n in nodes if n.startswith("T"))
    rows = reference.numbers()["entities"]
    entities = [n for n in nodes if n.startswith("Q") and n in rows][:2]
    record = {
        "tokens": ["@@START@@", word(5), "never", word(6), word(7), "@@END@@", word(5)],
        "annotations": [
            annotation(1, 3, entities[0]),
            annotation(3, 5, entities[1], ("P1", entities[0])),
            annotation(5, 6, literal, ("P1", entities[0])),
            annotation(6, 7, "Q-nobody"),
        ],
    }
    annotate = LinkedAnnotator(checkpoint.model.knowledge, checkpoint.tokenizer)
    text = LinkedText.from_json(record)
    words, mention, node = annotate(text)
    assert words == [5, UNKNOWN, 6, 7, END, 5]
    assert mention == [NEW, CONTINUE, DERIVED, CONTINUE, DERIVED, NEW]
    names = [nodes[n] for n in node]
    assert names == [entities[0]] * 2 + [entities[1]] * 2 + [literal, SPECIAL[1]]
    date = rows.index("@@DATE@@")
    assert annotate.shortlist(text) == [*map(rows.index, entities), date, UNKNOWN]


def test_a_shortlist_holds_all_the_mass(golden):
    model = golden("C").model
    encoded = model.encode(reference.batch([2, 5, 6, 7]))
    position, entity = torch.arange(3), torch.arange(model.config.num_entities)
    every = torch.cartesian_prod(position, entity)
    wide = encoded.walk.new.log_prob(*every.T).view(3, -1).exp()
    narrow = over_shortlist(encoded, [6, 0, 4]).walk.new.log_prob(*every.T)
    narrow = narrow.view(3, -1).exp()
    assert (wide > 0).all()
    expected = wide.clone()
    expected[:, [e for e in entity.tolist() if e not in (4, 6)]] = 0
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(narrow, expected)
    with pytest.raises(ValueError, match="a shortlist is of one text; got 2"):
        both = torch.tensor([0, 0])
        over_shortlist(model.encode(encoded.batch.select(both)), [4])


# -- what is refused ----------------------------------------------------------------


def with_annotation(**changes):
    return {**ADA, "annotations": [{**annotation(1, 3, "Q1"), **changes}]}


def lacking(record, name):
    return {n: v for n, v in record.items() if n != name}


MALFORMED = {
    "cut": json.dumps(ADA)[:50],
    "a list": "[]",
    "a number": "3",
    "no tokens": json.dumps(lacking(ADA, "tokens")),
    "tokens that are numbers": json.dumps({**ADA, "tokens": ["@@START@@", 1]}),
    "lines within lines": json.dumps({**ADA, "tokens": [ADA["tokens"]]}),
    "no start": json.dumps({**ADA, "tokens": ADA["tokens"][1:]}),
    "no annotation": json.dumps({**ADA, "annotations": [{}]}),
    "no list": json.dumps({**ADA, "annotations": 3}),
    "a span of the start": json.dumps(with_annotation(span=[0, 2])),
    "an empty span": json.dumps(with_annotation(span=[2, 2])),
    "a span beyond the end": json.dumps(with_annotation(span=[2, 99])),
    "a span of three": json.dumps(with_annotation(span=[2, 3, 4])),
    "a span of strings": json.dumps(with_annotation(span=["2", "3"])),
    "a span of fractions": json.dumps(with_annotation(span=[1.5, 3])),
    "no name": json.dumps(with_annotation(id=None)),
    "a relation without parent": json.dumps(with_annotation(relation=["P1", "P2"])),
    "relations that are a string": json.dumps(
        with_annotation(relation="P1", parent_id="Q1")
    ),
    "a name twice": json.dumps(ADA)[:-1] + ', "tokens": []}',
    "a parent that is a number": json.dumps(with_annotation(parent_id=[1])),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_is_named(tmp_path, kind):
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps(ADA)}\n\n{MALFORMED[kind]}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"train\.jsonl, line 3: not a linked article"):
        read_linked(path)
    with pytest.raises(ValueError, match=r"train\.jsonl, line 3: not an annotated"):
        read_annotated(path)


def test_a_file_without_articles_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"train\.jsonl has no texts"):
        read_linked(tmp_path / "train.jsonl")


def test_the_published_articles_are_read(golden_dir):
    path = golden_dir / "kglm" / "archive" / "train.jsonl"
    articles, texts = read_linked(path), read_annotated(path)
    assert [len(a.annotations) for a in articles] == [8, 8, 3]
    assert [t.id for t in texts] == [a.title for a in articles]
    assert [len(t.mentions) for t in texts] == [8, 8, 3]
    assert texts[1].mentions[0] == Span(4, 30, "Q4890550", "name")
    assert texts[0].triples[0] == ("Q1223", "P150", "Q695782")
    assert [t.text.count("\n") for t in texts] == [1, 1, 1]
