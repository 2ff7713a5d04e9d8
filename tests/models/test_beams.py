"""A search that goes on with fewer latents than there are keeps the best of them."""

from __future__ import annotations

import pytest
import torch

from tests.test_laws import TINY_MODELS

SEARCHED = {"entitynlm": "adapted", "kglm": "adapted", "nklm": "adapted"}
MANY, FEW = 40, 5


@pytest.mark.parametrize("name", SEARCHED)
def test_the_best_of_many_go_on(name):
    """What is best after the next token; of a text that has none, what was best."""
    case = TINY_MODELS[name].case()
    proposal, words = case.model.proposal(SEARCHED[name]), case.some_words(3)
    batch = case.batch([words, words[:2]])
    before, after = batch.piece(0, 2), batch.piece(2, 3)
    first = proposal.encode(before)
    begun = proposal.beam(first, MANY)
    worst_first = begun.score.argsort(-1)
    state = proposal.advance(first, begun.latents).resample(worst_first)
    score, encoded = begun.score.gather(1, worst_first), proposal.encode(after, state)
    every, few = (proposal.beam(encoded, n, score) for n in (100 * MANY, FEW))
    assert (score > -torch.inf).sum(-1).min() > FEW, "premise: more than are kept"
    best = every.score.topk(FEW).values
    torch.testing.assert_close(few.score.sort(descending=True).values, best)
    assert few.score.shape == few.origin.shape == (2, FEW)
    left = score.gather(1, few.origin)
    assert (left != score[:, :FEW]).any(), "premise: not those that came first"
    torch.testing.assert_close(few.score[1], left[1])


@pytest.mark.parametrize("name", SEARCHED)
def test_a_piece_without_tokens_keeps_as_many_as_are_asked_for(name):
    case = TINY_MODELS[name].case()
    proposal, words = case.model.proposal(SEARCHED[name]), case.some_words(3)
    batch = case.batch([words])
    first = proposal.encode(batch.piece(0, 2))
    begun = proposal.beam(first, MANY)
    state = proposal.advance(first, begun.latents)
    nothing = proposal.encode(batch.piece(2, 2), state)
    few = proposal.beam(nothing, FEW, begun.score)
    assert few.score.shape == few.origin.shape == (1, FEW)
    assert few.score.tolist() == begun.score.gather(1, few.origin).tolist()
    assert sorted(few.score[0]) == sorted(begun.score.topk(FEW).values[0])


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_what_looks_ahead_is_searched_at_any_temperature_alike(name):
    case = TINY_MODELS[name].case()
    batch = case.batch([case.some_words(3)])
    warm, plain = (case.model.proposal("adapted", t) for t in (3.0, 1.0))
    found, best = (q.beam(q.encode(batch), FEW) for q in (warm, plain))
    assert all(map(torch.equal, found.latents, best.latents))
    assert torch.equal(found.score, best.score)
    log_q, cold = (q.log_prob(q.encode(batch), best.latents) for q in (warm, plain))
    assert not torch.allclose(log_q, cold), "premise: another q"
