"""The demonstration world: what the package ships is drawn again, and is true."""

import bz2
import json
import os
import re
import subprocess
import sys

import pytest

from lm_latent_eval import demo
from lm_latent_eval.demo import TOKEN, Document, tokenize
from tests.conftest import PROJECT
from worlds.__main__ import main as draw_again
from worlds.entities import PRONOUNS, capitalised
from worlds.facts import facts
from worlds.graph import forward
from worlds.templates import SENTENCES
from worlds.world import SIZES, World, generate, raw_text


@pytest.fixture(scope="module")
def world() -> World:
    return generate(seed=0)


@pytest.fixture(scope="module")
def corpus(world: World) -> list[Document]:
    return [x for split in SIZES for x in world.documents(split)]


def test_drawing_it_again_writes_the_same_files(tmp_path, monkeypatch, capsys):
    shipped = {path.name: path for path in demo.DATA.iterdir()}
    monkeypatch.setattr("worlds.__main__.DATA", tmp_path)
    with pytest.raises(SystemExit):
        draw_again(["--help"])
    assert not list(tmp_path.iterdir())
    draw_again([])
    assert f"{tmp_path / 'test.jsonl.bz2'}: " in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == shipped.keys()
    for name, path in shipped.items():
        # bzip2 has one way to pack, and writes down no time.
        assert (tmp_path / name).read_bytes() == path.read_bytes()


def test_hash_order_does_not_matter():
    code = "import json; from worlds.__main__ import contents; "
    code += "print(json.dumps(contents()))"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name, content in json.loads(out.stdout).items():
        packed = (demo.DATA / f"{name}.bz2").read_bytes()
        assert content == bz2.decompress(packed).decode()


def test_what_is_shipped_is_read_as_it_was_drawn(world):
    for split in SIZES:
        assert demo.documents(split) == world.documents(split)
        assert demo.texts(split) == [d["text"] for d in world.documents(split)]
    assert demo.questions() == facts(world)
    graph = demo.knowledge()
    assert {tuple(x) for x in graph["triples"]} == {*map(forward, world.triples)}
    assert graph["aliases"] == world.aliases
    assert len({*demo.other_texts()} - {*demo.texts("train")}) > 1000


def test_tokens_survive_a_round_trip(corpus):
    for document in corpus:
        tokens = document["tokens"]
        assert TOKEN.findall(" ".join(tokens)) == tokens
        assert document["text"] == raw_text(tokens)
        assert tokenize(document["text"]) == tokens
        assert " ." not in document["text"]
        assert " ," not in document["text"]


def test_mentions_spell_an_alias_or_a_pronoun(world, corpus):
    for document in corpus:
        end = 0
        for mention in document["mentions"]:
            assert end <= mention["start"] < mention["end"]
            end = mention["end"]
            surface = " ".join(document["tokens"][mention["start"] : end])
            entity = world.cast[mention["entity"]]
            assert mention["form"] in {"name", "description", "pronoun"}
            if mention["form"] == "pronoun":
                assert surface.lower() in PRONOUNS[entity.pronoun].values()
            else:
                assert surface in world.aliases[entity.id]
                described = surface.lower() in entity.descriptions
                assert (mention["form"] == "description") == described
        assert end <= len(document["tokens"])


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
