"""Samples follow q, searches go on from the best, and rounding decides no rank."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lm_latent_eval.inference import cuts
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.text.words import END
from tests.means import p_value, uniform
from tests.test_laws import TINY_MODELS

SEARCHED = {"entitynlm": 2, "kglm": 2, "nklm": 2, "rnng": 5}
"""Tokens after which there are more latents than are kept."""
MANY, FEW = 40, 5


@pytest.mark.parametrize("name", SEARCHED)
def test_the_best_of_many_go_on(name):
    """What is best after the next token; of a text that has none, what was best."""
    case, read = TINY_MODELS[name].case(), SEARCHED[name]
    proposal, words = case.model.proposal("adapted"), case.some_words(read + 1)
    batch = case.batch([words, words[:read]])
    before, after = batch.piece(0, read), batch.piece(read, read + 1)
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
    nothing = proposal.beam(proposal.encode(case.batch([[], []]), state), FEW, score)
    best = score.topk(FEW).values
    torch.testing.assert_close(nothing.score.sort(descending=True).values, best)


@pytest.mark.parametrize(
    ("name", "which"),
    [*((name, "adapted") for name in ("entitynlm", "kglm", "rnng")), ("rnng", "crf")],
)
def test_what_looks_ahead_is_searched_at_any_temperature_alike(name, which):
    case = TINY_MODELS[name].case()
    words = case.some_words(3)
    batch = case.batch([[*words, END] if which == "crf" else words])
    warm, plain = (case.proposal(which, t) for t in (3.0, 1.0))
    found, best = (q.beam(q.encode(batch), FEW) for q in (warm, plain))
    assert all(map(torch.equal, found.latents, best.latents))
    if which != "crf":  # which ranks by its own log q
        assert torch.equal(found.score, best.score)
    log_q, cold = (q.log_prob(q.encode(batch), best.latents) for q in (warm, plain))
    assert not torch.allclose(log_q, cold), "premise: another q"


NOISE, MORE = 1e-6, 1e-2
"""Weights that move scores by what float32 leaves in another batch, and by more."""


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_rounding_does_not_decide_between_ties(name):
    """Of a model almost without weights, to which many latents are alike."""
    case = TINY_MODELS[name].case()
    batch, proposal = case.batch([[4, 5, 4, 5]]), case.model.proposal("adapted")

    def beams(noise, seed=0):
        for number, weight in enumerate(case.model.parameters()):
            drawn = uniform(*weight.shape, seed=100 * seed + number)
            weight.copy_(noise * drawn)
        if name == "rnng":  # an end, which only one tree may have, tells stacks apart
            case.model.generative.bias[END] = -100.0
        encoded = proposal.encode(batch)
        return [found(proposal.beam(encoded, width)) for width in (1, 2, 3, 5, 8)]

    assert all(beams(NOISE, seed) == beams(0.0) for seed in range(2))
    decided = [beams(MORE, seed) for seed in range(2)]
    assert any(beam != beams(0.0) for beam in decided), "premise: there are ties"


def found(beam) -> list[int]:
    used = beam.score[0] > -torch.inf
    return sorted(fingerprint(beam.latents)[0, used].tolist())


def test_an_option_is_found_among_millions():
    """Rank and place are one number, which must not overflow."""
    score = torch.full((1, 1 << 23), -torch.inf)
    score[0, 7] = -3.0
    assert cuts.best_of(score, 3).tolist() == [[7, 0, 1]]
    score[0, -1] = -(2.0**23)
    assert cuts.best_of(score, 3).tolist() == [[7, (1 << 23) - 1, 0]]


NUMBER = 20_000
SAMPLED = [
    (name, which)
    for name in ("entitynlm", "kglm", "lrlm", "nklm", "rnng")
    for which in TINY_MODELS[name].proposals
]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(("name", "which"), SAMPLED)
def test_samples_follow_q(name, which, temperature):
    case = TINY_MODELS[name].case()
    text = [*case.words[1::-1], *case.words[:2]]
    if name == "rnng":
        text.append(END)  # whole sentences, which every proposal can read
    proposal = case.proposal(which, temperature)
    encoded = proposal.encode(case.batch([text]))
    every = case.latents(text)
    log_q = proposal.log_prob(encoded, every)[0]
    draws = proposal.sample(encoded, Streams([7], NUMBER), NUMBER)
    code, order = fingerprint(every)[0].sort()
    assert len(code.unique()) == len(code), "premise: latents are told apart"
    place = torch.searchsorted(code, fingerprint(draws.latents)[0])
    drawn = order[place.clamp_max(len(code) - 1)]
    for ours, wanted in zip(draws.latents, every, strict=True):
        assert torch.equal(ours[0], wanted[0, drawn]), "every draw is listed"
    torch.testing.assert_close(draws.log_q[0], log_q[drawn], rtol=0, atol=1e-10)
    expected = dict(enumerate((log_q.exp() * NUMBER).tolist()))
    assert p_value(Counter(drawn.tolist()), expected, cells=4) > 1e-4
