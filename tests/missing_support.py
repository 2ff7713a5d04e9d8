"""Texts that no draw of importance sampling is possible for: those with one word."""

from __future__ import annotations

from dataclasses import replace

import torch

from lm_latent_eval.inference.importance import ImportanceSampling
from tests.tiny_checkpoint import ids

WORD = "saw"


def miss(monkeypatch) -> None:
    """Let every draw of a text with the word "saw" have a weight of zero."""
    [number] = ids(WORD)
    weigh, extend = ImportanceSampling.log_weights, ImportanceSampling.extend

    def emptied(log_w, texts):
        has = (texts.batch.targets == number).any(-1).to(log_w.device)
        return log_w.masked_fill(has[:, None], -torch.inf)

    def log_weights(self, texts):
        return emptied(weigh(self, texts), texts)

    def extended(self, texts, after):
        found = extend(self, texts, after)
        return replace(found, log_w=emptied(found.log_w, texts))

    monkeypatch.setattr(ImportanceSampling, "log_weights", log_weights)
    monkeypatch.setattr(ImportanceSampling, "extend", extended)
