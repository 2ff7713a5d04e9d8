"""Annotated files as the strings that their models are trained on."""

import json

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.models.texts import read_texts
from lm_latent_eval.text import corpora

TREES = "(ROOT (S (NP (PRP We)) (VP (VBP do) (RB n't) (VP (VB agree))) (. .)))\n"
CONLL = """\
#begin document (a); part 000
a 0 0 Ada NNP - - - - - - (0)
a 0 1 slept VBD - - - - - - -
a 0 2 . . - - - - - - -

#end document
"""


@pytest.fixture
def files(tmp_path):
    contents = {"t.mrg": TREES, "deep/a.v4_conll": CONLL, "plain.txt": "As it is.\n"}
    contents["b.conll"] = CONLL.replace("Ada", "Bo")
    (tmp_path / "deep").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_annotation_goes_and_texts_stay(files):
    assert read_texts(files / "t.mrg") == ["We don't agree."]
    assert read_texts(files / "deep/a.v4_conll") == ["Ada slept ."]
    assert read_texts(files / "plain.txt") == ["As it is."]
    assert read_texts(files) == ["Bo slept .", "Ada slept ."], "a folder of CoNLL files"
    for path in files.rglob("*conll"):
        path.unlink()
    assert read_texts(files) == ["We don't agree."], "a folder of trees"


def test_one_command_writes_them(files, capsys):
    output = files / "out.jsonl"
    assert main(["text", str(files / "t.mrg"), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"wrote 1 texts to {output}\n"
    assert json.loads(output.read_text()) == {"text": "We don't agree."}
    assert corpora.read_texts(output) == ["We don't agree."]
    with pytest.raises(ValueError, match="`lm-latent-eval text` writes their texts"):
        corpora.read_texts(files / "t.mrg")
