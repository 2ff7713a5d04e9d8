"""An RNNG checkpoint behind lm-eval, against sums over every tree and prefix.

Documents are split into sentences; a question in the middle of a sentence is answered
by prefix probabilities, never by those of a context taken for a sentence.
"""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.backends import LatentRNNG
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import tiny_checkpoint
from tests.fuzz import models
from tests.models.rnng import reference
from tests.models.rnng.reference import every_prefix
from tests.tiny_checkpoint import UNKNOWN_TYPES, conditional, ids, rolling
from tests.tiny_models import randomised

MANY = 4000
"""Samples: as many as make errors small for the texts below."""


@pytest.fixture(scope="module")
def model():
    return models.rnng()


@pytest.fixture(scope="module")
def pretrained(model, tmp_path_factory):
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("rnng"), model))


@pytest.fixture(scope="module")
def backend(pretrained):
    """By importance sampling, unless it is said otherwise: all trees would be found."""
    return lambda **settings: LatentRNNG(
        pretrained=pretrained, **{"estimator": "is", **settings}
    )


def log_p(model, words: list[int]) -> float:
    """log p of a sentence that begins so, or is that if it ends, by listing."""
    if not words:
        return 0.0
    cost = [
        -math.log(UNKNOWN_TYPES)
        if w == UNKNOWN or w >= model.config.vocab_size
        else 0.0
        for w in words
    ]
    batch = TokenBatch.collate([words], [cost], first=START)
    prefixes = every_prefix(len(words), end=words[-1] == END)
    return model.log_joint(model.encode(batch), prefixes).logsumexp(-1).item()


DOCUMENT = "the fox saw Ada. Bo saw the fox."
FIRST = ids("the", "fox", "saw", "Ada", ".")
SECOND = ids("Bo", "saw", "the", "fox", ".")

CONTINUATIONS = (
    # context, continuation, what is asked for: words given, words that follow, by
    # sentence.
    ("the fox", " saw the", [(ids("the", "fox"), ids("saw", "the"))]),
    ("", "the fox saw", [([], ids("the", "fox", "saw"))]),
    ("the fox saw Ada.", " Bo saw", [(FIRST, [END]), ([], SECOND[:2])]),
    ("the fox saw Ada. Bo", " saw the", [(SECOND[:1], SECOND[1:3])]),
    ("the fo", "x saw", [(ids("the"), ids("fox", "saw"))]),
)


def test_a_beam_of_all_trees_is_a_documents_probability(backend, model):
    exact = log_p(model, [*FIRST, END]) + log_p(model, [*SECOND, END])
    lm = backend(estimator="beam", num_samples=100)
    [answer] = lm.loglikelihood_rolling(rolling(DOCUMENT))
    assert answer == pytest.approx(exact, abs=1e-10)
    assert answer.estimate.bound is Bound.STRICT_LOWER
    assert answer.estimate.num_tokens == 12
    assert answer.answer.sentences == 2
    said = lm.get_model_info()["latent_eval"]
    assert (said["requests"], said["sentences"]) == (1, 2)
    assert said["mass"] == "normalised"


@pytest.mark.parametrize(("context", "continuation", "parts"), CONTINUATIONS)
@pytest.mark.parametrize("settings", [{}, {"proposal": "prior"}])
def test_a_continuation_is_a_ratio_of_prefixes(
    backend, model, context, continuation, parts, settings
):
    exact = sum(
        log_p(model, [*given, *words]) - log_p(model, given) for given, words in parts
    )
    lm = backend(num_samples=MANY, **settings)
    [(answer, _)] = lm.loglikelihood(conditional((context, continuation)))
    assert answer.estimate.draws_stderr < 0.05, "premise"
    assert abs(answer - exact) < 5 * answer.estimate.draws_stderr + 1e-9
    assert answer.estimate.bound is Bound.NONE


def test_a_sentence_that_is_too_long_is_named(backend):
    with pytest.raises(ValueError, match=r"task/1 .*of 41 words: .* read 40"):
        backend(proposal="crf").loglikelihood_rolling(rolling("the fox", "fox " * 41))


def test_a_model_without_ends_scores_none(tmp_path):
    sizes = {"hidden_size": 4, "proposal_size": 3, "max_words": 40, **models.WORDS}
    endless = RNNG(RNNGConfig(**sizes, sentence_ends=False)).double()
    endless = randomised(endless, 3, 0.7).eval()
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


def test_a_target_is_one_of_the_whole_document(backend):
    lm = backend(num_samples=50, target_stderr=0.1)
    [answer] = lm.loglikelihood_rolling(rolling(" ".join(["the fox saw."] * 9)))
    assert answer.answer.sentences == 9
    assert 0 < answer.estimate.draws_stderr < 0.15
