"""Topic models under lm-eval: whole texts and document completion."""

from __future__ import annotations

import json
import math

import lm_eval
import numpy as np
import pytest

import lm_latent_eval
from lm_latent_eval.harness.perplexity import halves
from lm_latent_eval.models.lda.training import TopicTables
from lm_latent_eval.scoring.interface import scorer_of
from lm_latent_eval.scoring.records import row_of
from lm_latent_eval.scoring.texts import Query
from tests.stock_tasks import tasks

TEXTS = ["fox hound zebra moon", "sky sky fox", "moon"]


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    directory = tmp_path_factory.mktemp("topics")
    phi = np.array([[4.0, 3, 1, 1], [1, 1, 3, 3]])
    TopicTables(["fox", "hound", "moon", "sky"], phi, np.array(0.5)).write(directory)
    return directory


def run(topics, path, task):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    manager = tasks(lm_latent_eval.task_path(), metadata={"text_file": str(path)})
    found = lm_eval.simple_evaluate(
        model="latent_lda",
        model_args={"pretrained": str(topics), "estimator": "beam"},
        tasks=[task],
        task_manager=manager,
        metadata={"text_file": str(path)},
        bootstrap_iters=0,
    )
    return found["results"][task]


def log_p(topics, texts):
    model = lm_latent_eval.load(topics)
    return model.log_likelihood(texts, estimator="beam", num_samples=1000)


def test_perplexity_is_of_known_words(topics, tmp_path):
    results = run(topics, tmp_path / "texts.jsonl", "latent_perplexity")
    total = sum(found.log_evidence for found in log_p(topics, TEXTS))
    expected = math.exp(-total / 7)  # zebra is no word of theirs
    assert abs(results["token_perplexity,none"] - expected) < 1e-9
    for rate in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert results[f"{rate},none"] == "refused: 1 words left out"


@pytest.mark.usefixtures("stock_data")
def test_a_stock_task_is_refused_where_words_are_left_out(topics):
    """Its metrics divide by all words of a text, and can refuse nothing."""
    with pytest.raises(
        ValueError, match=r"wikitext/\d: .* leaves them out, and word_p"
    ):
        lm_eval.simple_evaluate(
            model="latent_lda",
            model_args={"pretrained": str(topics), "estimator": "beam"},
            tasks=["wikitext"],
            task_manager=tasks(),
            bootstrap_iters=0,
        )


def test_texts_of_unknown_words_alone_have_left_them_out(topics):
    opened = lm_latent_eval.load(topics).opened
    scorer = scorer_of(opened, {"estimator": "beam"}, quiet=True)
    queries = [Query(n, str(n), text) for n, text in enumerate([*TEXTS, "x y"])]
    found = {answer.index: answer for answer in scorer.score_texts(queries)}
    assert [found[n].left_out for n in range(4)] == [1, 0, 0, 2]
    assert row_of(found[3])["unknown_words_left_out"] == 2


def test_the_topic_models_task_has_no_other_rate(topics, tmp_path):
    path = tmp_path / "texts.jsonl"
    every, known = (
        {
            name: value
            for name, value in run(topics, path, task).items()
            if name not in ("alias", "name", "sample_len")
        }
        for task in ("latent_perplexity", "latent_topic_perplexity")
    )
    of_strings = ("word_", "byte_", "bits_")
    assert known == {k: v for k, v in every.items() if not k.startswith(of_strings)}
    assert len(known) < len(every)


def test_completion_is_a_quotient_of_whole_texts(topics, tmp_path):
    results = run(topics, tmp_path / "texts.jsonl", "latent_document_completion")
    given = ["fox hound", "sky"]
    nats = sum(e.log_evidence for e in log_p(topics, TEXTS[:2])) - sum(
        e.log_evidence for e in log_p(topics, given)
    )
    assert results["completed_tokens,none"] == 3
    expected = math.exp(-nats / 3)
    assert abs(results["completion_perplexity,none"] - expected) < 1e-9
    assert results["completion_perplexity_stderr,none"] == "N/A"


def test_halves_are_beginnings_of_their_text():
    found = list(halves(["a  b\tc d.", "one", "", " x y z"]))
    assert [part["text"] for part in found] == ["a  b", "a  b\tc d.", " x", " x y z"]
