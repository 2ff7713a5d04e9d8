"""Annotated texts and Linked WikiText-2: read, refused, and turned into walks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lm_latent_eval.models.kglm.data import (
    AnnotatedText,
    Knowledge,
    LinkedText,
    Span,
    read_annotated,
)
from lm_latent_eval.models.kglm.training import (
    Annotator,
    build_graph,
    build_vocabulary,
    surface_forms,
)
from lm_latent_eval.models.learning import sizes
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.words import END, UNKNOWN

NONE, NEW, DERIVED, CONTINUE = range(4)


def mention(start, end, entity="Ada", form="name"):
    return {"start": start, "end": end, "entity": entity, "form": form}


TEXT = "Ada Lovelace met Babbage . She wrote to Babbage from London ."
ADA = {
    "id": "ada",
    "tokens": TEXT.split(),
    "mentions": [
        mention(5, 6, form="pronoun"),
        mention(0, 2),
        mention(3, 4, "Babbage"),
        mention(8, 9, "Babbage"),
        mention(10, 11, "London"),
    ],
    "triples": [["Ada", "knew", "Babbage"], ["Babbage", "livedIn", "London"]],
}


def text(record=ADA, **changes) -> AnnotatedText:
    return AnnotatedText.from_json({**record, **changes})


def setting(texts, knowledge=None):
    tokenizer = build_vocabulary(texts, knowledge, min_count=1)
    graph = build_graph(texts, knowledge, tokenizer, max_aliases=2, max_alias_words=4)
    return graph, tokenizer


def write(folder: Path, *lines) -> Path:
    """Write records, or lines as they are."""
    lines = [x if isinstance(x, str) else json.dumps(x) for x in lines]
    path = folder / "train.jsonl"
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return path


# -- reading ------------------------------------------------------------------------

SPACED = "Ada Lovelace met Babbage.  She wrote to Babbage\nfrom London."


@pytest.mark.parametrize(
    ("changes", "said"), [({}, TEXT), ({"text": SPACED}, SPACED)], ids=["plain", "own"]
)
def test_a_record_is_read_by_characters(tmp_path, changes, said):
    """A text may come with its own spacing."""
    read, other = read_annotated(write(tmp_path, {**ADA, **changes}, ADA))
    assert read.text == said
    assert read.mentions[0] == Span(0, 12, "Ada", "name")
    assert [said[m.start : m.end] for m in read.mentions] == [
        *("Ada Lovelace", "Babbage", "She", "Babbage", "London")
    ]
    assert read.triples == tuple(map(tuple, ADA["triples"]))
    assert other == text()


ANY_KIND: tuple[Any, ...] = (None, 7, True, 1.5, "x", [], {})
OPTIONAL = ("id", "title", "text", "source")
"""Keys that a record may lack."""


def spoiled(value: Any) -> Iterator[Any]:
    """Yield a JSON value with one part lost, or of another kind."""
    yield from (other for other in ANY_KIND if type(other) is not type(value))
    if isinstance(value, list) and value:
        yield from ([part, *value[1:]] for part in spoiled(value[0]))
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in OPTIONAL:
                yield {name: x for name, x in value.items() if name != key}
            if key not in ("id", "title") or "span" in value:
                yield from (value | {key: other} for other in spoiled(part))


def test_a_file_without_texts_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"train\.jsonl has no texts"):
        read_annotated(write(tmp_path, ""))


def test_bad_knowledge_is_named(tmp_path):
    path, good = tmp_path / "graph.json", {"triples": [["a", "b", "c"]], "aliases": {}}
    for content in (
        *map(json.dumps, spoiled({**good, "aliases": {"a": ["x"]}})),
        json.dumps({**good, "aliases": {"a\ud83d": ["x"]}}),
        *("", "[" * 100_000, '{"triples": [], "aliases": {"a": ["x"], "a": ["y"]}}'),
    ):
        path.write_text(content)
        if content != json.dumps(good):
            with pytest.raises(ValueError, match=r"graph\.json is not a knowledge gr"):
                Knowledge.read(path)


# -- names and graph ----------------------------------------------------------------


def test_names_are_ranked_and_pronouns_are_no_names():
    def named(word, form):
        return text(tokens=[word], mentions=[mention(0, 1, form=form)], triples=[])

    countess = named("countess", "description")
    texts = [text(), named("Ada", "name"), countess, countess]
    texts.append(named("this", "demonstrative"))
    knowledge = Knowledge((), {"Ada": ["Augusta", "Ada"], "Bo": ["Bo"]})
    assert surface_forms(texts, knowledge) == {
        "Ada": ["countess", "Ada", "Ada Lovelace", "Augusta"],
        "Babbage": ["Babbage"],
        "London": ["London"],
        "Bo": ["Bo"],
    }


def test_the_graph_of_a_text():
    knowledge = Knowledge((("London", "in", "England"),), {"England": ["Old England"]})
    graph, tokenizer = setting([text()], knowledge)
    names = list(graph.node_names)
    assert names == ["@@none@@", "Ada", "Babbage", "England", "London"]
    assert sizes(tokenizer, [text().text])["num_unknown_types"] == 0
    assert graph.num_edges == 2 * 3 + 4, "facts both ways, and from each to itself"
    alias = graph.aliases[names.index("England"), 0]
    assert tokenizer.decode(alias[alias > 0].tolist()) == "Old England"
    assert (alias[alias > 0] >= tokenizer.vocab_size).all(), "never uttered in the text"


def test_rare_words_are_unknown_and_counted():
    tokenizer = build_vocabulary([text()], min_count=2)
    assert tokenizer.vocab_size == 6, "Babbage and the full stop come twice"
    # Ada Lovelace met She wrote to from London; the names can be copied.
    assert sizes(tokenizer, [text().text])["num_unknown_types"] == 8
    ids = tokenizer("Ada met Babbage").ids
    assert ids[0] >= 6 and ids[1] == UNKNOWN and ids[2] < 6


# -- walks ------------------------------------------------------------------------

OTHER = {
    "tokens": ["Bo", "met", "Ada"],
    "mentions": [mention(0, 1, "Bo"), mention(2, 3)],
}
WORDWISE = {"tokens": ["(Ada", "Lovelace)", "wrote"], "mentions": [mention(0, 2)]}
NEIGHBOURS = {
    "tokens": ["Ada", "Lovelace"] * 2,
    "mentions": [mention(0, 2), mention(2, 4)],
}


@pytest.mark.parametrize(
    ("changes", "cutoff", "types", "nodes"),
    [
        # Each mention but the first is derived from the one before it, which ends
        # 1, 1, 2 and 1 words earlier: 2, 2, 3 and 2 places.
        ({}, 3, "NCxDxDxxDxDxx", [1, 1, 0, 2, 0, 1, 0, 0, 2, 0, 3, 0, 0]),
        ({}, 2, "NCxDxDxxNxDxx", [1, 1, 0, 2, 0, 1, 0, 0, 2, 0, 3, 0, 0]),
        ({}, 1, "NCxNxNxxNxNxx", [1, 1, 0, 2, 0, 1, 0, 0, 2, 0, 3, 0, 0]),
        (NEIGHBOURS, 5, "NCDCx", [1, 1, 1, 1, 0]),
        # The graph does not have Bo. A token of several words is taken word by word.
        (OTHER, 5, "xxNx", [0, 0, 1, 0]),
        (WORDWISE, 5, "NCCCxx", [1, 1, 1, 1, 0, 0]),
    ],
)
def test_the_walk_of_a_text(changes, cutoff, types, nodes):
    """A mention is derived from one that ended in the last tokens, or new."""
    graph, tokenizer = setting([text()])
    ids, mentions, found = Annotator(graph, tokenizer, cutoff)(text(**changes))
    assert ids[:-1] == tokenizer(text(**changes).text).ids and ids[-1] == END
    assert ["xNDC"[m] for m in mentions] == [*types]
    assert found == nodes


# -- Linked WikiText-2 ----------------------------------------------------------------


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
YEAR = "T::9::+1815-00-00T00:00:00Z"
ARTICLE = {
    "title": "Ada Lovelace",
    "tokens": WORDS.split(),
    "annotations": [
        annotation(1, 3, "Q7259", source="KG"),
        annotation(6, 7, YEAR, ("P569", "Q7259")),
        annotation(10, 11, "Q84", ("P19", "Q7259"), ("R:P800", "Q7259")),
        annotation(12, 13, "Q7259", ("@@REFLEXIVE@@", "Q7259"), source="COREF"),
        annotation(14, 16, "Q46633"),
    ],
}


def test_an_article_as_a_record_of_ours(tmp_path):
    path = write(tmp_path, ARTICLE, {**ARTICLE, "tokens": ARTICLE["tokens"][:-1]})
    read, without_last_end = read_annotated(path)
    assert read == without_last_end
    assert read.id == "Ada Lovelace"
    assert read.text == (
        "Ada Lovelace was born in 1815 . \n In London , she met Charles Babbage <unk> ."
    )
    assert [(read.text[m.start : m.end], m.entity, m.form) for m in read.mentions] == [
        ("Ada Lovelace", "Q7259", "name"),
        ("1815", YEAR, "name"),
        ("London", "Q84", "name"),
        ("she", "Q7259", "pronoun"),
        ("Charles Babbage", "Q46633", "name"),
    ]
    assert read.triples == (
        ("Q7259", "P19", "Q84"),
        ("Q7259", "P569", YEAR),
        ("Q84", "P800", "Q7259"),
    )
    assert read_texts(path) == [read.text] * 2, "the text alone is the same"


def test_overlapping_mentions_are_cut():
    record = {
        **ARTICLE,
        "annotations": [
            annotation(2, 7, "Q1"),
            annotation(4, 5, "Q2", ("P1", "Q1")),
            annotation(6, 9, "Q3"),
            annotation(9, 10, "Q3"),
        ],
    }
    article = LinkedText.from_json(record)
    found = [(m.start, m.end, m.entity, m.edges) for m in article.mentions()]
    assert found == [
        (2, 4, "Q1", ()),
        (4, 5, "Q2", (("P1", "Q1"),)),
        (5, 6, "Q1", ()),
        (6, 9, "Q3", ()),
        (9, 10, "Q3", ()),
    ]
    spans = [(m["start"], m["end"]) for m in article.as_record()["mentions"]]
    assert spans == [(1, 3), (3, 4), (4, 5), (5, 8), (8, 9)]
    # The last mark of an end is no token of ours, nor is a mention of it alone.
    size = len(ARTICLE["tokens"])
    for start, kept in ((size - 1, []), (size - 2, [(size - 3, size - 2)])):
        record["annotations"] = [annotation(start, size, "Q1")]
        read = LinkedText.from_json(record).as_record()["mentions"]
        assert [(m["start"], m["end"]) for m in read] == kept


FIRST = ARTICLE["annotations"][1]
CUT = "Ada \ud83d"
"""A name that ends within a character, so that no file can hold it."""
BAD_TEXTS = [
    *spoiled({**ADA, "text": SPACED}),
    *({**ADA, "mentions": [mention(*span)]} for span in ((0, 13), (-2, 1), (2, 2))),
    {**ADA, "mentions": [mention(0, 2), mention(1, 3)]},
    {**ADA, "mentions": [mention(0, 2, form="nam")]},
    {**ADA, "text": "Ada Lovelace met nobody."},
    {**ADA, "triples": [["Ada", "knew"]]},
    {**ADA, "triples": [["Ada", "knew", CUT]]},
    {**ADA, "mentions": [{**mention(0, 2), "entity": CUT}]},
    *('{"tokens": ["cut"', '{"tokens": ' + "[" * 100_000),
    json.dumps(ADA)[:-1] + ', "triples": []}',
]
BAD_ARTICLES = [
    *spoiled({**ARTICLE, "annotations": [FIRST]}),
    {**ARTICLE, "tokens": ARTICLE["tokens"][1:]},
    *(
        {**ARTICLE, "annotations": [{**FIRST, "span": span}]}
        for span in ([0, 2], [2, 2], [2, 99], [2, 3, 4])
    ),
    {**ARTICLE, "annotations": [{**FIRST, "relation": ["P1", "P2"]}]},
    *(json.dumps(ARTICLE)[:50], json.dumps(ARTICLE)[:-1] + ', "tokens": []}'),
]


@pytest.mark.parametrize(("good", "lines"), [(ADA, BAD_TEXTS), (ARTICLE, BAD_ARTICLES)])
def test_a_bad_line_is_named(tmp_path, good, lines):
    assert len(lines) > 60, "premise: spoiled in many ways"
    for bad in lines:
        path = write(tmp_path, good, bad)
        named = r"train\.jsonl, line 3: not an annotated text"
        with pytest.raises(ValueError, match=named):
            read_annotated(path)
