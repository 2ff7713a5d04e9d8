"""Whatever scores strings, and their parts: networks, models of ours, functions."""

import math

import pytest
from transformers import GPT2LMHeadModel

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.metric_functions.strings import string_scorer
from tests import tiny_causal

TEXTS = ["abba", "aabab", "b", "bbbbbbbb", "aab"]


@pytest.fixture(scope="module")
def causal_lm():
    """Return a small causal LM of two letters and its tokenizer."""
    tokenizer = tiny_causal.letters()
    return tiny_causal.model(len(tokenizer), positions=12), tokenizer


# -- causal LMs ------------------------------------------------------------------------


def test_causal_lm_agrees_with_the_chain_rule(causal_lm, tmp_path):
    """A network and its tokenizer, their directory, and a network that was there."""
    model, tokenizer = causal_lm
    directory = tiny_causal.save(tmp_path, tokenizer, model)
    listed = tiny_causal.Listed(tiny_causal.network(tokenizer, positions=12), 0)
    expected = [math.log(listed.p(tokenizer.encode(text))) for text in TEXTS]
    assert max(expected) - min(expected) > 5, "premise: texts differ"
    for scorer in (
        string_scorer(model, tokenizer=tokenizer, batch_size=2),
        string_scorer(model, tokenizer=tokenizer, batch_size=16),
        string_scorer(str(directory)),
        string_scorer(GPT2LMHeadModel.from_pretrained(directory)),
    ):
        found = scorer(TEXTS).log_p.tolist()
        assert found == pytest.approx(expected, abs=1e-9)


def test_causal_lm_refuses_what_it_cannot_score(causal_lm):
    model, tokenizer = causal_lm
    with pytest.raises(ValueError, match=r"texts\[1\] has 12 tokens.*window is 12"):
        string_scorer(model, tokenizer=tokenizer)(["a", "a" * 12])
    no_start = tiny_causal.fast(tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match="neither a BOS nor an EOS"):
        string_scorer(model, tokenizer=no_start)(["a"])
    training = GPT2LMHeadModel(model.config).train()
    with pytest.raises(ValueError, match="training mode"):
        string_scorer(training, tokenizer=tokenizer)(["a"])


# -- others ----------------------------------------------------------------------------


def test_latent_lm_by_directory_and_as_an_object():
    texts = ["She studied in the town.", "The book was published in 1969."]
    model = lm_latent_eval.load(CHECKPOINT)
    expected = model.log_likelihood(texts, num_samples=20)

    for scored in (CHECKPOINT, model):
        found = string_scorer(scored, num_samples=20)(texts)
        assert found.log_p.tolist() == [each.log_evidence for each in expected]
        assert found.stderr.tolist() == [each.stderr for each in expected]


def letters(texts):
    return [-1.0 * len(text) for text in texts]


def test_a_function_is_a_scorer_and_what_is_none_says_so(tmp_path):
    found = string_scorer(letters)
    assert found(["a", "plum"]).log_p.tolist() == [-1, -4]
    with pytest.raises(TypeError, match="no settings; got num_samples"):
        string_scorer(letters, num_samples=3)
    with pytest.raises(TypeError, match="scorer must be a function"):
        string_scorer(3)
    with pytest.raises(ValueError, match="holds no model"):
        string_scorer(tmp_path)
    with pytest.raises(ValueError, match="no/such: no such directory"):
        string_scorer("no/such")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": "wide"}')
    with pytest.raises(ValueError, match=r"not a causal language model .*'n_embd'"):
        string_scorer(tmp_path)
