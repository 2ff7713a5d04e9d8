"""Importance sampling: many samples are drawn in rounds."""

from __future__ import annotations

import torch

from lm_latent_eval.inference import ImportanceSampling, importance
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.text.words import END
from tests import tiny_models
from tests.tiny_models import KNOWN, batch


def test_no_round_holds_more_latents_than_said(monkeypatch):
    """Of short texts as well, whose latents are small: each has a state."""
    model = tiny_models.kglm(tiny_models.plain_graph())
    proposal, drawn = model.proposal("peeking"), []
    texts, keys = batch([[KNOWN, END], [END]]), [stream_key(0, n) for n in "ab"]
    whole = ImportanceSampling(21).log_weights(model, proposal, texts, keys)
    sample = type(proposal).sample

    def watching(self, encoded, uniforms, num_samples):
        drawn.append(len(keys) * num_samples)
        return sample(self, encoded, uniforms, num_samples)

    monkeypatch.setattr(type(proposal), "sample", watching)
    monkeypatch.setattr(importance, "ROWS", 8)
    parts = ImportanceSampling(21).log_weights(model, proposal, texts, keys)
    assert max(drawn) == 8
    assert sum(drawn) == 2 * 21
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
