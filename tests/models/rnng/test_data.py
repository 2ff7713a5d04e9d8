"""Treebanks: brackets to trees, and trees over the tokenizer's words."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.models.rnng.data import (
    count_reduces,
    read_sentences,
    read_treebank,
    reduces,
)
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


@st.composite
def nested(draw, low=0, size=None):
    """Spans of a random n-ary tree over ``size`` words from ``low`` on."""
    size = draw(st.integers(1, 9)) if size is None else size
    spans = {(low, low + size - 1)}
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
    if cuts:
        edges = [0, *sorted(cuts), size]
        for a, b in pairwise(edges):
            spans |= draw(nested(low + a, b - a))
    return spans


@given(nested())
def test_every_constituent_of_a_tree_is_built(spans):
    """Run the actions: each span of the tree is an item of the stack at some time."""
    words = max(j for _, j in spans) + 1
    counts = count_reduces(spans, words)
    assert sum(counts) == words - 1
    stack, built = [], set()
    for t, reduces_before in enumerate(counts):
        for _ in range(reduces_before):
            (_, j), (i, _) = stack.pop(), stack.pop()
            stack.append((i, j))
            built.add((i, j))
        if t < words:
            stack.append((t, t))
            built.add((t, t))
    assert stack == [(0, words - 1)]
    assert spans <= built


def test_the_treebank_at_hand(data_dir):
    """GUM is read completely."""
    sentences = read_treebank(data_dir / "gum" / "const")
    assert len(sentences) == 13_263
    tokenizer = WordTokenizer.train((s.text for s in sentences), min_count=2)
    for sentence in sentences[::7]:
        ids, counts = reduces(sentence, tokenizer)
        assert sum(counts) == len(ids) - 2 == len(tokenizer(sentence.text).ids) - 1
        assert counts[0] == 0
