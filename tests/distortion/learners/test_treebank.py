"""The derivations of a corpus as a treebank."""

from __future__ import annotations

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.catalog import load_language
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.grammar import Derivation
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.learners.latent import exact_vocabulary, texts_of
from lm_latent_eval.distortion.learners.rnng import derivations, parsed, write_trees
from lm_latent_eval.models.rnng.data import ParsedSentence, read_treebank, reduces
from lm_latent_eval.text.words import END
from tests.distortion.languages import tiny


def draw(language, directory, number=60, **options):
    options = {"first": 11, "seed": 2, "max_length": 200, "quiet": True, **options}
    return Corpus.draw(language, directory, number, **options)


def test_trees_are_those_of_the_sequences(tmp_path):
    corpus = draw(tiny.pcfg(), tmp_path)
    found = [parsed(derivation) for derivation in derivations(corpus)]
    assert [sentence.text for sentence in found] == texts_of(corpus)
    for sentence in found:
        starts = sentence.leaves
        words = [sentence.text[start:].split()[0] for start in starts]
        assert words == sentence.text.split()
    assert len(set(found)) > 10, "premise"


def test_binary_trees_by_hand():
    """Chains collapse, single words too, and more than two parts branch right."""
    steps = ["S", "X", "N", "A", "old", None, "B", "fox", None, None, None]
    steps += ["and", "V", "naps", None, "Q", "so", None, None]
    sentence = parsed(Derivation.of(steps, "SXNABVQ"))
    assert sentence == ParsedSentence(
        "old fox and naps so", (0, 4, 8, 12, 17), frozenset({(0, 4), (0, 1)})
    )
    words = ["so", "old", "fox", "and", "naps"]
    ids, before = reduces(sentence, exact_vocabulary(words))
    assert ids == [5, 6, 7, 8, 4, END]
    # ((old fox) (and (naps so)))
    assert before == [0, 0, 1, 0, 0, 3]


def test_brackets_are_read_as_what_they_were(tmp_path):
    language = load_language("agreement")
    corpus = draw(language, tmp_path / "corpus")
    path = tmp_path / "trees.ptb"
    arguments = ["--corpus", str(corpus.directory), "--output", str(path)]
    assert main(["distort", "trees", *arguments]) == 0
    assert read_treebank(path) == [parsed(each) for each in derivations(corpus)]
    assert path.read_text().splitlines()[0] == derivations(corpus)[0].brackets()
    assert not [*tmp_path.glob("partial*")]


def grammar(rules, words):
    return PCFG({"kind": "pcfg", "start": "S", "words": words, "rules": {"S": rules}})


def test_corpora_without_trees(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "gpt2")
    language = load_language(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="of kind causal: only those of a grammar"):
        derivations(draw(language, tmp_path / "causal", max_length=9))
    cut = draw(tiny.pcfg(), tmp_path / "cut", max_length=2)
    with pytest.raises(ValueError, match=r"of 60 sequences of .* cut at 2 tokens"):
        derivations(cut)
    corpus = draw(tiny.pcfg(), tmp_path / "corpus")
    with pytest.raises(ValueError, match=r"trees.txt: a file of trees ends in \.ptb"):
        write_trees(corpus, tmp_path / "trees.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["do", "n't"],
            r"the words \"do n't\" are read from brackets as \[\"don't\"\]",
        ),
        (["a", "b-"], r"the words 'a b-' are read from brackets as \['a', 'b', '-'\]"),
        (["f(x)", "y"], r"brackets in words or symbols: f\(x\); rename"),
    ],
)
def test_words_that_brackets_cannot_hold(tmp_path, words, message):
    corpus = draw(grammar({" ".join(words): 1}, words), tmp_path / "corpus", 3)
    with pytest.raises(ValueError, match=message):
        write_trees(corpus, tmp_path / "trees.ptb")
    assert not [*tmp_path.glob("*.ptb")]
