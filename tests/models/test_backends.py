"""An RNNG behind lm-eval, against lists of its trees.

Documents are split into sentences; a question in the middle of a sentence is answered
by prefix probabilities, never by those of a context taken for a sentence. Whole texts
of every model: ``tests/test_frozen.py``; KGLM's continuations: ``tests/harness``.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.backends import LatentRNNG
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests import tiny_checkpoint
from tests.fuzz import models
from tests.models.rnng import reference
from tests.tiny_checkpoint import UNKNOWN_TYPES, conditional, ids, rolling


def log_p(model, words) -> float:
    """log p of a sentence that begins with these words, by listing."""
    if not words:
        return 0.0
    beyond = [w >= model.config.vocab_size for w in words]
    costs = [-math.log(UNKNOWN_TYPES) if is_beyond else 0.0 for is_beyond in beyond]
    batch = TokenBatch.collate([words], [costs], first=START)
    prefixes = reference.every_prefix(len(words), end=words[-1] == END)
    return model.log_joint(model.encode(batch), prefixes).logsumexp(-1).item()


DOCUMENT = "the fox saw Ada. Bo saw the fox."
FIRST = ids("the", "fox", "saw", "Ada", ".")
SECOND = ids("Bo", "saw", "the", "fox", ".")


@pytest.fixture(scope="module")
def rnng(tmp_path_factory):
    """A model, and what opens its backend."""
    model = models.rnng()
    folder = tiny_checkpoint.write(tmp_path_factory.mktemp("rnng"), model)
    return model, partial(LatentRNNG, pretrained=str(folder), estimator="is")


def test_a_document_is_its_sentences(rnng):
    model, backend = rnng
    exact = sum(log_p(model, [*words, END]) for words in (FIRST, SECOND))
    lm = backend(estimator="beam", num_samples=100)
    [answer] = lm.loglikelihood_rolling(rolling(DOCUMENT))
    assert answer == pytest.approx(exact, abs=1e-10)
    assert answer.estimate.bound is Bound.STRICT_LOWER
    assert answer.estimate.num_tokens == 12
    assert answer.answer.sentences == 2
    said = lm.get_model_info()["latent_eval"]
    assert (said["requests"], said["sentences"]) == (1, 2)
    assert said["mass"] == "normalised"


@pytest.mark.parametrize(
    ("context", "continuation", "parts"),
    [
        # What is asked for: words given, words that follow, by sentence.
        ("", "the fox saw", [([], ids("the", "fox", "saw"))]),
        ("the fox saw Ada.", " Bo saw", [(FIRST, [END]), ([], SECOND[:2])]),
        ("the fox saw Ada. Bo", " saw the", [(SECOND[:1], SECOND[1:3])]),
        ("the fo", "x saw", [(ids("the"), ids("fox", "saw"))]),
    ],
)
def test_answers_are_ratios_of_prefixes(rnng, context, continuation, parts):
    model, backend = rnng
    exact = sum(
        log_p(model, [*given, *words]) - log_p(model, given) for given, words in parts
    )
    lm = backend(num_samples=4000)
    [(answer, _)] = lm.loglikelihood(conditional((context, continuation)))
    assert answer.estimate.draws_stderr < 0.05, "premise"
    assert abs(answer - exact) < 5 * answer.estimate.draws_stderr + 1e-9
    assert answer.estimate.bound is Bound.NONE


def test_an_answer_is_greedy_if_all_of_its_sentences_are(tmp_path):
    model = models.rnng()
    with torch.no_grad():
        model.generative.action.bias += 20.0  # one tree stands before each word
        model.generative.bias[END] += 20.0
    tiny_checkpoint.write(tmp_path, model)
    lm = LatentRNNG(pretrained=str(tmp_path), estimator="is", num_samples=100)
    end = log_p(model, [*FIRST, END]) - log_p(model, FIRST)
    assert end > math.log(0.5), "premise: no word is more probable"
    asked = conditional(("the fox saw Ada.", " Bo saw"))
    [(answer, greedy)] = lm.loglikelihood(asked)
    assert answer.answer.sentences == 2, "premise"
    assert not greedy, "Bo is no word that it can utter"


def test_a_sentence_that_is_too_long_is_named(rnng):
    _, backend = rnng
    with pytest.raises(ValueError, match=r"task/1 .*of 41 words: .* read 40"):
        backend(proposal="crf").loglikelihood_rolling(rolling("the fox", "fox " * 41))


def test_a_model_without_ends_scores_none(tmp_path):
    endless = reference.tiny(seed=3, sentence_ends=False, **models.WORDS)
    tiny_checkpoint.write(tmp_path, endless)
    lm = LatentRNNG(pretrained=str(tmp_path), estimator="beam", num_samples=100)
    [answer] = lm.loglikelihood_rolling(rolling("the fox saw"))
    words = TokenBatch.collate([ids("the", "fox", "saw")], first=START)
    trees = reference.trees([reference.every_tree(3)], "no_eos")
    exact = endless.log_joint(endless.encode(words), trees).logsumexp(-1).item()
    assert answer == pytest.approx(exact, abs=1e-10)
    assert answer.estimate.num_tokens == 3
    said = lm.get_model_info()["latent_eval"]
    assert said["mass"] == "no distribution over lengths"
