"""Beams, importance samples, and both joined, where every latent can be listed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from lm_latent_eval.estimators import Bound, Estimate, MissedSupportError, log_evidence
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    Mixed,
    importance,
)
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.mixed import Population
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.models.stepwise import Step
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END, UNKNOWN
from tests.means import weights_are_of
from tests.test_laws import WITHOUT_LATENTS, opened, proposals
from tests.tiny_steps import TinyHMM, scored, tiny
from tests.watching import watch

EVERYTHING = 6000
"""More than twice the latents of any case text."""


def example(name: str, case: Any, proposal: Any) -> list[int]:
    """Return a text of several latents; two words have but one tree."""
    if name == "rnng":
        return [4, 5, UNKNOWN, 4, 4, END]
    return case.readable(proposal)[5]


@proposals(*WITHOUT_LATENTS)
def test_mixed_is_unbiased_and_never_below_its_search(name, which):
    method = Mixed(7)
    case, _, proposal = opened(name, which)
    text = example(name, case, proposal)
    width, drawn, copies = 3, method.sampling.num_samples, 500
    assert method.search.num_samples == width
    log_w = case.log_weights(method, proposal, [text] * copies)
    outside = log_w[:, :drawn]
    assert outside.isneginf().any(), "premise: some draws are in B"
    assert (outside > -torch.inf).any(), "premise: some are not"
    exact = case.log_p(text)
    found = log_w[:, drawn : drawn + width].logsumexp(-1, True)
    log_p = log_evidence(outside.logaddexp(found))
    weights_are_of(exact, log_p, 0.15)
    least = found[0, 0]
    assert (log_p - exact).exp().min() >= (least - exact).exp() - 1e-12
    assert least < exact


@proposals(*WITHOUT_LATENTS)
def test_mixed_is_exact_where_everything_is_found(name, which):
    case, _, proposal = opened(name, which)
    method = Mixed(EVERYTHING)
    texts = case.readable(proposal)[::9]
    rows = case.log_weights(method, proposal, texts)
    for text, log_w in zip(texts, rows, strict=True):
        estimate, exact = method.estimate(log_w, len(text)), case.log_p(text).item()
        assert estimate.log_evidence == pytest.approx(exact, abs=1e-10)
        assert (estimate.bound, estimate.stderr) == (Bound.EXACT, 0.0)


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_mixed_predicts_as_all_latents_do(name):
    """Found, drawn or both: the prediction is that of the estimated joint."""
    case, model, proposal = opened(name)
    stepwise = proposal.left_to_right
    begin, batch = Particles.begin(1, "cpu"), case.batch([[4, 5]])

    def read(number: int) -> Population:
        return Mixed(number).extend(Texts(model, stepwise, batch, keys(1)), begin)

    def prediction(particles: Population | Particles) -> torch.Tensor:
        return particles.ahead(model, torch.tensor([5])).next_token(model, [0], [0])

    every, some = read(EVERYTHING), read(6)
    (all_found, _), (found, drawn) = every.parts, some.parts
    exact, predicted = prediction(all_found), prediction(some)
    torch.testing.assert_close(prediction(every), exact, rtol=0, atol=1e-6)
    assert predicted.logsumexp(-1).item() <= 1e-6
    log_w = some.log_w
    outside = log_w[:, :3] - math.log(3)
    log_p = log_w[:, 3 : 3 + found.log_w.shape[1]]
    parts = [
        (prediction(replace(particles, log_w=weights)) + weights.logsumexp(-1)).exp()
        for particles, weights in ((drawn, outside), (found, log_p))
        if (weights > -torch.inf).any()
    ]
    joint = sum(parts) / log_p.logsumexp(-1).logaddexp(outside.logsumexp(-1)).exp()
    torch.testing.assert_close(predicted.exp(), joint, rtol=0, atol=1e-6)


def test_what_was_found_in_pieces_is_not_drawn_as_well():
    """Where a search finds every latent no draw is outside, whatever is cut where."""
    method, texts = Mixed(200), scored(tiny(), [[4, 5, 1, 4], [5, 1]], "adapted")
    read = Particles.begin(2, "cpu")
    for at in range(4):
        read = method.extend(texts.piece(at, at + 1), read)
    assert read.log_w[:, : method.sampling.num_samples].isneginf().all()


def test_what_a_full_beam_found_is_not_called_all():
    """Whatever places are left over at the end, and though no draw is outside."""
    weights = torch.tensor([[0.0, -torch.inf]]).double()
    same = Particles(None, None, weights, weights, torch.tensor([[7, 3]]))
    log_w = Population((same, same), torch.tensor([True])).log_w[0]
    assert log_w[:2].isneginf().all(), "premise"
    estimate = Mixed(4).estimate(log_w, 1)
    assert (estimate.log_evidence, estimate.draws_stderr) == (0.0, 0.5)
    assert estimate.stderr is None, "nobody asked how probable they are to be drawn"
    assert estimate.bound is Bound.STOCHASTIC_LOWER


@pytest.mark.parametrize("mark", [0.0, -math.inf])
def test_where_nothing_is_possible_there_is_no_estimate(mark):
    """Whether the beam holds every latent or not."""
    row = [*[-math.inf] * 4, *[math.nan] * 2, mark]
    log_w = torch.tensor(row, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"num_samples=1: .* at least 2"):
        Mixed(1)
    assert Mixed(4).found(log_w) == -math.inf
    with pytest.raises(MissedSupportError):
        Mixed(4).estimate(log_w, 1)


class Staying(TinyHMM):
    """Keeps its state for the whole text; the first one and the last say word 5."""

    LOG_P = torch.tensor([0.5, 0.4, 0.05, 0.05]).log()

    def read(self, batch, recurrent):
        return batch.targets

    def begin(self, batch):
        return (torch.full_like(batch.length[:, None], len(self.LOG_P)),)

    def step(self, read, state, t):
        stay = torch.eye(len(self.LOG_P)).log()
        says = torch.tensor([0.5, 0.0, 0.0, 0.5]).log()
        says = torch.where(read[:, None, t, None] == 5, says, 0.0)
        return Step(torch.cat([stay, self.LOG_P[None]])[state[0]], says)


def test_a_beam_whose_latents_died_out_holds_not_all_there_is():
    """It was full at the first word, and has room at the second."""
    method, texts = Mixed(4), scored(tiny(kind=Staying), [[4, 5]] * 500, "adapted")
    truth = math.log(0.5 * 0.5 + 0.05 * 0.5)
    read = Particles.begin(500, "cpu")
    for at in (0, 1):
        read = method.extend(texts.piece(at, at + 1), read)
    for log_w in (method.log_weights(texts), read.log_w):
        bounds = {method.estimate(row, 2).bound for row in log_w}
        assert bounds == {Bound.STOCHASTIC_LOWER}
        weights_are_of(truth, log_evidence(method.unbiased(log_w)))


def test_the_estimate_by_hand():
    unknown = math.nan, math.nan, 0.0
    log_w = torch.tensor([0.3, 0.0, 0.1, 0.2, *unknown]).double().log()
    estimate = Mixed(4).estimate(log_w, num_tokens=2)
    assert math.exp(estimate.log_evidence) == pytest.approx(0.45)
    expected = Estimate.from_log_weights(
        torch.tensor([0.6, 0.3]).log().double(), num_tokens=2, estimator="mixed"
    )
    assert estimate.log_weights == pytest.approx(expected.log_weights)
    assert estimate.effective_sample_size == pytest.approx(0.9**2 / 0.45)
    assert estimate.num_samples == 4
    # Log-normal weights, the logarithm of 2 apart: more than 1/2, and than the draws'.
    wide = math.sqrt(math.log1p(math.expm1(math.log(2) ** 2) / 2))
    assert estimate.draws_stderr == pytest.approx(wide)
    assert wide > 0.5 > expected.draws_stderr

    prefix = torch.tensor([0.5, 0.0, 0.25, 0.25, *unknown]).double().log()
    difference = Mixed(4).difference(log_w, prefix, 2)
    assert math.exp(difference.log_evidence) == pytest.approx(0.45 / 0.75)
    assert (difference.bound, len(difference.log_weights)) == (Bound.NONE, 0)


def test_what_the_search_says_of_the_draws_by_hand():
    """Half of what was found is where two draws come once in a million times."""
    found, drawn = torch.tensor([0.25, 0.25]).log(), torch.tensor([0.5, 1e-6]).log()
    outside = torch.tensor([0.1, 0.1]).log()
    cut = torch.tensor([-math.inf])
    log_w = torch.cat([outside, found, found - drawn, cut]).double()
    estimate = Mixed(4).estimate(log_w, num_tokens=2)
    # Neither draw is among what 0.5 / 0.6 of p stand for with probability exp(-2 0.6).
    unseen = math.exp(-0.6)
    expected = math.hypot(0.5, math.log(1 - unseen))
    assert estimate.stderr == pytest.approx(expected, abs=1e-3)
    drawn = torch.tensor([1e-7, 1e-6]).log()
    blind = torch.cat([outside, found, found - drawn, cut]).double()
    assert Mixed(4).estimate(blind, num_tokens=2).stderr is None


def test_a_difference_of_bounds_is_no_bound():
    log_w = torch.tensor([0.1, 0.05, 0.0]).double().log()
    prefix = torch.tensor([0.4, 0.2, 0.0]).double().log()
    found = BeamMarginalization(3).difference(log_w, prefix, 2)
    assert math.exp(found.log_evidence) == pytest.approx(0.15 / 0.6)
    assert (found.bound, found.stderr) == (Bound.NONE, None)
    assert (found.num_samples, found.num_tokens, found.estimator) == (3, 2, "beam")


def test_no_round_holds_more_latents_than_said(monkeypatch):
    """Of short texts as well, whose latents are small: each has a state."""
    case, _, proposal = opened("kglm", "peeking")
    texts = case.readable(proposal)[:2]
    whole = case.log_weights(ImportanceSampling(21), proposal, texts)
    drawn = watch(
        monkeypatch, type(proposal), "sample", lambda draws, *_: draws.log_q.numel()
    )
    monkeypatch.setattr(importance, "ROWS", 8)
    parts = case.log_weights(ImportanceSampling(21), proposal, texts)
    assert max(drawn) == 8
    assert sum(drawn) == 2 * 21
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
