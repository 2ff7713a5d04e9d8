"""Networks that give some tokens a probability of zero."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm import orders
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.mdm.targets import TargetTokens
from tests.wrappers.mdm import tiny

THE, FOX, SAW, ADA, BO = range(5, 10)
FOUR = TargetTokens((), (THE, FOX, SAW, ADA))
ESTIMATORS = [
    {"estimator": "elbo", "num_samples": 4},
    {"estimator": "elbo", "num_samples": 100},  # every set of masks
    {"unmasking": "confidence"},
    {"estimator": "exact"},
    {"unmasking": "low_confidence"},
    {"unmasking": "low_confidence", "estimator": "is", "num_samples": 8},
    {"block_length": 2},
    {"estimator": "is", "num_samples": 8, "proposal": "uniform"},
    {"estimator": "is", "num_samples": 8, "proposal": "adapted"},
]


@pytest.fixture(scope="module")
def network():
    """Scores by which "the" never stands beside a known "fox", and "Bo" nowhere."""
    plain = tiny.lopsided(tiny.KINDS["bert"]())

    def scores(input_ids):
        logits = plain(input_ids=input_ids).logits.clone()
        logits[..., BO] = -torch.inf
        logits[(input_ids == FOX).any(-1), :, THE] = -torch.inf
        return SimpleNamespace(logits=logits)

    return scores


@pytest.mark.parametrize("temperature", [None, 1.0, 2.0])
def test_impossible_orders_are_draws_of_weight_zero(network, temperature):
    reader = tiny.denoiser(network)
    listed = tiny.Truth(reader, FOUR).all_orders()
    assert int(listed.isneginf().sum()) == 12, "premise: half of the orders"
    truth = float(listed.logsumexp(0)) - math.log(24)
    found = tiny.ask(reader, FOUR, orders.log_p_exact(4)).value
    assert found == pytest.approx(truth, abs=1e-10)
    asking = orders.log_weights(
        4, 4000, Streams([12345], 4000), temperature=temperature
    )
    ratio = (tiny.ask(reader, FOUR, asking).value - truth).exp()
    assert bool((ratio == 0).any()), "premise: impossible ones are drawn"
    stderr = float(ratio.std()) / math.sqrt(len(ratio))
    assert stderr < 0.06, "premise: precise enough to notice an error"
    assert abs(float(ratio.mean()) - 1) < 5 * stderr


def model(network):
    return MaskedDiffusion.of_function(
        lambda tokens: network(input_ids=tokens).logits,
        tiny.tokenizer(),
        version="never",
        max_length=20,
    )


@pytest.mark.parametrize("options", ESTIMATORS)
@pytest.mark.parametrize("text", ["Bo", "the saw Bo Ada"])
def test_a_text_that_is_never_written_is_named(network, options, text):
    scorer = model(network).scorer({**options, "logit_shift": 0}, quiet=True)
    reason = r"text/1 \(.*Bo.*probability of zero"
    queries = [Query(1, "text/1", text), Query(0, "text/0", "saw Ada")]
    after = [Query(1, "text/1", f" {text}", "saw"), Query(0, "text/0", " Ada", "saw")]
    for score, asked in (
        (scorer.score_texts, queries),
        (scorer.score_continuations, after),
    ):
        found = []
        with pytest.raises(MissedSupportError, match=reason):
            for answer in score(asked):
                found.append(answer.index)
        assert found == [0], "the other one is scored"


def test_a_bound_that_is_no_number_says_what_is_one(network):
    queries = [Query(0, "text/0", "the fox saw")]
    bounded = model(network).scorer({"estimator": "elbo"}, quiet=True)
    with pytest.raises(MissedSupportError, match=r"text/0.*some of the masks.*=is"):
        list(bounded.score_texts(queries))
    drawn = model(network).scorer({"estimator": "is"}, quiet=True)
    [answer] = drawn.score_texts(queries)
    assert math.isfinite(answer.estimate.log_evidence)
