"""What a topic model reads, where its topics come from, and what it refuses."""

from __future__ import annotations

import logging
import pickle
import re
import sys

import numpy as np
import pytest
import torch

import lm_latent_eval
from lm_latent_eval.convert.lda import convert
from lm_latent_eval.models.lda.training import TopicTables, train_lda
from lm_latent_eval.models.lda.words import lowered
from lm_latent_eval.training.options import LDAFit

TEXTS = ["fox hound fox hunt", "moon star moon sky", "fox hunt hound", "star sky sky"]
WORDS = ["fox", "hound", "hunt", "moon", "star", "sky"]
PHI = np.array([[4.0, 3, 2, 0.5, 0.2, 0.3], [0.1, 0.2, 0.7, 3, 3, 3]])
ALPHA = np.array([0.4, 0.9])


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    directory = tmp_path_factory.mktemp("topics")
    TopicTables(WORDS, PHI, ALPHA, lowercase=True).write(directory)
    return lm_latent_eval.load(directory)


def by_hand(words):
    """Sum over the topics of every word, with p(z) as a product of urns."""
    phi = PHI / PHI.sum(1, keepdims=True)
    weights = {(0, 0): 1.0}
    for word in words:
        column, grown = phi[:, WORDS.index(word)], {}
        for counts, weight in weights.items():
            for n in range(2):
                share = (counts[n] + ALPHA[n]) / (sum(counts) + ALPHA.sum())
                more = tuple(c + (k == n) for k, c in enumerate(counts))
                grown[more] = grown.get(more, 0.0) + weight * share * column[n]
        weights = grown
    return float(np.log(sum(weights.values())))


@pytest.mark.parametrize("estimator", ["beam", "mixed"])
def test_a_checkpoint_of_tables_scores_as_by_hand(topics, estimator):
    [found] = topics.log_likelihood(
        ["Fox moon sky."], estimator=estimator, num_samples=100
    )
    assert found.num_tokens == 3
    assert abs(found.log_evidence - by_hand(["fox", "moon", "sky"])) < 1e-9


@pytest.mark.parametrize("estimator", ["ais", "l2r", "chib", "is"])
def test_the_order_of_words_moves_no_probability(topics, estimator):
    both = topics.log_likelihood(
        ["fox fox moon", "moon fox fox"], estimator=estimator, num_samples=3000
    )
    for found in both:
        slack = 5 * found.draws_stderr + 1e-9
        assert abs(found.log_evidence - by_hand(["fox", "fox", "moon"])) < slack


def test_unknown_words_are_left_out_and_named_once(topics, caplog):
    with caplog.at_level(logging.WARNING):
        encoder = topics.checkpoint.encoder()
        reading = encoder("A fox, a Hound; stars")
        encoder("a fox")
    ids = {word: 4 + n for n, word in enumerate(WORDS)}
    assert reading.ids == [ids["fox"], ids["hound"]]
    assert reading.left_out == [1, 2, 2]
    assert encoder("; stars").left_out == [2]
    assert reading.ends == [5, 14]
    [message] = caplog.messages
    assert "'A', ',', 'a', ';', 'stars'" in message


def test_every_letter_stays_in_its_place_in_lower_case(topics):
    letters = "".join(map(chr, range(0x300)))
    assert len(lowered(letters)) == len(letters)
    two = [c for c in map(chr, range(sys.maxunicode + 1)) if len(c.lower()) != 1]
    assert two == ["İ"]
    assert topics.checkpoint.encoder()("İ fox").ends == [5]


def test_training_and_reading_write_the_same_lower_case(tmp_path):
    pytest.importorskip("tomotopy")
    texts = ["ΛΟΓΟΣ İZMİR ΟΔΥΣΣΕΥΣ", "λόγος ΛΟΓΟΣ İzmir οδυσσευς"]
    train_lda(texts, tmp_path, min_count=2, lowercase=True, fit=LDAFit(2, iterations=5))
    read = lm_latent_eval.load(tmp_path).checkpoint.encoder()
    for text in (
        "ΛΟΓΟΣ İZMİR ΟΔΥΣΣΕΥΣ",
        "λογος izmir οδυσσευς",
        "Λογος İzmir Οδυσσευς",
    ):
        assert len(read(text).ids) == 3, text
    assert read("λόγος").ids == [], "it was there once"


def test_only_whole_texts_have_a_probability(topics):
    with pytest.raises(ValueError, match="not in which order"):
        topics.log_likelihood(["sky"], contexts=["fox"])
    with pytest.raises(ValueError, match="not in which order"):
        topics.generate(["fox"])


def test_a_text_of_unknown_words_has_no_tokens(topics):
    [found] = topics.log_likelihood(["nothing known"])
    assert (found.num_tokens, found.log_evidence) == (0, 0.0)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (TopicTables(WORDS[:2], PHI, ALPHA), "for 2 words"),
        (TopicTables(WORDS, PHI * 0, ALPHA), "topics hold a number"),
        (TopicTables(WORDS, PHI, ALPHA * -1), "alpha hold a number"),
        (TopicTables(["fox", *WORDS[:5]], PHI, ALPHA), "'fox' is there twice"),
    ],
)
def test_tables_of_no_topic_model_are_refused(tmp_path, tables, message):
    with pytest.raises(ValueError, match=message):
        tables.write(tmp_path)


def test_scikit_learn_becomes_a_checkpoint(tmp_path):
    decomposition = pytest.importorskip("sklearn.decomposition")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    pipeline = pytest.importorskip("sklearn.pipeline").Pipeline(
        [
            ("words", text.CountVectorizer()),
            ("lda", decomposition.LatentDirichletAllocation(3, random_state=0)),
        ]
    )
    pipeline.fit(TEXTS)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(pipeline))
    model = convert(tmp_path / "model.pkl", tmp_path / "topics", library="scikit-learn")
    lda = pipeline.steps[1][1]
    expected = lda.components_ / lda.components_.sum(1, keepdims=True)
    np.testing.assert_allclose(model.log_phi()[:, 4:].exp(), expected, rtol=1e-12)
    np.testing.assert_allclose(model.alpha, [1 / 3] * 3, rtol=1e-12)
    loaded = lm_latent_eval.load(tmp_path / "topics")
    assert loaded.checkpoint.encoder()("The FOX").ids  # in lower case


def test_gensim_becomes_a_checkpoint(tmp_path):
    corpora = pytest.importorskip("gensim.corpora", reason="gensim is not installed")
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    words = [text.split() for text in TEXTS]
    dictionary = corpora.Dictionary(words)
    bags = [dictionary.doc2bow(text) for text in words]
    theirs = models.LdaModel(bags, 2, dictionary, alpha="auto", random_state=0)
    theirs.save(str(tmp_path / "model"))
    model = convert(tmp_path / "model", tmp_path / "topics", library="gensim")
    # Theirs are in float32.
    np.testing.assert_allclose(
        model.log_phi()[:, 4:].exp(), theirs.get_topics(), rtol=1e-5
    )
    np.testing.assert_allclose(model.alpha, theirs.alpha, rtol=1e-5)


def test_training_finds_topics_and_is_repeatable(tmp_path, capsys):
    tomotopy = pytest.importorskip("tomotopy", reason="tomotopy is not installed")
    fit = LDAFit(num_topics=2, iterations=100)
    first, again = (
        train_lda(TEXTS * 5, tmp_path / name, fit=fit) for name in ("first", "again")
    )
    torch.testing.assert_close(first.log_topics, again.log_topics, rtol=0, atol=0)
    said = capsys.readouterr().err
    assert re.findall(r"sweep (\d+) of 100: [\d.]+ nats a word", said)[:10] == [
        str(10 * n) for n in range(1, 11)
    ]
    # Of animals and of the sky: each topic has words that the other hardly has.
    animals = first.log_phi().exp()[:, 4:]
    words = lm_latent_eval.load(tmp_path / "first").checkpoint.encoder().tokenizer
    fox, sky = (words(word).ids[0] - 4 for word in ("fox", "sky"))
    assert int(animals[:, fox].argmax()) != int(animals[:, sky].argmax())

    model = tomotopy.LDAModel(k=2, seed=1)
    for text in TEXTS:
        model.add_doc(text.split())
    model.train(20, workers=1)
    model.save(str(tmp_path / "theirs.bin"))
    file = tmp_path / "theirs.bin"
    ours = convert(file, tmp_path / "topics", library="tomotopy", trust=True)
    theirs = [model.get_topic_word_dist(k) for k in range(2)]
    np.testing.assert_allclose(ours.log_phi()[:, 4:].exp(), theirs, rtol=1e-5)


def test_files_that_hold_no_topics_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is missing"):
        convert(tmp_path / "none", tmp_path, library="scikit-learn")
    (tmp_path / "other").write_bytes(pickle.dumps({"no": "pipeline"}))
    with pytest.raises(ValueError, match="holds no topic model"):
        convert(tmp_path / "other", tmp_path, library="scikit-learn")


def test_too_little_text_is_refused(tmp_path):
    pytest.importorskip("tomotopy", reason="tomotopy is not installed")
    with pytest.raises(ValueError, match="no word occurs 9 times"):
        train_lda(TEXTS, tmp_path, min_count=9)
