"""Training finds the topics of annotated texts and learns from them."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.kglm.data import AnnotatedText, Knowledge
from lm_latent_eval.models.kglm.training import build_graph, build_vocabulary
from lm_latent_eval.models.lrlm.training import Annotator, build_topics, topic_of
from lm_latent_eval.text.words import END


def built(texts, knowledge=None, **limits):
    tokenizer = build_vocabulary(texts, knowledge, min_count=2)
    sizes = {"max_aliases": 4, "max_alias_words": 8, "num_pieces": 50, **limits}
    topics, relations = build_topics(texts, knowledge, tokenizer, **sizes)
    return tokenizer, topics, relations


def names(tokenizer, topics, topic):
    """What a topic's facts are called: relation -> names."""
    found = {}
    for fact in range(*map(int, topics.facts_of(torch.tensor(topics.number(topic))))):
        start, end = topics.namings_of(torch.tensor(fact))
        aliases = topics.alias_words[topics.naming_alias[start:end]].tolist()
        spelled = {" ".join(tokenizer.word(w) for w in a if w >= 0) for a in aliases}
        found[int(topics.fact_relation[fact])] = spelled
    return found


TEXT = AnnotatedText.from_json(
    {
        "tokens": ["Ada", "was", "born", "in", "London", ".", "Ada", "knew", "him"],
        "mentions": [
            {"start": 0, "end": 1, "entity": "ada", "form": "name"},
            {"start": 4, "end": 5, "entity": "london", "form": "name"},
            {"start": 8, "end": 9, "entity": "bo", "form": "pronoun"},
        ],
        "triples": [["ada", "bornIn", "london"], ["ada", "knows", "bo"]],
    }
)


def test_unknown_words_are_in_no_name():
    """One could stand for any, and be said for nothing; a name of them is none."""
    forms = {
        "ada": ["<unk>", "Ada <unk>", "Ada"],
        "bo": ["<unk>"],
        "london": ["London"],
    }
    knowledge = Knowledge((("ada", "bornIn", "london"), ("ada", "knows", "bo")), forms)
    for most in (1, 4):
        tokenizer, topics, _ = built([], knowledge, max_aliases=most)
        assert names(tokenizer, topics, "ada") == {0: {"Ada"}, 1: {"London"}}
        graph = build_graph(
            [], knowledge, tokenizer, max_aliases=most, max_alias_words=8
        )
        [node] = [i for i, name in enumerate(graph.node_names) if name == "ada"]
        [said] = {
            tuple(words)
            for words in graph.alias_words(torch.tensor([node]))[0].tolist()
            if any(words)
        }
        assert tokenizer.word(said[0]) == "Ada"


def test_facts_are_named_as_texts_and_knowledge_name_them():
    knowledge = Knowledge((("bo", "bornIn", "london"),), {"bo": ["Bo"], "ada": ["A L"]})
    tokenizer, topics, relations = built([TEXT], knowledge)
    assert relations == ["", "bornIn", "knows"]
    assert names(tokenizer, topics, "ada") == {
        0: {"Ada", "A L"},
        1: {"London"},
        2: {"Bo"},
    }
    assert names(tokenizer, topics, "bo") == {0: {"Bo"}, 1: {"London"}}
    # One text is about ada, none about bo: (1 + 1) / 3 and 1 / 3.
    torch.testing.assert_close(
        topics.log_prior.exp(), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    )


def test_what_has_no_name_is_no_fact():
    tokenizer, topics, _ = built([TEXT])
    assert names(tokenizer, topics, "ada") == {0: {"Ada"}, 1: {"London"}}
    assert topics.names == ["ada"]
    assert topic_of(TEXT, {"bo": 1}) is None
    words, topic = Annotator(topics, tokenizer)(TEXT)
    assert topic == 1 and words[-1] == END
    nameless = AnnotatedText("", "one two", (), (("a", "b", "c"),))
    with pytest.raises(ValueError, match="nothing that texts could be about"):
        built([nameless])
