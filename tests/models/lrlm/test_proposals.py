"""What proposals of readings draw, against a list of all readings."""

import math

import pytest
import torch

from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests.models.lrlm import tiny
from tests.tiny_models import COPIED, KNOWN


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("name", ["posterior", "adapted"])
@torch.no_grad()
def test_every_possible_reading_is_drawn(name, temperature):
    """Also those that come to a name, of a word that nothing else has, by a word."""
    model, text = tiny.lrlm(), [KNOWN, COPIED, KNOWN]
    costs = [-math.inf if word == COPIED else 0.0 for word in text]
    batch = TokenBatch.collate([text], [costs], first=START)
    readings = tiny.every_reading(model, len(text))
    proposal = model.proposal(name, temperature)
    log_p = model.log_joint(model.encode(batch), readings)
    log_q = proposal.log_prob(proposal.encode(batch), readings)
    assert (log_p > -math.inf).sum() > 5
    assert log_q[log_p > -math.inf].min() > -30
