"""Networks that give some tokens a probability of zero."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import processors

from lm_latent_eval.estimators import Bound, MissedSupportError
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.wrappers.test_tokens_estimators import answers

TEXT = "aabab"
TOKENS = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aab": 4, tiny_causal.END: 5}


@pytest.fixture
def never():
    """Return a model, and a function that takes tokens from its network."""
    return without_tokens(tiny_causal.letters())


def without_tokens(tokenizer):
    model = SegmentedLM(tiny_causal.network(tokenizer))
    banned, forward = [], model.network.model.forward

    def masked(input_ids, **more):
        found = forward(input_ids, **more)
        found.logits[..., banned] = -torch.inf
        return found

    def without(*pieces):
        banned[:] = [TOKENS[piece] for piece in pieces]
        return model

    model.network.model.forward = masked
    return without


def exact(model, banned, text=TEXT):
    """Sum over all sequences that have none of the tokens."""
    listed = tiny_causal.Listed(model.network, len(text))
    ids = {TOKENS[piece] for piece in banned}
    p = [listed.p(z) for z in listed.segmentations(text) if not ids & {*z}]
    assert p and all(one > 0 for one in p)
    return math.log(math.fsum(p))


@pytest.mark.parametrize("banned", [("ab",), ("aab", "ab"), ("aab",), ("ba", "a")])
@pytest.mark.parametrize("estimator", ["exact", "beam", "mixed"])
def test_all_that_is_possible_is_found(never, banned, estimator):
    model = never(*banned)
    [answer] = answers(model, [TEXT], estimator=estimator, num_samples=100)
    assert answer.estimate.bound is Bound.EXACT
    assert answer.estimate.log_evidence == pytest.approx(exact(model, banned))


def test_a_beam_that_is_too_narrow_is_no_sum(never):
    """The canonical segmentation, which a beam always keeps, is impossible here."""
    model = never("aab")
    truth = exact(model, ("aab",))
    for width in (1, 2):
        options = {"estimator": "beam", "num_samples": width}
        [answer] = answers(model, [TEXT], **options)
        assert answer.canonical == -math.inf
        assert answer.estimate.bound is Bound.STRICT_LOWER
        assert answer.estimate.log_evidence < truth - 1e-6


@pytest.mark.parametrize("proposal", ["ahead", "lm", "lattice"])
@pytest.mark.parametrize("estimator", ["is", "smc", "mixed"])
def test_draws_stay_unbiased(never, estimator, proposal):
    model = never("aab")
    few = {"is": 4000, "smc": 10, "mixed": 4}[estimator]
    runs = answers(
        model,
        [TEXT] * (1 if estimator == "is" else 200),
        estimator=estimator,
        proposal=proposal,
        num_samples=few,
        batch_size=2000,
    )
    log_p = (
        runs[0].estimate.log_weights
        if estimator == "is"
        else [run.estimate.log_evidence for run in runs]
    )
    ratio = np.exp(np.array(log_p) - exact(model, ("aab",)))
    stderr = ratio.std(ddof=1) / math.sqrt(len(ratio))
    assert 0 < stderr < 0.06, "premise: precise enough to notice an error"
    assert abs(ratio.mean() - 1) < 5 * stderr


@pytest.mark.parametrize(
    "estimator", ["canonical", "exact", "beam", "is", "smc", "mixed"]
)
def test_a_string_that_is_never_written_is_named(never, estimator):
    model = never("a", "ab", "ba", "aab")  # b alone is left
    for contexts in (None, ["bb"]):
        with pytest.raises(ValueError, match=r"text/0.*probability of zero"):
            answers(model, ["bab"], contexts, estimator=estimator, num_samples=10)


@pytest.mark.parametrize("context", ["", "b"])
def test_other_strings_are_scored(never, context):
    scorer = never("a", "ab", "ba", "aab").scorer({}, quiet=True)
    queries = [
        Query(n, f"text/{n}", text, context) for n, text in enumerate(["bab", "bb"])
    ]
    score = scorer.score_continuations if context else scorer.score_texts
    found = []
    with pytest.raises(MissedTextsError, match=r"text/0.*1 of 2 texts are scored"):
        for answer in score(queries):
            found.append(answer.index)
    assert found == [1]


@pytest.mark.parametrize(
    "estimator", ["canonical", "exact", "beam", "is", "smc", "mixed"]
)
def test_a_special_token_that_is_never_written_is_named(estimator):
    """The tokenizer puts one before every text; it is scored, and not summed over."""
    tokenizer, mark = tiny_causal.letters(), tiny_causal.END
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{mark} $A", special_tokens=[(mark, TOKENS[mark])]
    )
    without = without_tokens(tokenizer)
    [answer] = answers(without(), [TEXT], estimator=estimator, num_samples=10)
    assert math.isfinite(answer.estimate.log_evidence), "premise: it is scored"
    with pytest.raises(MissedSupportError, match=r"text/0.*probability of zero"):
        answers(without(mark), [TEXT], estimator=estimator, num_samples=10)


def test_an_impossible_segmentation_leaves_no_room_in_a_beam(never):
    """One pass says that the canonical one is impossible, steps, rounded, did not."""
    options = {"estimator": "mixed", "num_samples": 4}
    scorer = never().scorer(options, quiet=True)
    inside = 0
    for _, [walk] in scorer.explore([Query(n, f"text/{n}", TEXT) for n in range(20)]):
        assert walk.pruned and any(spot.canonical for spot in walk.found)
        size = len(walk.stretch.scores)
        impossible = replace(walk.stretch, scores=(-math.inf,) * size)
        other = copy(walk)
        other.stretch = impossible
        found = {spot.ending for spot in walk.found}
        inside += all(spot.ending in found for spot in walk.draws)
        estimate = scorer._estimator.estimate(other, size)
        assert estimate.bound is not Bound.EXACT and estimate.stderr != 0
    assert inside, "premise: the draws found no more than the beam"


@pytest.mark.parametrize("estimator", ["canonical", "mixed"])
def test_scores_that_are_no_probabilities_are_refused(estimator):
    model = SegmentedLM(tiny_causal.network(tiny_causal.letters()))
    with torch.no_grad():
        model.network.model.transformer.ln_f.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="scores that are no probabilities"):
        answers(model, [TEXT], estimator=estimator)
