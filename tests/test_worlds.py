"""The demonstration world: what the package ships is drawn again, byte for byte."""

import pytest

from lm_latent_eval import demo
from worlds.__main__ import main as draw_again
from worlds.facts import facts
from worlds.graph import forward
from worlds.world import SIZES, generate


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


def test_what_is_shipped_is_read_as_it_was_drawn():
    """Words are cut from the strings again, and are the words that were drawn."""
    world = generate(seed=0)
    for split in SIZES:
        assert demo.documents(split) == world.documents(split)
        assert demo.texts(split) == [d["text"] for d in world.documents(split)]
    assert demo.questions() == facts(world)
    graph = demo.knowledge()
    assert {tuple(x) for x in graph["triples"]} == {*map(forward, world.triples)}
    assert graph["aliases"] == world.aliases
    assert len({*demo.other_texts()} - {*demo.texts("train")}) > 1000
