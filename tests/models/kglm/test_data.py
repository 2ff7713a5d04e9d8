"""Annotated texts: read, indexed and turned into walks."""

from __future__ import annotations

import json

import pytest
import torch

from lm_latent_eval.models.kglm.data import (
    AnnotatedText,
    Knowledge,
    Span,
    read_annotated,
)
from lm_latent_eval.models.kglm.training import (
    Annotator,
    build_graph,
    build_vocabulary,
    collate_walks,
    new_model,
    surface_forms,
)
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from lm_latent_eval.training.options import KGLMSize
from tests import tiny_models

TEXT = "Ada Lovelace met Babbage . She wrote to Babbage from London ."
ADA = {
    "id": "ada",
    "tokens": TEXT.split(),
    "mentions": [
        {"start": 5, "end": 6, "entity": "Ada", "form": "pronoun"},
        {"start": 0, "end": 2, "entity": "Ada", "form": "name"},
        {"start": 3, "end": 4, "entity": "Babbage", "form": "name"},
        {"start": 8, "end": 9, "entity": "Babbage", "form": "name"},
        {"start": 10, "end": 11, "entity": "London", "form": "name"},
    ],
    "triples": [["Ada", "knew", "Babbage"], ["Babbage", "livedIn", "London"]],
}
NONE, NEW, DERIVED, CONTINUE = range(4)


def text(record=ADA, **changes) -> AnnotatedText:
    return AnnotatedText.from_json({**record, **changes})


def setting(texts, knowledge=None):
    tokenizer, unknown = build_vocabulary(texts, knowledge, min_count=1)
    graph = build_graph(texts, knowledge, tokenizer, max_aliases=2, max_alias_words=4)
    return graph, tokenizer, unknown


# -- reading ------------------------------------------------------------------------


def test_a_record_is_read_by_characters():
    read = text()
    assert read.text == TEXT
    assert read.mentions[0] == Span(0, 12, "Ada", "name")
    assert [read.text[m.start : m.end] for m in read.mentions] == [
        *("Ada Lovelace", "Babbage", "She", "Babbage", "London")
    ]
    assert read.triples == (
        ("Ada", "knew", "Babbage"),
        ("Babbage", "livedIn", "London"),
    )


def mention(start, end):
    return {"start": start, "end": end, "entity": "Ada", "form": "name"}


def test_a_text_may_come_with_its_own_spacing():
    own = "Ada Lovelace met Babbage.  She wrote to Babbage\nfrom London."
    read = text(text=own)
    assert read.text == own
    assert [own[m.start : m.end] for m in read.mentions] == [
        "Ada Lovelace",
        "Babbage",
        "She",
        "Babbage",
        "London",
    ]


def test_a_text_without_its_tokens_is_an_error():
    with pytest.raises(ValueError, match="the text has no 'Babbage' after character"):
        text(text="Ada Lovelace met nobody.")


@pytest.mark.parametrize(
    "line",
    [
        '{"tokens": ["cut"',
        "[]",
        "3",
        "{}",
        json.dumps({**ADA, "tokens": None}),
        json.dumps({**ADA, "tokens": [1, 2]}),
        json.dumps({**ADA, "mentions": [{"start": 0, "end": 1}]}),
        json.dumps({**ADA, "mentions": [mention(0, 2), mention(1, 3)]}),
        json.dumps({**ADA, "mentions": [mention(0, 13)]}),
        json.dumps({**ADA, "mentions": [mention(-2, 1)]}),
        json.dumps({**ADA, "mentions": [mention(2, 2)]}),
        json.dumps({**ADA, "mentions": [mention("0", 2)]}),
        json.dumps({**ADA, "mentions": [{**mention(0, 2), "form": "nam"}]}),
        json.dumps({**ADA, "mentions": [{**mention(0, 2), "entity": 7}]}),
        json.dumps({**ADA, "mentions": [{**mention(0, 2), "start": False}]}),
        json.dumps({**ADA, "mentions": {"start": 0}}),
        json.dumps({**ADA, "tokens": "Ada met", "mentions": []}),
        json.dumps({**ADA, "text": 3}),
        json.dumps({**ADA, "triples": [["Ada", "knew"]]}),
        '{"tokens": ' + "[" * 100_000,
        json.dumps({**ADA, "triples": ["abc"]}),
        json.dumps(ADA)[:-1] + ', "triples": []}',
        json.dumps(ADA)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=lambda line: line[-40:],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ADA)}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: not an annotated text"):
        read_annotated(path)


def test_a_file_without_texts_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"a\.jsonl has no texts"):
        read_annotated(tmp_path / "a.jsonl")


def test_texts_are_read_in_order(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [ADA, {**ADA, "id": "b\u2028"}]
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    assert read_annotated(path) == [text(), text(id="b\u2028")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"triples": []}',
        '{"triples": [["a", "b"]], "aliases": {}}',
        '{"triples": [], "aliases": ["a"]}',
        '{"triples": [], "aliases": {"a": 3}}',
        "[" * 100_000,
        '{"triples": [], "aliases": {"a": "name"}}',
        '{"triples": [], "aliases": {"a": ["x"], "a": ["y"]}}',
        '{"triples": ["abc"], "aliases": {}}',
    ],
)
def test_bad_knowledge_is_named(tmp_path, content):
    path = tmp_path / "graph.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"graph\.json is not a knowledge graph"):
        Knowledge.read(path)


# -- names and graph ----------------------------------------------------------------


def test_names_are_ranked_and_pronouns_are_no_names():
    described = [{**mention(0, 1), "form": f} for f in ("description", "demonstrative")]
    texts = [
        text(),
        text(tokens=["Ada"], mentions=[mention(0, 1)], triples=[]),
        text(tokens=["countess"], mentions=described[:1], triples=[]),
        text(tokens=["countess"], mentions=described[:1], triples=[]),
        text(tokens=["this"], mentions=described[1:], triples=[]),
    ]
    knowledge = Knowledge((), {"Ada": ["Augusta", "Ada"], "Bo": ["Bo"]})
    assert surface_forms(texts, knowledge) == {
        "Ada": ["countess", "Ada", "Ada Lovelace", "Augusta"],
        "Babbage": ["Babbage"],
        "London": ["London"],
        "Bo": ["Bo"],
    }


def test_the_graph_of_a_text():
    knowledge = Knowledge((("London", "in", "England"),), {"England": ["Old England"]})
    graph, tokenizer, unknown = setting([text()], knowledge)
    names = list(graph.node_names)
    assert names == ["@@none@@", "Ada", "Babbage", "England", "London"]
    assert unknown == 0
    reached = [names[n] for n in graph.neighbours(names.index("London"))]
    assert reached == ["Babbage", "England", "London"], "inverse, forward, itself"
    alias = graph.aliases[names.index("England"), 0]
    assert tokenizer.decode(alias[alias > 0].tolist()) == "Old England"
    assert (alias[alias > 0] >= tokenizer.vocab_size).all(), "never uttered in the text"


def test_unknown_words_of_a_name_are_not_copied():
    """An alias has a literal <unk>: to copy it would be to utter any word at all."""
    record = {**ADA, "tokens": ["<unk>", *ADA["tokens"][1:]]}
    graph, _, _ = setting([text(record)])
    assert not (graph.aliases == UNKNOWN).any()
    assert (graph.aliases[1, 0] > 0).sum() == 1


def test_rare_words_are_unknown_and_counted():
    tokenizer, unknown = build_vocabulary([text()], min_count=2)
    assert tokenizer.vocab_size == 6, "Babbage and the full stop come twice"
    # Ada Lovelace met She wrote to from London; the names can be copied.
    assert unknown == 8
    ids = tokenizer("Ada met Babbage").ids
    assert ids[0] >= 6
    assert ids[1] == UNKNOWN
    assert ids[2] < 6


# -- walks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cutoff", "types"),
    [
        # Each mention but the first is derived from the one before it, which ends
        # 1, 1, 2 and 1 words earlier: 2, 2, 3 and 2 places.
        (30, "NCxDxDxxDxDxx"),
        (2, "NCxDxDxxNxDxx"),
        (1, "NCxNxNxxNxNxx"),
        (3, "NCxDxDxxDxDxx"),
    ],
)
def test_mentions_are_derived_from_recent_ones(cutoff, types):
    graph, tokenizer, _ = setting([text()])
    ids, mentions, nodes = Annotator(graph, tokenizer, cutoff)(text())
    code = {"x": NONE, "N": NEW, "D": DERIVED, "C": CONTINUE}
    assert ids[:-1] == tokenizer(text().text).ids
    assert ids[-1] == END
    assert mentions == [code[t] for t in types]
    a, b, c = 1, 2, 3
    assert nodes == [a, a, 0, b, 0, a, 0, 0, b, 0, c, 0, 0]


def test_neighbouring_mentions_are_told_apart():
    spans = [mention(0, 2), mention(2, 4)]
    record = text(tokens=["Ada", "Lovelace"] * 2, mentions=spans, triples=[])
    graph, tokenizer, _ = setting([record])
    _, mentions, nodes = Annotator(graph, tokenizer, 5)(record)
    assert mentions == [NEW, CONTINUE, DERIVED, CONTINUE, NONE]
    assert nodes == [1, 1, 1, 1, 0]


def test_entities_that_the_graph_lacks_are_no_mentions():
    graph, tokenizer, _ = setting([text()])
    other = text(
        tokens=["Bo", "met", "Ada"],
        mentions=[{**mention(0, 1), "entity": "Bo"}, mention(2, 3)],
    )
    _, mentions, nodes = Annotator(graph, tokenizer, 5)(other)
    assert mentions == [NONE, NONE, NEW, NONE]
    assert nodes == [0, 0, 1, 0]


def test_words_and_tokens_may_be_cut_differently():
    """A token of several words is mentioned word by word."""
    record = text(
        tokens=["(Ada", "Lovelace)", "wrote"], mentions=[mention(0, 2)], triples=[]
    )
    graph, tokenizer, _ = setting([record])
    ids, mentions, _ = Annotator(graph, tokenizer, 5)(record)
    assert len(ids) == 6
    assert mentions == [NEW, CONTINUE, CONTINUE, CONTINUE, NONE, NONE]


def test_walks_are_padded():
    walks = collate_walks([[1, 3], [0]], [[5, 5], [0]])
    assert walks.mention.tolist() == [[[1, 3]], [[0, 0]]]
    assert walks.node.tolist() == [[[5, 5]], [[0, 0]]]


def assert_possible(texts, others=()) -> None:
    """Every annotated walk has positive probability under a new model's p and q."""
    size = KGLMSize(4, 3, 5, num_layers=1, cutoff=20, dropout=0.0)
    tokenizer, unknown = build_vocabulary(texts, min_count=2)
    model = new_model(texts, None, tokenizer, unknown, size, seed=0).eval()
    annotate = Annotator(model.knowledge, tokenizer, size.cutoff)
    items = [annotate(t) for t in [*texts, *others]]
    seen = {m for _, mentions, _ in items for m in mentions}
    assert seen == {NONE, NEW, DERIVED, CONTINUE}, "premise"
    batch = TokenBatch.collate([ids for ids, _, _ in items], first=START)
    walks = collate_walks([m for _, m, _ in items], [n for _, _, n in items])
    with torch.no_grad():
        assert model.log_joint(model.encode(batch), walks).isfinite().all()
        for which in ("peeking", "nonpeeking", "prior"):
            proposal = model.proposal(which)
            assert proposal.log_prob(proposal.encode(batch), walks).isfinite().all()


def test_demonstration_texts_are_possible_walks():
    texts = tiny_models.annotated(60)
    assert_possible(texts[:40], texts[40:])


def test_real_texts_are_possible_walks(data_dir):
    read = [
        read_annotated(data_dir / "webnlg" / f"{s}.jsonl") for s in ("train", "dev")
    ]
    assert_possible(read[0][::90][:150], read[1][::40][:30])
