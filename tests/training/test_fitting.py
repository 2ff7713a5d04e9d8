"""Fits of strengths, against the divergence from p(z | x) over every latent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lm_latent_eval.models.proposals import RANGES
from lm_latent_eval.models.tuning import Tuned
from lm_latent_eval.text.words import END, UNKNOWN
from lm_latent_eval.training import fitting
from lm_latent_eval.training.fitting import fit
from lm_latent_eval.training.options import FitBudget
from tests.test_laws import TINY_MODELS

BUDGET = FitBudget(num_samples=60, rounds=2)
FITTED = [
    (name, which)
    for name in ("entitynlm", "kglm", "rnng")
    for which in TINY_MODELS[name].proposals
]
ASTRAY = {"scores": 3.0, "look_ahead": 0.2, "start": 6.0, "whole": -6.0, "longer": -4.0}
"""Strengths that no fit would leave as they are."""


def astray(name: str, which: str):
    """Return a tiny model whose proposal is badly weighed, and some of its texts."""
    tiny = TINY_MODELS[name].case()
    model = tiny.model
    begin = {strength: ASTRAY[strength] for strength in model.untuned(which)}
    model.tuned = {which: Tuned(begin, [], {})}
    texts = [
        text
        for text in replace(tiny, length=5).outcomes()
        if text[-1] == END and len(text) == 5
    ]
    return tiny, model, texts[::17] if name == "rnng" else [t[2:] for t in texts[::19]]


def divergence(tiny, model, proposal, texts) -> float:
    """Sum KL(p(z | x) || q(z | x)) over texts, by listing every z."""
    total = 0.0
    for text in texts:
        log_p = tiny.log_joint(text).log_softmax(-1)
        encoded = proposal.encode(tiny.batch([text]))
        log_q = proposal.log_prob(encoded, tiny.latents(text))[0]
        some = log_p > -torch.inf
        total += (log_p[some].exp() * (log_p - log_q)[some]).sum().item()
    return total


@pytest.mark.parametrize(("name", "which"), FITTED)
def test_a_fit_comes_nearer_to_p_than_any_draw_of_strengths(name, which):
    tiny, model, texts = astray(name, which)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    batches = [tiny.batch(texts[:3]), tiny.batch(texts[3:])]

    found = fit(model, which, batches, RANGES, BUDGET)

    def far(strengths) -> float:
        proposal = model.proposal(which, strengths=strengths)
        return divergence(tiny, model, proposal, texts)

    before, after = far(found.curve[0].strengths), far(found.curve[-1].strengths)
    assert after < 0.7 * before
    # No strength alone could be changed much for the better.
    for strength, value in found.curve[-1].strengths.items():
        for other in (0.8 * value, 1.25 * value):
            nearby = {**found.curve[-1].strengths, strength: other}
            assert after < far(nearby) + 0.02 * before
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    assert found.num_texts == len(texts)
    assert found.num_tokens == sum(map(len, texts))


@pytest.mark.parametrize(
    ("name", "which"),
    [("kglm", "smoothing"), ("kglm", "adapted"), ("entitynlm", "peeking")],
)
def test_texts_of_the_models_own_bring_q_nearer_to_p_on_every_text(name, which):
    """Texts are drawn from p, and the mean divergence is over all of p's texts."""
    tiny, model, _ = astray(name, which)
    every = tiny.outcomes()
    p = torch.stack([tiny.log_p(text) for text in every]).exp()
    generator = torch.Generator().manual_seed(0)
    drawn = p.multinomial(30, replacement=True, generator=generator)
    batch = tiny.batch([every[int(n)] for n in drawn])
    found = fit(model, which, [batch], RANGES, BUDGET)

    def far(strengths) -> float:
        q = model.proposal(which, strengths=strengths)
        each = [divergence(tiny, model, q, [text]) for text in every]
        return float(p @ torch.tensor(each, dtype=p.dtype))

    assert p.sum() == pytest.approx(1, abs=1e-10)
    assert found.better
    assert far(found.strengths) < 0.7 * far(found.curve[0].strengths)


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_what_is_kept_has_more_effective_samples(name):
    tiny, model, texts = astray(name, "adapted")
    found = fit(model, "adapted", [tiny.batch(texts)], RANGES, BUDGET)
    assert found.better
    assert found.strengths == found.curve[-1].strengths
    assert found.before.effective_samples < found.after.effective_samples <= 60
    assert 0 < 2 * found.stderr < found.gain


@pytest.mark.parametrize(("name", "which"), FITTED)
def test_weights_as_checkpoints_have_them_are_fitted(name, which):
    """In float32, where strengths are float64."""
    tiny, model, texts = astray(name, which)
    before = {k: v.float() for k, v in model.state_dict().items()}
    model.float()
    found = fit(
        model, which, [tiny.batch(texts)], RANGES, FitBudget(num_samples=20, rounds=1)
    )
    assert found.curve[-1].strengths != found.curve[0].strengths
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_fit_is_a_function_of_texts_and_seed():
    tiny, model, texts = astray("kglm", "smoothing")
    batches = [tiny.batch(texts)]
    first = fit(model, "smoothing", batches, RANGES, BUDGET)
    torch.rand(3)  # the global generator has no say
    assert fit(model, "smoothing", batches, RANGES, BUDGET) == first
    other = fit(model, "smoothing", batches, RANGES, replace(BUDGET, seed=1))
    assert other.curve[1] != first.curve[1]
    fewer = fit(model, "smoothing", [tiny.batch(texts[:2])], RANGES, BUDGET)
    assert fewer.curve[1] != first.curve[1]


def test_what_is_no_better_is_not_kept(monkeypatch):
    tiny, model, texts = astray("kglm", "adapted")
    model.tuned = {}
    worse = {"scores": 8.0, "look_ahead": 0.0}
    monkeypatch.setattr(fitting, "_nearest", lambda *_: worse)
    found = fit(model, "adapted", [tiny.batch(texts)], RANGES, BUDGET)
    assert not found.better
    assert found.strengths == {"scores": 1.0, "look_ahead": 1.0}


def test_strengths_stay_in_their_ranges():
    tiny, model, texts = astray("kglm", "smoothing")
    narrow = {**RANGES, "scores": (2.5, 3.5), "start": (5.5, 6.5)}
    found = fit(model, "smoothing", [tiny.batch(texts)], narrow, BUDGET)
    assert found.curve[-1].strengths["scores"] == 2.5
    assert 5.5 <= found.curve[-1].strengths["start"] <= 6.5


def test_a_proposal_is_shown_what_it_misses():
    """Draws of the model's first proposal stand beside its own, and weigh as both."""
    tiny, model, texts = astray("kglm", "smoothing")
    read = fitting.ReadBatch.of(model, "smoothing", tiny.batch(texts[:1]))
    drawn = read.draw([model.strengths("smoothing")], BUDGET, "test")
    mine, first = drawn.latents
    total = sum(weight.sum() for weight in drawn.weights)
    assert abs(total.item() - 1) < 1e-12
    p = model.log_joint(read.p, mine)
    q = [
        proposal.log_prob(proposal.encode(read.batch), mine)
        for proposal in (model.proposal("smoothing"), model.proposal("adapted"))
    ]
    relative = drawn.weights[0].log() - (p - torch.stack(q).logsumexp(0))
    assert (relative.max() - relative.min()).item() < 1e-9
    assert not torch.equal(mine.node, first.node)


def test_a_gain_is_that_of_the_divergence():
    """Draws that hold every latent with its probability give the exact difference."""
    tiny, model, texts = astray("kglm", "smoothing")
    text = texts[0]
    read = fitting.ReadBatch.of(model, "smoothing", tiny.batch([text]))
    log_p, latents = tiny.log_joint(text), tiny.latents(text)
    listed = fitting.Drawn([latents], [log_p.softmax(-1)[None]], [])
    old, new = model.strengths("smoothing"), model.untuned("smoothing")
    far = [
        divergence(tiny, model, model.proposal("smoothing", strengths=s), [text])
        for s in (old, new)
    ]
    assert abs(read.gains(listed, old, new)[0] - (far[0] - far[1])) < 1e-9


def test_a_text_without_evidence_moves_nothing():
    tiny, model, texts = astray("kglm", "adapted")
    batch = tiny.batch(texts[:1])
    nowhere = replace(
        batch,
        targets=torch.full_like(batch.targets, UNKNOWN),
        unknown_log_prob=torch.full_like(batch.unknown_log_prob, -torch.inf),
    )
    found = fit(model, "adapted", [nowhere], RANGES, BUDGET)
    assert (found.before.missed, found.before.effective_samples) == (1, 0.0)
    assert not found.better
    assert found.curve[-1].strengths == found.curve[0].strengths
    with_it = fit(model, "adapted", [batch, nowhere], RANGES, BUDGET)
    assert with_it.after.missed == 1
    assert with_it.gain > 0.1


@pytest.mark.parametrize(
    ("name", "value"), [("texts", 0), ("num_samples", 1), ("rounds", 0), ("seed", -1)]
)
def test_a_budget_that_fits_nothing_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: expected at least"):
        FitBudget(**{name: value})
