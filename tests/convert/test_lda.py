"""Topic models of other libraries: the lines of the page, and tables that are none."""

from __future__ import annotations

import pickle
import re

import numpy
import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.convert.lda import convert
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.text.words import WordTokenizer
from tests.conftest import PROJECT
from tests.convert.hostile import Runs

TEXTS = ["the fox saw the fox", "the sky is blue", "a fox and the sky", "blue sky fox"]
PAGE = (PROJECT / "docs/lda.md").read_text(encoding="utf-8")
LINE = r"# (gensim|scikit-learn|tomotopy): .*\n(numpy\.savez\((?:.*\n)*?\)\n)"
LINES = dict(re.findall(LINE, PAGE))


def of_gensim():
    from gensim import corpora, models

    words = [text.split() for text in TEXTS]
    dictionary = corpora.Dictionary(words)
    bags = [dictionary.doc2bow(text) for text in words]
    model = models.LdaModel(bags, 2, dictionary, alpha="auto", random_state=0)
    topics = model.get_topics()
    words = [dictionary[i] for i in range(len(dictionary))]
    return {"model": model}, words, topics, model.alpha


def of_scikit_learn():
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    model = LatentDirichletAllocation(3, random_state=0)
    model.fit(vectorizer.fit_transform(TEXTS))
    topics = model.components_ / model.components_.sum(1, keepdims=True)
    named = {"model": model, "vectorizer": vectorizer}
    return named, sorted(vectorizer.vocabulary_), topics, [1 / 3] * 3


def of_tomotopy():
    tomotopy = pytest.importorskip(
        "tomotopy", reason="pip install 'lm-latent-eval[topics]'"
    )
    model = tomotopy.LDAModel(k=2, seed=1)
    for text in TEXTS:
        model.add_doc(text.split())
    model.train(20, workers=1)
    topics = [model.get_topic_word_dist(k) for k in range(2)]
    return {"model": model}, [*model.used_vocabs], topics, model.alpha


LIBRARIES = {
    "gensim": of_gensim,
    "scikit-learn": of_scikit_learn,
    "tomotopy": of_tomotopy,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_line_of_the_page_keeps_every_number(tmp_path, monkeypatch, library):
    names, words, topics, alpha = LIBRARIES[library]()
    monkeypatch.chdir(tmp_path)
    exec(LINES[library], {"numpy": numpy, **names})
    found = convert(tmp_path / "topics.npz", tmp_path / "topics")
    phi = found.log_phi().exp().numpy()
    numpy.testing.assert_allclose(phi[:, 4:], topics, rtol=1e-5)
    numpy.testing.assert_allclose(found.alpha, alpha, rtol=1e-6)
    loaded = load_checkpoint(tmp_path / "topics")
    tokenizer = WordTokenizer.load(tmp_path / "topics", loaded.model.config.vocab_size)
    assert [tokenizer.word(i) for i in range(4, 4 + len(words))] == words
    assert loaded.encoder()("The FOX").ids, "in lower case"


def save(path, **changes):
    tables = {"words": ["fox", "sky"], "phi": [[0.5, 0.5], [0.1, 0.9]], "alpha": 0.5}
    numpy.savez(path, **tables | changes)


def test_words_that_are_cut_otherwise_are_named(tmp_path, capsys):
    save(tmp_path / "t.npz", words=["Fox", "well known"])
    places = ["--tables", str(tmp_path / "t.npz"), "--output", str(tmp_path / "out")]
    assert main(["convert", "lda", *places]) == 0
    said = capsys.readouterr().out
    assert "2 topics of 2 words, as they are" in said
    assert "1 words such as 'well known' are in none" in said


BAD = {
    "its words are no list of strings": {"words": [1, 2]},
    "not of numbers": {"phi": [["a", "b"]]},
    "for 3 words": {"words": ["a", "b", "c"]},
    "is there twice": {"words": ["a", "a"]},
    "not positive": {"phi": [[0.0, 1.0]]},
    "alpha hold": {"alpha": float("nan")},
}


@pytest.mark.parametrize("said", BAD)
def test_tables_that_are_none_are_refused(tmp_path, refused, said):
    save(tmp_path / "t.npz", **BAD[said])
    assert said in refused_tables(tmp_path, refused)


def refused_tables(folder, refused):
    place = folder / "t.npz"
    found = refused("convert", "lda", "--tables", place, "--output", folder / "out")
    assert str(place) in found
    assert not (folder / "out").exists()
    return found


def test_files_that_are_none_are_refused(tmp_path, refused):
    path = tmp_path / "t.npz"
    assert "No such file" in refused_tables(tmp_path, refused)
    save(path)
    whole = path.read_bytes()
    numpy.savez(path, words=["a"])
    others = (b"", b"words", whole[:-100], path.read_bytes(), pickle.dumps([1]))
    for content in others:
        path.write_bytes(content)
        assert "holds no tables of a topic model" in refused_tables(tmp_path, refused)


def test_code_in_tables_is_not_run(tmp_path, refused):
    sprung = tmp_path / "sprung"
    objects = numpy.array([Runs(sprung)], object)
    save(tmp_path / "t.npz", words=objects)
    refused_tables(tmp_path, refused)
    (tmp_path / "t.npz").write_bytes(pickle.dumps(Runs(sprung)))
    refused_tables(tmp_path, refused)
    assert not sprung.exists()
    pickle.loads((tmp_path / "t.npz").read_bytes())
    assert sprung.exists(), "premise: reading it as a pickle would show"
