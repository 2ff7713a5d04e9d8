"""The demonstration world: what the package ships is drawn again, byte for byte."""

import pytest

from lm_latent_eval import demo
from lm_latent_eval.demo import TOKEN, tokenize
from worlds.__main__ import main as draw_again
from worlds.facts import facts
from worlds.graph import forward
from worlds.world import SIZES, World, generate, raw_text


@pytest.fixture(scope="module")
def world() -> World:
    return generate(seed=0)


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


def test_what_is_shipped_is_read_as_it_was_drawn(world):
    for split in SIZES:
        assert demo.documents(split) == world.documents(split)
        assert demo.texts(split) == [d["text"] for d in world.documents(split)]
    assert demo.questions() == facts(world)
    graph = demo.knowledge()
    assert {tuple(x) for x in graph["triples"]} == {*map(forward, world.triples)}
    assert graph["aliases"] == world.aliases
    assert len({*demo.other_texts()} - {*demo.texts("train")}) > 1000


def test_tokens_survive_a_round_trip(world):
    for document in [x for split in SIZES for x in world.documents(split)]:
        tokens = document["tokens"]
        assert TOKEN.findall(" ".join(tokens)) == tokens
        assert document["text"] == raw_text(tokens)
        assert tokenize(document["text"]) == tokens
        assert " ." not in document["text"]
        assert " ," not in document["text"]


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
