"""An RNNG of a corpus, and the derivations of a corpus as a treebank."""

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.catalog import load_language, load_learner
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.learners.rnng import (
    derivations,
    parsed,
    train_grammar,
    write_trees,
)
from lm_latent_eval.models import checkpoint as checkpoints
from lm_latent_eval.models.rnng.data import read_treebank
from lm_latent_eval.training.options import Options, RNNGSize
from tests.distortion.languages import tiny
from tests.distortion.learners.tiny import draw

SIZE = RNNGSize(hidden_size=6, num_layers=1, proposal_size=4, max_words=99, dropout=0.0)


def corpora(directory, language):
    whole = {"language": language, "max_length": 200}
    train = draw(directory / "train", 120, **whole)
    return train, draw(directory / "dev", 40, first=1000, **whole)


def test_it_learns_with_all_words_of_the_language(tmp_path):
    language = tiny.pcfg()
    corpus, dev = corpora(tmp_path, language)
    ids = dev.dataset()["ids"]
    mean = {}
    for epochs in (1, 4):
        options = Options(epochs=epochs, learning_rate=2e-2)
        path = tmp_path / f"rnng{epochs}"
        train_grammar(corpus, dev, path, size=SIZE, options=options)
        learner = load_learner(path, dev, num_samples=10)
        mean[epochs] = learner.score(ids, dev.indices).log_p.mean().item()
    best = language.log_p(ids).mean().item()
    assert mean[1] < mean[4] < best
    # "never" is no word of the sample, but one of the language; there is no unknown.
    found = checkpoints.load_checkpoint(tmp_path / "rnng4")
    assert found.tokenizer.vocabulary == ["a", "b", "never"]
    generative, first = found.model.generative, torch.tensor([0])
    [log_p] = generative.log_words(generative.begin().top(first.numpy()), first)
    assert log_p.isfinite().tolist() == [False] * 4 + [True] * 3
    assert str(found.model.normalization) == "normalised"
    assert found.model.config.hidden_size == SIZE.hidden_size


def test_bad_corpora(tmp_path):
    corpus, _ = corpora(tmp_path / "pcfg", tiny.pcfg())
    drawn = draw(tmp_path / "causal", 3, language=tiny.causal())
    with pytest.raises(ValueError, match="its tokens are not words"):
        train_grammar(drawn, drawn, tmp_path / "rnng", size=SIZE)
    other = PCFG({**tiny.AMBIGUOUS, "words": ["b", "a", "never"]})
    _, dev = corpora(tmp_path / "other", other)
    with pytest.raises(ValueError, match="different words: draw both from one"):
        train_grammar(corpus, dev, tmp_path / "rnng", size=SIZE)


# Trees


def some(language, directory, number=60, max_length=200):
    """Draw a corpus that begins elsewhere than at the first sequence."""
    how = {"first": 11, "seed": 2, "max_length": max_length}
    return draw(directory, number, language=language, **how)


def test_brackets_are_read_as_what_they_were(tmp_path):
    language = load_language("agreement")
    corpus = some(language, tmp_path / "corpus")
    path = tmp_path / "trees.ptb"
    arguments = ["--corpus", str(corpus.directory), "--output", str(path)]
    assert main(["distort", "trees", *arguments]) == 0
    found = read_treebank(path)
    assert found == [parsed(each) for each in derivations(corpus)]
    words = [" ".join(each.words) for each in derivations(corpus)]
    assert [sentence.text for sentence in found] == words
    assert path.read_text().splitlines()[0] == derivations(corpus)[0].brackets()
    assert not [*tmp_path.glob("partial*")]


def test_corpora_without_trees(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "gpt2")
    language = load_language(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="of kind causal: only those of a grammar"):
        derivations(some(language, tmp_path / "causal", max_length=9))
    cut = some(tiny.pcfg(), tmp_path / "cut", max_length=2)
    with pytest.raises(ValueError, match=r"of 60 sequences of .* cut at 2 tokens"):
        derivations(cut)
    corpus = some(tiny.pcfg(), tmp_path / "corpus")
    with pytest.raises(ValueError, match=r"trees.txt: a file of trees ends in \.ptb"):
        write_trees(corpus, tmp_path / "trees.txt")


def test_words_that_brackets_cannot_hold(tmp_path):
    for words, message in (
        (["do", "n't"], r"words \"do n't\" are read from brackets as \[\"don't\"\]"),
        (["a", "b-"], r"'a b-' are read from brackets as \['a', 'b', '-'\]"),
        (["f(x)", "y"], r"brackets in words or symbols: f\(x\); rename"),
    ):
        rules = {"S": {" ".join(words): 1}}
        grammar = {"kind": "pcfg", "start": "S", "words": words, "rules": rules}
        corpus = some(PCFG(grammar), tmp_path / words[1], 3)
        with pytest.raises(ValueError, match=message):
            write_trees(corpus, tmp_path / "trees.ptb")
    assert not [*tmp_path.glob("*.ptb")]
