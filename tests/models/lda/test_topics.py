"""What a topic model reads, and where its topics come from."""

import logging
import random
import re

import numpy as np
import pytest
import torch

import lm_latent_eval
from lm_latent_eval.estimators import Bound
from lm_latent_eval.models.lda.training import TopicTables, train_lda
from lm_latent_eval.models.stepwise import Histories
from lm_latent_eval.scoring.opening import scorer_of
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from lm_latent_eval.training.options import LDAFit
from tests.models.lda import tiny

TEXTS = ["fox hound fox hunt", "moon star moon sky", "fox hunt hound", "star sky sky"]
WORDS = ["fox", "hound", "hunt", "moon", "star", "sky"]
PHI = np.array([[4.0, 3, 2, 0.5, 0.2, 0.3], [0.1, 0.2, 0.7, 3, 3, 3]])
ALPHA = np.array([0.4, 0.9])


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    directory = tmp_path_factory.mktemp("topics")
    TopicTables(WORDS, PHI, ALPHA, lowercase=True).write(directory)
    return lm_latent_eval.load(directory)


def test_reserved_words_are_not_counted_as_known(topics):
    about = scorer_of(topics.opened, {}, quiet=True).about
    said = f"{len(WORDS)} known words to utter, 0 more to copy"
    assert about["latent_eval"]["vocabulary"] == said


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


@pytest.mark.parametrize("estimator", ["beam", "ais", "is"])
def test_a_checkpoint_of_tables_scores_as_by_hand(topics, estimator):
    """In any order of the words."""
    texts = ["Fox fox moon.", "moon fox fox"]
    found = topics.log_likelihood(texts, estimator=estimator, num_samples=3000)
    for estimate in found:
        assert estimate.num_tokens == 3
        off = abs(estimate.log_evidence - by_hand(["fox", "fox", "moon"]))
        assert off < 5 * estimate.draws_stderr + 1e-9


def test_the_default_prints_errors_that_hold(topics):
    """Of texts of 40 words, which have more counts than a pass has places."""
    draw = random.Random(0)
    texts = [draw.choices(WORDS, k=40) for _ in range(30)]
    found = topics.log_likelihood([" ".join(t) for t in texts], num_samples=20)
    assert not any(each.bound is Bound.EXACT for each in found), "premise"
    missed = 0
    for text, estimate in zip(texts, found, strict=True):
        off = abs(estimate.log_evidence - by_hand(text))
        missed += off > 1.96 * estimate.stderr
    assert missed <= 3


def test_searches_rank_topics_by_the_words_to_come():
    """As the proposal weighs them; what has used each topic as often goes on alike."""
    model = tiny.lda()
    proposal = model.proposal()
    batch = TokenBatch.collate([[4, 5, 1, 4]], first=START)
    encoded = proposal.encode(batch)
    steps = proposal.searched_steps(encoded)
    histories = torch.tensor([[[0, 2], [2, 0], [1, 2]]])  # of the first two words
    counts = torch.nn.functional.one_hot(histories, tiny.TOPICS).sum(2).double()
    listed = steps.choices(Histories((counts,)), 2, torch.zeros(1, 3).double(), None)
    assert listed.key[0, 0].equal(listed.key[0, 1])
    assert len(listed.key.unique()) == 2 * tiny.TOPICS - 1, "0, 1, 2 both may become"
    to_come = encoded.read[0, 3].exp()
    share = counts[0] + model.alpha + to_come
    ranks = listed.score[0] - model.read(batch, ())[0, 2]
    expected = share.log() - share.log()[:, :1]
    torch.testing.assert_close(ranks - ranks[:, :1], expected)


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


def test_only_whole_texts_of_known_words_have_a_probability(topics):
    for ask in (
        lambda: topics.log_likelihood(["sky"], contexts=["fox"]),
        lambda: topics.generate(["fox"]),
    ):
        with pytest.raises(ValueError, match="not in which order"):
            ask()
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


def test_training_finds_topics_and_is_repeatable(tmp_path, capsys):
    pytest.importorskip("tomotopy", reason="tomotopy is not installed")
    fit = LDAFit(num_topics=2, iterations=100)
    first, again = (
        train_lda(TEXTS * 5, tmp_path / name, fit=fit) for name in ("first", "again")
    )
    assert torch.equal(first.log_topics, again.log_topics)
    assert re.search(r"sweep 100 of 100: [\d.]+ nats", capsys.readouterr().err)
    # Of animals and of the sky: each topic has words that the other hardly has.
    animals = first.log_phi().exp()[:, 4:]
    words = lm_latent_eval.load(tmp_path / "first").checkpoint.encoder().tokenizer
    fox, sky = (words(word).ids[0] - 4 for word in ("fox", "sky"))
    assert int(animals[:, fox].argmax()) != int(animals[:, sky].argmax())
    with pytest.raises(ValueError, match="no word occurs 9 times"):
        train_lda(TEXTS, tmp_path / "none", min_count=9)
