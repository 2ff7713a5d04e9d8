"""The exact sum against lists of all readings, and what follows from it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lm_latent_eval.inference import Exact
from lm_latent_eval.latent import NO_LATENT, Summable
from tests.models.lrlm.tiny import every_reading, lrlm
from tests.tiny_models import KNOWN, SYMBOLS, batch

TEXTS = [list(text) for text in product(SYMBOLS, repeat=4)]


def test_the_sum_is_that_of_the_list():
    model = lrlm()
    assert isinstance(model, Summable)
    found = Exact().log_weights(model, model.proposal(), batch(TEXTS), [0] * len(TEXTS))
    for text, ours in list(zip(TEXTS, found[:, 0], strict=True))[::5]:
        encoded = model.encode(batch([text]))
        listed = model.log_joint(encoded, every_reading(model, len(text)))
        assert abs(ours - listed[0].logsumexp(-1)) < 1e-10


def test_a_topic_that_is_given_is_a_condition():
    """The sum over topics of prior and likelihood is p of the text."""
    model = lrlm()
    texts = batch(TEXTS)
    parts = []
    for name, prior in zip(("Ada", "Bo"), model.knowledge.log_prior, strict=True):
        encoded = model.encode(texts, model.about([name] * len(TEXTS)))
        parts.append(model.log_joint(encoded, NO_LATENT) + prior)
    total = torch.stack(parts).logsumexp(0)
    wanted = model.log_joint(model.encode(texts), NO_LATENT)
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-10)
    assert (parts[0] - parts[1]).abs().max() > 0.1, "premise: topics matter"


def test_words_that_need_a_topic_say_so():
    model = lrlm(knowledge_vector=True)
    with pytest.raises(ValueError, match=r"about\(\[topic\]\)"):
        model.encode(batch([[KNOWN]]))
    with pytest.raises(ValueError, match="no topic 'Cy': there are 2"):
        model.about(["Cy"])
