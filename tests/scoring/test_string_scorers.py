"""Whatever scores strings: networks, directories, models of ours, functions."""

from __future__ import annotations

import math

import pytest
from transformers import GPT2LMHeadModel

import lm_latent_eval
from lm_latent_eval.contrastive.copies import score_copies
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.scoring.string_scorers import string_scorer
from tests import tiny_causal

TEXTS = ["abba", "aabab", "b", "bbbbbbbb", "aab"]


@pytest.fixture(scope="module")
def causal_lm():
    """Return a small causal LM of two letters and its tokenizer."""
    tokenizer = tiny_causal.letters()
    return tiny_causal.model(len(tokenizer), positions=12), tokenizer


# -- causal LMs ------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_causal_lm_agrees_with_the_chain_rule(causal_lm, batch_size):
    model, tokenizer = causal_lm

    scorer = string_scorer(model, tokenizer=tokenizer, batch_size=batch_size)
    found = scorer.score(TEXTS).log_p.tolist()

    listed = tiny_causal.Listed(tiny_causal.network(tokenizer, positions=12), 0)
    expected = [math.log(listed.p(tokenizer.encode(text))) for text in TEXTS]
    assert max(expected) - min(expected) > 5, "premise: texts differ"
    assert found == pytest.approx(expected, abs=1e-9)


def test_causal_lm_from_its_directory(causal_lm, tmp_path):
    model, tokenizer = causal_lm
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = string_scorer(model, tokenizer=tokenizer).score(TEXTS).log_p.tolist()

    assert string_scorer(str(tmp_path)).score(TEXTS).log_p.tolist() == expected
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
    found = string_scorer(loaded).score(TEXTS).log_p.tolist()
    assert found == expected, "its tokenizer is found beside it"


def test_causal_lm_refuses_what_it_cannot_score(causal_lm):
    model, tokenizer = causal_lm
    with pytest.raises(ValueError, match=r"texts\[1\] has 12 tokens.*window is 12"):
        string_scorer(model, tokenizer=tokenizer).score(["a", "a" * 12])
    no_start = tiny_causal.fast(tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match="neither a BOS nor an EOS"):
        string_scorer(model, tokenizer=no_start).score(["a"])
    training = GPT2LMHeadModel(model.config).train()
    with pytest.raises(ValueError, match="training mode"):
        string_scorer(training, tokenizer=tokenizer).score(["a"])


# -- others ----------------------------------------------------------------------------


def test_latent_lm_by_directory_and_as_an_object():
    texts = ["She studied in the town.", "The book was published in 1969."]
    model = lm_latent_eval.load(CHECKPOINT)
    expected = model.log_likelihood(texts, num_samples=20)

    for given in (CHECKPOINT, model):
        found = string_scorer(given, num_samples=20).score(texts)
        assert found.log_p.tolist() == [each.log_evidence for each in expected]
        assert found.stderr.tolist() == [each.stderr for each in expected]


def test_functions_and_scorers():
    def scorer(texts):
        return [-1.0 * len(text) for text in texts]

    found = string_scorer(scorer)
    assert found.score(["a", "plum"]).log_p.tolist() == [-1, -4]
    assert string_scorer(found) is found
    with pytest.raises(TypeError, match="no settings; got num_samples"):
        string_scorer(scorer, num_samples=3)


def test_what_is_no_scorer(tmp_path):
    with pytest.raises(TypeError, match="scorer must be a function"):
        string_scorer(3)
    with pytest.raises(ValueError, match="holds no model"):
        string_scorer(tmp_path)
    with pytest.raises(ValueError, match="no/such: no such directory"):
        string_scorer("no/such")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": "wide"}')
    with pytest.raises(ValueError, match=r"not a causal language model .*'n_embd'"):
        string_scorer(tmp_path)


# -- copies ----------------------------------------------------------------------------


ONE = {"levels": [0.1], "replicates": 1}


@pytest.mark.parametrize(
    ("texts", "scores", "how", "error", "message"),
    [
        (["b a"], [1.0], ONE, ValueError, "1 scores of 2 texts"),
        (["b a"], [1.0, math.nan], ONE, ValueError, "gave nan for"),
        ([], [], ONE, ValueError, "there must be texts"),
        (["a"], [], ONE | {"levels": []}, ValueError, "there must be texts"),
        (["a"], [], ONE | {"replicates": 0}, ValueError, "there must be texts"),
        ("a", [], ONE, TypeError, "not one string"),
        (["a"], [], ONE | {"levels": [0.6]}, ValueError, "level"),
    ],
)
def test_copies_that_cannot_be_scored(texts, scores, how, error, message):
    with pytest.raises(error, match=message):
        score_copies(texts, lambda _: scores, **how)
