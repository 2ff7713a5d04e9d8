"""The exact sum against lists of all readings, and what follows from it."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

from lm_latent_eval.inference import BeamMarginalization, Exact, ImportanceSampling
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import Normalization, Summable
from lm_latent_eval.models.lrlm.latents import Everything
from lm_latent_eval.text.words import END, UNKNOWN
from tests.models.lrlm.tiny import every_reading, lrlm
from tests.tiny_models import COPIED, KNOWN, SYMBOLS, batch

TEXTS = [list(text) for text in product(SYMBOLS, repeat=4)]


def listed(model, text):
    """Log p of a text: the sum over the list."""
    encoded = model.encode(batch([text]))
    return model.log_joint(encoded, every_reading(model, len(text)))[0].logsumexp(-1)


def test_the_sum_is_that_of_the_list():
    model = lrlm()
    assert isinstance(model, Summable)
    found = Exact().log_weights(model, model.proposal(), batch(TEXTS), [0] * len(TEXTS))
    for text, ours in list(zip(TEXTS, found[:, 0], strict=True))[::5]:
        assert abs(ours - listed(model, text)) < 1e-10


def test_all_texts_total_one():
    model = lrlm()
    assert model.normalization is Normalization.ONE
    log_p = model.log_joint(model.encode(batch(TEXTS)), Everything())
    assert abs(log_p.exp().sum() - 1) < 1e-10


@pytest.mark.parametrize("borders", [(0, 1, 2, 3, 4), (0, 2, 4), (0, 3, 4)], ids=str)
def test_the_sum_goes_on_where_it_was_cut(borders):
    model = lrlm()
    whole = batch(TEXTS)
    wanted = model.log_joint(model.encode(whole), Everything())
    found, state = torch.zeros_like(wanted), None
    for start, end in pairwise(borders):
        encoded = model.encode(whole.piece(start, end), state)
        found = found + model.log_joint(encoded, Everything())
        state = model.advance(encoded, Everything())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_a_state_picks_texts():
    """Of different lengths, some of which have ended."""
    model = lrlm()
    texts = [[KNOWN, COPIED, KNOWN], [COPIED], [KNOWN]]
    encoded = model.encode(batch(texts))
    state = model.advance(encoded, Everything()).select(torch.tensor([2, 0]))
    rest = batch([[COPIED, KNOWN], [COPIED, END]])
    inputs = torch.tensor([[KNOWN, COPIED], [KNOWN, COPIED]])
    rest = type(rest)(inputs, rest.targets, rest.length, rest.unknown_log_prob)
    found = model.log_joint(model.encode(rest, state), Everything())[:, 0]
    wholes = [[KNOWN, COPIED, KNOWN], [KNOWN, COPIED, KNOWN, COPIED, END]]
    wanted = torch.stack([listed(model, w) for w in wholes])
    prefix = torch.stack([listed(model, w) for w in ([KNOWN], texts[0])])
    torch.testing.assert_close(found, wanted - prefix, rtol=0, atol=1e-10)


def test_the_next_word_after_a_sum():
    model = lrlm()
    context = [KNOWN, COPIED]
    state = model.advance(model.encode(batch([context])), Everything())
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    here = Particles(state, state, nothing, nothing, nothing.long())
    found = here.ahead(model, torch.tensor([COPIED])).next_token(model, [0], [2])
    assert abs(found[0].logsumexp(-1)) < 1e-10
    for word in SYMBOLS:
        exact = listed(model, [*context, word]) - listed(model, context)
        assert abs(found[0, word] - exact) < 1e-10


def test_weights_of_the_posterior_are_all_p():
    model = lrlm()
    texts = batch([[KNOWN, COPIED, KNOWN, END], [UNKNOWN, END]])
    wanted = model.log_joint(model.encode(texts), Everything()).expand(-1, 9)
    found = ImportanceSampling(9).log_weights(model, model.proposal(), texts, [1, 2])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_readings_of_the_posterior_come_as_often_as_they_should():
    model = lrlm()
    text = batch([[KNOWN, COPIED, KNOWN, COPIED, END]])
    proposal = model.proposal()
    planned = proposal.encode(text)
    every = every_reading(model, 5)
    exact = proposal.log_prob(planned, every)[0].exp()
    assert (exact > 0.05).sum() >= 3, "premise: there is a choice"
    number = 4000
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(5, 1, number, 4, dtype=torch.float64, generator=generator)
    drawn = proposal.sample(planned, lambda t: uniform[t], number).latents
    same = (drawn.source[0, :, None] == every.source[0]).all(-1)
    same &= (drawn.offset[0, :, None] == every.offset[0]).all(-1)
    counts = same.sum(0)
    expected = exact * number
    often = expected > 5
    chi = ((counts - expected)[often].square() / expected[often]).sum()
    assert counts[exact == 0].sum() == 0
    assert chi < often.sum() + 5 * (2 * often.sum()).sqrt()


def test_a_beam_finds_the_best_readings():
    model = lrlm()
    text = batch([[KNOWN, COPIED, KNOWN, COPIED, END]])
    encoded = model.encode(text)
    wanted = model.log_joint(encoded, every_reading(model, 5))[0].sort().values[-1]
    found = BeamMarginalization(4).log_weights(model, model.proposal(), text, [0])
    assert abs(found.max() - wanted) < 1e-10


def test_a_topic_that_is_given_is_a_condition():
    """The sum over topics of prior and likelihood is p of the text."""
    model = lrlm()
    texts = batch(TEXTS)
    parts = [
        model.log_joint(
            model.encode(texts, model.about([name] * len(TEXTS))), Everything()
        )
        + prior
        for name, prior in zip(("Ada", "Bo"), model.knowledge.log_prior, strict=True)
    ]
    wanted = model.log_joint(model.encode(texts), Everything())
    torch.testing.assert_close(
        torch.stack(parts).logsumexp(0), wanted, rtol=0, atol=1e-10
    )
    assert (parts[0] - parts[1]).abs().max() > 0.1, "premise: topics matter"


def test_words_that_need_a_topic_say_so():
    model = lrlm(knowledge_vector=True)
    with pytest.raises(ValueError, match=r"about\(\[topic\]\)"):
        model.encode(batch([[KNOWN]]))
    with pytest.raises(ValueError, match="no topic 'Cy': there are 2"):
        model.about(["Cy"])


def test_gradients_are_finite():
    """Where texts have names and where they have none, and next to the impossible."""
    model = lrlm().requires_grad_(True)
    texts = batch([[KNOWN, COPIED, END], [UNKNOWN, END]])
    after = model.about(["Ada", "Bo"])
    log_p = model.log_joint(model.encode(texts, after), Everything())
    log_p.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert model.to_fact.weight.grad.abs().max() > 0
