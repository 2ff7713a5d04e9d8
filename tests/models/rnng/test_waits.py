"""How often a model asks a device and waits: counted, on one that is simulated."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference import estimator_named
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END
from tests.device_work import counted
from tests.simulated_device import SIMULATED, simulated_device
from tests.test_laws import TINY_MODELS

A_WORD = {
    ("adapted", "is"): 1,
    ("prior", "is"): 1,
    ("crf", "is"): 0,
    ("adapted", "beam"): 1,
    ("crf", "beam"): 0,
    ("crf", "mixed"): 0,
}
SHORT, LONG = 3, 6
"""Words of a text."""


@pytest.mark.parametrize(("name", "estimator"), A_WORD)
def test_waits_a_word(name, estimator):
    with simulated_device():
        case = TINY_MODELS["rnng"].case().on(SIMULATED)
    proposal = case.proposal(name)
    method = estimator_named(estimator, case.model.estimators)(4)

    @torch.no_grad()
    def score(words):
        text = [*case.some_words(words), END]
        batch = case.batch([text, text])
        method.log_weights(case.model, proposal, batch, keys(2)).cpu()

    short, long = (counted(lambda n=n: score(n)).waits for n in (SHORT, LONG))
    more = long - short
    assert more.total() <= (LONG - SHORT) * A_WORD[name, estimator], more
