"""The demonstration corpus as users get it, and how the package draws it again."""

import hashlib
from pathlib import Path

import pytest

from lm_latent_eval import demo
from lm_latent_eval.demo.__main__ import main
from worlds.__main__ import main as draw_again

FILES = {
    "train.jsonl": "98fc74e97562593643a14b386a84fbed49e000495c9ed9aa1ddb1deb12186722",
    "dev.jsonl": "6c70f0ca8b4e6b707cde5d09fc8c36898a7b1c5d369e2bb6d8c2a5bde656df20",
    "test.jsonl": "4ee852a846d3d7db41b5f6bac492a4284b5fa9fb49e21914303ff78b24a07094",
    "knowledge.json": (
        "ae996f5d2ae22b2a9bf5752a1430389630f579f62c2a594ee23a0041afbc0321"
    ),
}


def test_the_command_writes_the_same_files_everywhere(tmp_path, capsys):
    main(["--out", str(tmp_path / "new")])
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    digests = {name: hashlib.sha256(b).hexdigest() for name, b in written.items()}
    assert digests == FILES
    shown = capsys.readouterr().out
    assert "3000 documents" in shown
    assert "854 facts about 334 entities" in shown
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path / "new" / "dev.jsonl")])
    assert "dev.jsonl is a file: name a folder" in capsys.readouterr().err
    main(["--checkpoint"])
    assert (Path(capsys.readouterr().out.rstrip("\n")) / "model.safetensors").is_file()


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=r"'valid'.*'train', 'dev', 'test'"):
        demo.documents("valid")
    demo.documents("dev")[0]["tokens"].clear()
    assert demo.documents("dev")[0]["tokens"], "who reads may change what was read"


def test_questions_and_texts_of_another_world_are_read_whole():
    questions, known = demo.questions(), {*demo.texts("train")}
    assert len(questions) == 150
    assert all(0 <= q["answer"] < len(q["choices"]) for q in questions)
    assert len({*demo.other_texts()} - known) == 3400


@pytest.mark.nightly
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
