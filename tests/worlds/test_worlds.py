"""The demonstration world: reproducible, consistent, and walked edge by edge."""

import hashlib
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from lm_latent_eval import demo
from lm_latent_eval.demo import TOKEN, Document, tokenize
from worlds.__main__ import contents
from worlds.__main__ import main as draw_again
from worlds.entities import PRONOUNS, capitalised
from worlds.facts import facts
from worlds.fillers import ASIDES, BANKS
from worlds.graph import DEAD_ENDS, INVERSES, backward, forward
from worlds.templates import CONTINUATIONS, REMARKS, SENTENCES, SLOT
from worlds.world import SIZES, World, generate, raw_text

DIGEST = "2888a529f23efe5dd285558ca70709c1e4ad9be3c6ba1d90f18720d9faa962da"
SPLITS = list(SIZES)
FORMS = {"name", "description", "pronoun"}


def digest(world: World) -> str:
    data = [
        world.aliases,
        world.triples,
        [[_without_text(d) for d in world.documents(split)] for split in SPLITS],
        facts(world),
    ]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _without_text(document: Document) -> dict:
    return {name: value for name, value in document.items() if name != "text"}


@pytest.fixture(scope="module")
def world() -> World:
    return generate(seed=0)


@pytest.fixture(scope="module")
def corpus(world: World) -> list[Document]:
    return [x for split in SPLITS for x in world.documents(split)]


def mention_positions(document: Document) -> set[int]:
    return {i for m in document["mentions"] for i in range(m["start"], m["end"])}


def test_equal_seeds_give_equal_worlds(world):
    assert digest(world) == digest(generate(seed=0)) == DIGEST
    assert digest(generate(seed=1)) != DIGEST


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_hash_order_does_not_matter(hash_seed):
    code = (
        "from tests.worlds.test_worlds import digest, generate; "
        "print(digest(generate(0)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == DIGEST


def test_the_world_has_the_intended_size(world):
    assert 250 <= len(world.entities) <= 350
    assert len(world.entities) == len(set(world.entities)) == len(world.aliases)
    assert len(world.triples) == len(set(world.triples))
    assert {r for _, r, _ in world.triples} == (
        set(INVERSES) | set(INVERSES.values()) | set(DEAD_ENDS)
    )
    assert {split: len(world.documents(split)) for split in SPLITS} == SIZES


def test_no_id_dangles(world, corpus):
    known = set(world.entities)
    assert known == set(world.aliases)
    assert known == {x for s, _, o in world.triples for x in (s, o)}
    assert {m["entity"] for x in corpus for m in x["mentions"]} <= known
    assert set(world.reserved) <= known


def test_every_fact_is_told_from_both_ends(world):
    triples = set(world.triples)
    for triple in triples:
        canonical = forward(triple)
        assert canonical in triples
        told_back = backward(canonical)
        if canonical[1] in DEAD_ENDS:
            assert told_back is None
        else:
            assert told_back in triples
            assert forward(told_back) == canonical


def test_functional_facts_are_single(world):
    functional = {"born_in", "lives_in", "spouse", "works_for", "capital", "genre"}
    functional |= {"headquartered_in", "authored_by", "founded_by", "located_in"}
    functional |= {"founded_in", "released_in", "set_in", "lies_on", "student_of"}
    keys = [(s, r) for s, r, _ in world.triples if r in functional]
    assert len(keys) == len(set(keys))


def test_full_names_are_distinct(world):
    full = [aliases[0] for aliases in world.aliases.values()]
    assert len(full) == len(set(full))
    for aliases in world.aliases.values():
        assert len(aliases) == len(set(aliases))


def test_tokens_survive_a_round_trip(corpus):
    for document in corpus:
        tokens = document["tokens"]
        assert TOKEN.findall(" ".join(tokens)) == tokens
        assert document["text"] == raw_text(tokens)
        assert tokenize(document["text"]) == tokens
        assert " ." not in document["text"]
        assert " ," not in document["text"]


def test_documents_are_plain_data(corpus):
    assert json.loads(json.dumps(corpus)) == corpus
    keys = ["text", "id", "tokens", "mentions", "triples"]
    assert all(list(document) == keys for document in corpus)


def test_mentions_spell_an_alias_or_a_pronoun(world, corpus):
    for document in corpus:
        end = 0
        for mention in document["mentions"]:
            assert end <= mention["start"] < mention["end"]
            end = mention["end"]
            surface = " ".join(document["tokens"][mention["start"] : end])
            entity = world.cast[mention["entity"]]
            assert mention["form"] in FORMS
            if mention["form"] == "pronoun":
                assert surface.lower() in PRONOUNS[entity.pronoun].values()
            else:
                assert surface in world.aliases[entity.id]
                described = surface.lower() in entity.descriptions
                assert (mention["form"] == "description") == described
        assert end <= len(document["tokens"])


def test_every_pronoun_is_annotated(corpus):
    words = {x for cases in PRONOUNS.values() for x in cases.values()} - {"it", "its"}
    for document in corpus:
        inside = mention_positions(document)
        loose = [x for i, x in enumerate(document["tokens"]) if i not in inside]
        assert words.isdisjoint(x.lower() for x in loose)


def test_pronouns_and_descriptions_come_after_a_name(corpus):
    for document in corpus:
        named = set()
        for mention in document["mentions"]:
            if mention["form"] == "name":
                named.add(mention["entity"])
            assert mention["entity"] in named


def test_stated_triples_are_in_the_graph_and_their_ends_in_the_text(world, corpus):
    triples = set(world.triples)
    for document in corpus:
        mentioned = {m["entity"] for m in document["mentions"]}
        stated = [tuple(x) for x in document["triples"]]
        assert stated
        assert len(stated) == len(set(stated))
        for triple in stated:
            assert triple in triples
            assert forward(triple) == triple
            assert {triple[0], triple[2]} <= mentioned


def test_splits_share_no_text(corpus):
    assert len({x["text"] for x in corpus}) == len(corpus) == sum(SIZES.values())
    assert len({x["id"] for x in corpus}) == len(corpus)


def test_training_texts_keep_the_secrets(world):
    reserved, withheld = set(world.reserved), set(world.withheld)
    for document in world.documents("train"):
        assert reserved.isdisjoint(m["entity"] for m in document["mentions"])
        assert withheld.isdisjoint(tuple(x) for x in document["triples"])
    for split in ("dev", "test"):
        documents = world.documents(split)
        mentioned = {m["entity"] for x in documents for m in x["mentions"]}
        stated = {tuple(t) for x in documents for t in x["triples"]}
        assert len(reserved & mentioned) > 0.8 * len(reserved)
        assert len(withheld & stated) > 0.3 * len(withheld)


def test_articles_and_sentence_starts_are_right(corpus):
    for document in corpus:
        tokens = document["tokens"]
        for token, following in pairwise(tokens):
            if token in ("a", "an"):
                assert (token == "an") == (following[0].lower() in "aeiou")
            if token == ".":
                assert following[0].isupper()
        assert tokens[0][0].isupper()
        assert tokens[-1] == "."


def test_statistics_of_the_training_texts(world):
    documents = world.documents("train")
    mean_length = sum(len(x["tokens"]) for x in documents) / len(documents)
    assert 30 <= mean_length <= 60
    assert all(2 <= x["tokens"].count(".") <= 5 for x in documents)
    common, in_names = set(), set()
    for document in documents:
        inside = mention_positions(document)
        for position, token in enumerate(document["tokens"]):
            (in_names if position in inside else common).add(token.lower())
    assert 600 <= len(common) <= 900
    assert len(in_names - common) > 300, "words that only names contain"
    forms = [m["form"] for x in documents for m in x["mentions"]]
    assert all(forms.count(x) > 0.05 * len(forms) for x in FORMS)


def test_most_mentions_follow_from_recent_ones(world, corpus):
    near = {(s, o) for s, _, o in world.triples} | {(x, x) for x in world.entities}
    derivable = total = 0
    for document in corpus:
        mentions = document["mentions"]
        for number, mention in enumerate(mentions):
            recent = [m for m in mentions[:number] if m["end"] > mention["start"] - 30]
            total += 1
            derivable += any((m["entity"], mention["entity"]) in near for m in recent)
    assert derivable / total > 0.8


def test_templates_name_known_words_and_slots():
    everything = [*SENTENCES.values(), *REMARKS.values(), ASIDES]
    for template in (x for templates in everything for x in templates):
        assert template.endswith(".")
        assert not {x["bank"] for x in SLOT.finditer(template)} - {None, "kind", *BANKS}
        assert not set("{}[]") & set(SLOT.sub("", template))
    for key, templates in SENTENCES.items():
        wanted = {"s", "o", "p"} if len(key.split()) > 3 else {"s", "o"}
        for template in templates:
            slots = {x["who"] for x in SLOT.finditer(template)} - {None}
            assert slots - {"s"} == wanted - {"s"}, template
    assert set(CONTINUATIONS) <= set(SENTENCES), "each fact can also stand alone"


def test_every_relation_has_sentences(world):
    relations = {
        f"{s.partition('/')[0]} {r} {o.partition('/')[0]}" for s, r, o in world.triples
    }
    assert relations == {key for key in SENTENCES if len(key.split()) == 3}


def readings(world: World, context: str) -> set[tuple[str, str]]:
    """Return every (subject, relation) that a context may ask about."""
    named = {capitalised(aliases[0]): x for x, aliases in world.aliases.items()}
    found = set()
    for key, templates in SENTENCES.items():
        kind, relation, *rest = key.split()
        for template in templates if len(rest) == 1 else ():
            start, _, end = re.split(r"(\{s.*?\})", template + "{s}", maxsplit=1)
            end = end.removesuffix("{s}").removesuffix(" {o}.")
            match = re.fullmatch(f"{re.escape(start)}(.+){re.escape(end)}", context)
            subject = match and named.get(capitalised(match[1]), "")
            if subject and subject.startswith(f"{kind}/"):
                found.add((subject, relation))
    return found


def test_facts_have_one_true_answer_each(world):
    questions = facts(world)
    assert len(questions) == len({x["context"] for x in questions}) == 150
    named = {f" {aliases[0]}": x for x, aliases in world.aliases.items()}
    triples, withheld = set(world.triples), set(world.withheld)
    for question in questions:
        assert list(question) == ["context", "choices", "answer"]
        ids = [named[x] for x in question["choices"]]
        assert len(set(ids)) == 4
        assert len({x.partition("/")[0] for x in ids}) == 1
        asked = readings(world, question["context"])
        assert asked, "worded like the training texts"
        for subject, relation in asked:
            true = [x for x in ids if (subject, relation, x) in triples]
            assert true == [ids[question["answer"]]]
            assert forward((subject, relation, *true)) in withheld
    answers = [x["answer"] for x in questions]
    assert all(answers.count(x) > 20 for x in range(4))


# -- what the package ships ----------------------------------------------------------


def test_the_package_ships_what_is_drawn(world):
    for split in SPLITS:
        assert demo.documents(split) == world.documents(split)
        assert demo.texts(split) == [d["text"] for d in world.documents(split)]
    assert demo.questions() == facts(world)
    graph = demo.knowledge()
    assert {tuple(x) for x in graph["triples"]} == {*map(forward, world.triples)}
    assert graph["aliases"] == world.aliases
    other = generate(seed=1)
    assert demo.other_texts() == [
        d["text"] for split in SPLITS for d in other.documents(split)
    ]


def test_drawing_it_again_writes_the_same_files(tmp_path, monkeypatch, capsys):
    shipped = {path.name: path for path in demo.DATA.iterdir()}
    monkeypatch.setattr("worlds.__main__.DATA", tmp_path)
    draw_again([])
    assert f"{tmp_path / 'test.jsonl.bz2'}: " in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == shipped.keys()
    for name, path in shipped.items():
        # bzip2 has one way to pack, and writes down no time.
        assert (tmp_path / name).read_bytes() == path.read_bytes()
    assert {f"{name}.bz2" for name in contents()} == shipped.keys()


def test_help_draws_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("worlds.__main__.DATA", tmp_path)
    with pytest.raises(SystemExit):
        draw_again(["--help"])
    assert not list(tmp_path.iterdir())
    assert "usage" in capsys.readouterr().out
