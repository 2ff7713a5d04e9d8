"""The exact sum against lists of all readings, and what follows from it."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

from lm_latent_eval.inference import Exact, ImportanceSampling
from lm_latent_eval.latent import Summable
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


def test_weights_of_the_posterior_are_all_p():
    model = lrlm()
    texts = batch([[KNOWN, COPIED, KNOWN, END], [UNKNOWN, END]])
    wanted = model.log_joint(model.encode(texts), Everything()).expand(-1, 9)
    found = ImportanceSampling(9).log_weights(model, model.proposal(), texts, [1, 2])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


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
