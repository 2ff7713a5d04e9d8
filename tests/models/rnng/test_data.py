"""Treebanks: brackets to trees, and trees over the tokenizer's words."""

from __future__ import annotations

import codecs

import pytest

from lm_latent_eval.models.rnng.data import read_sentences, read_treebank, reduces
from lm_latent_eval.text.words import END, WordTokenizer

TREES = """
(ROOT (S (NP-SBJ (PRP We)) (VP (VBP do) (RB n't)
   (VP (VB agree))) (. .)))

( (S (NP (-NONE- *)) (VP (VB Read) (NP (DT the)
  (NML (NN user) (HYPH -) (NN guide))) (PP (-NONE- *T*-1)) (-LRB- -LRB-) (CD 3)
  (-RRB- -RRB-))))
(ROOT (NP (-NONE- *)))
"""


@pytest.fixture
def bank(tmp_path):
    path = tmp_path / "bank.ptb"
    path.write_text(TREES)
    return path


def laid_out(sentence) -> str:
    """Each word with the REDUCEs before it, and those before the end."""
    tokenizer = WordTokenizer.train([sentence.text], min_count=1)
    ids, counts = reduces(sentence, tokenizer)
    assert ids[-1] == END
    assert sum(counts) == len(ids) - 2
    words = [*map(tokenizer.decode, ([i] for i in ids[:-1])), "end"]
    return " ".join(f"{w}/{n}" for w, n in zip(words, counts, strict=True))


def test_brackets_become_trees(bank, tmp_path):
    first, second = read_treebank(bank)
    assert first.text == "We don't agree."
    # (We (don't agree) .), the unary ones gone, and right-branching.
    assert laid_out(first) == "We/0 don't/0 agree/0 ./1 end/2"
    assert second.text == "Read the user-guide (3)"
    # (Read (the user-guide) ( 3 ))
    assert laid_out(second) == "Read/0 the/0 user-guide/0 (/1 3/0 )/0 end/4"
    # A leaf of several words is a constituent: (((a @ (b.c)) d) e)
    (tmp_path / "a.mrg").write_text("(S (NP (NN a@b.c) (NN d)) (VP (VB e)))")
    (sentence,) = read_treebank(tmp_path / "a.mrg")
    assert laid_out(sentence) == "a/0 @/0 b.c/0 d/2 e/1 end/1"


def test_trees_are_trees_whatever_the_file_is_called(bank, tmp_path):
    (tmp_path / "a.mrg").write_text("(S (NN first))")
    (tmp_path / "notes.txt").write_text("One line.\nAnother (line).\n")
    texts = [s.text for s in read_sentences(tmp_path)]
    assert texts == ["first", "We don't agree.", "Read the user-guide (3)"]
    lines = read_sentences(tmp_path / "notes.txt")
    assert lines == ["One line.", "Another (line)."]
    for name in ("bank.PTB", "bank.txt", "bank", "wsj/WSJ_0001.MRG"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + bank.read_bytes())
        assert read_sentences(tmp_path / name) == read_treebank(bank)
    assert len(read_sentences(tmp_path / "wsj")) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"(S (NN a))\n(S (NN b)\n\n", ", line 2: .*never closed"),
        (b"(S (NN a)))\n", ", line 1: .*stands outside"),
        (b"(S (NN a b))", ", line 1: .*expected a label and a word"),
        (b"(S\n\n())", ", line 3: .*expected a label and a word"),
        (b"(S (NN a) b)", ", line 1: .*expected a label and a word"),
        (b"", " has no trees"),
        (b"(S (NN \xff))", " is not UTF-8"),
    ],
)
def test_what_holds_no_trees_says_where(tmp_path, content, message):
    path = tmp_path / "bad.ptb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.ptb{message}"):
        read_treebank(path)


@pytest.mark.parametrize(
    ("step", "number"),
    [(8, 1563), pytest.param(1, 13_263, marks=pytest.mark.nightly)],
)
def test_the_treebank_at_hand(data_dir, step, number):
    """GUM is read completely, or every so many of its files."""
    files = sorted((data_dir / "gum" / "const").glob("*.ptb"))[::step]
    sentences = [sentence for file in files for sentence in read_treebank(file)]
    assert len(sentences) == number
    tokenizer = WordTokenizer.train((s.text for s in sentences), min_count=2)
    for sentence in sentences[::7]:
        ids, counts = reduces(sentence, tokenizer)
        assert sum(counts) == len(ids) - 2 == len(tokenizer(sentence.text).ids) - 1
        assert counts[0] == 0
